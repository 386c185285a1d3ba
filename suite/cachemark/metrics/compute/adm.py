"""The preset of published values on ImageNet at 256×256: Inception v3, and ADM's reference batch."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

import numpy as np
import torch
from torch import Tensor, nn

from ...core.errors import BadCheckpoint, Unsupported
from ...core.files import is_readable
from ...models.checkpoints import sha256
from .extractor import extractor_name, register, tensors, toolkit
from .feature_preset import Preset
from .image_features import ImageFeatures, RealImages

NAME, SIDE = "adm", 256
BATCH = "https://openaipublic.blob.core.windows.net/diffusion/jul-2021/ref_batches/imagenet/256/VIRTUAL_imagenet256_labeled.npz"
# Ten splits are 5000 images each at 50 000, as the authors' evaluator has them; the neighbourhood is theirs too.
OPTIONS = {"isc_splits": 10, "prc_neighborhood": 3}
FAMILY = "inception-v3-compat"  # torch-fidelity's name of the network
LAYERS = ("2048", "logits_unbiased")  # its features, and the logits without bias from which the Inception score is taken
ARRAY = "arr_0.npy"
CHUNK = 100  # images that are read at a time


def inception(path: str | Path) -> str:
    """Register torch-fidelity's ``inception-v3-compat`` with the weights at ``path``, and return the name of the extractor.

    Features are the 2048 of the last pooling, logits the 1008 without bias. Raises BadCheckpoint for a file that does not hold them.
    """
    file = Path(path)
    if not is_readable(file):
        raise BadCheckpoint(f"{str(path)!r} is not a file.", remedy=f"Give the path of {source().rsplit('/', 1)[1]}.")
    network = _network(tensors(file, source()), file)
    return register(sha256(file), lambda: network, FAMILY)


def source() -> str:
    """The address from which torch-fidelity downloads the weights."""
    toolkit()
    from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3

    return URL_INCEPTION_V3


def _network(state: dict[str, Tensor], path: Path) -> nn.Module:
    """torch-fidelity's network, from tensors by name. Bytes (B, 3, H, W) to features (B, 2048) and logits (B, 1008), float32."""
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

    clean = io.BytesIO()
    torch.save(state, clean)
    clean.seek(0)
    try:
        network: nn.Module = FeatureExtractorInceptionV3(FAMILY, list(LAYERS), feature_extractor_weights_path=clean)
    except RuntimeError as error:  # of load_state_dict: names or shapes
        raise BadCheckpoint(f"{str(path)!r} does not fit torch-fidelity's {FAMILY}: {' '.join(str(error).split())[:300]}.",
                            remedy=f"Give the file of {source()}.") from error
    return network


class ReferenceBatch:
    """The npz file at ``path``, from guided-diffusion's evaluation suite: real images, and the statistics of many more.

    ``arr_0`` holds the images, uint8 (N, H, W, 3); ``mu`` and ``sigma`` are mean and covariance of the 2048 Inception features over the
    whole data set. The file for ImageNet at 256×256 has 10 000 images, 2 GB, which are therefore read in pieces; its ``mu_s`` and
    ``sigma_s``, for a spatial FID, are not used. Every method raises BadCheckpoint where the file is damaged or of another kind.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self._reading(), ZipFile(self.path) as archive, archive.open(ARRAY) as file:
            self.shape = _header(file)
            content = sorted((member.filename, member.CRC, member.file_size) for member in archive.infolist())
        self.fingerprint = hashlib.sha256(repr(content).encode()).hexdigest()[:12]  # of the zip's own checksums: it is long

    def __len__(self) -> int:
        return self.shape[0]

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean (F,) float32 and covariance (F, F) float64, the types that torch-fidelity computes itself."""
        with self._reading():
            with np.load(self.path, allow_pickle=False) as file:
                mean, covariance = torch.from_numpy(file["mu"]).float(), torch.from_numpy(file["sigma"]).double()
            if mean.dim() != 1 or covariance.shape != (len(mean), len(mean)):
                raise ValueError(f"mu is {tuple(mean.shape)}, sigma {tuple(covariance.shape)}")
            if not (mean.isfinite().all() and covariance.isfinite().all()):
                raise ValueError("mu or sigma is not finite")
        return mean, covariance

    def images(self) -> Iterator[Tensor]:
        """The images in order, in parts (B, 3, H, W) of uint8."""
        with self._reading(), ZipFile(self.path) as archive, archive.open(ARRAY) as file:
            count, *size = _header(file)
            for start in range(0, count, CHUNK):
                size_of_part = min(CHUNK, count - start)
                data = bytearray(file.read(size_of_part * int(np.prod(size))))
                yield torch.frombuffer(data, dtype=torch.uint8).view(size_of_part, *size).permute(0, 3, 1, 2).contiguous()
            if file.read(1):
                raise ValueError("there are more bytes than its header says")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # bytes of any origin: the reader may fail in any way
            problem = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
            problem = problem.strip(".") or type(error).__name__
            raise BadCheckpoint(f"{str(self.path)!r} is not a reference batch, or a damaged one: {problem}.",
                                remedy="Fetch it again; it must hold arr_0 (uint8 images), mu and sigma.") from error


def _header(file: IO[bytes]) -> tuple[int, ...]:
    """The shape that an npy file of images gives for itself; the file stands behind its header then."""
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, turned, dtype = read[np.lib.format.read_magic(file)](file)
    if dtype != np.uint8 or turned or len(shape) != 4 or shape[3] != 3:
        raise ValueError(f"arr_0 is {dtype} of shape {shape}, not uint8 (N, H, W, 3)")
    return shape


def adm(weights: str | Path, reference: str | Path, *, cache: str | Path = "", device: str = "cpu", batch: int = 64) -> Preset:
    """torch-fidelity's ``inception-v3-compat`` with the file ``weights``, against the npz file ``reference`` of guided-diffusion.

    FID uses the statistics in the file, which are of the whole training set. KID, precision and recall compare with the 10 000 images
    in it, by the same 2048 features (torch-fidelity would take VGG16 for precision and recall; published values do not). Their features
    are computed once and saved in the folder ``cache``, by default that of ``reference``.

    What differs from the authors' evaluator: distances are computed in float32, not float16; images are shuffled before the splits of
    the Inception score. Nothing is fetched. Raises Unsupported, with how to get it, for a file that is missing; BadCheckpoint for one
    that is damaged or another.
    """
    _present(weights, reference)
    extractor, real = inception(weights), ReferenceBatch(reference)
    mean, covariance = real.statistics()
    features = features_once(real, extractor, cache, device=device, batch=batch)
    if mean.shape != features.features.shape[1:]:
        raise BadCheckpoint(f"{str(reference)!r} has statistics of {len(mean)} features, not of {features.features.shape[1]}.",
                            remedy="Give the reference batch of guided-diffusion for ImageNet at 256×256.")
    return Preset(NAME, extractor, RealImages(extractor, 0, mean, covariance, features.features, features.logits), SIDE, OPTIONS)


def identity(weights: str | Path, reference: str | Path) -> dict[str, Any]:
    """The part of a case's identity that the preset decides, from the two files alone, without building the network. Raises Unsupported
    for a missing file."""
    _present(weights, reference)
    extractor = extractor_name(sha256(weights), FAMILY)
    return {"preset": NAME, "extractor": extractor, "reference": ReferenceBatch(reference).fingerprint, "resize": SIDE,
            "options": dict(OPTIONS)}  # fmt: skip


def _present(weights: str | Path, reference: str | Path) -> None:
    for path, what, address in ((weights, "the weights of Inception v3", source()), (reference, "ADM's reference batch", BATCH)):
        if not str(path) or not is_readable(path):
            path_note = f" ({str(path)!r} is not a file)" if str(path) else ""
            raise Unsupported(f"not measured: needs {what}{path_note}, get it with: curl -LO {address}")


def features_once(real: ReferenceBatch, extractor: str, cache: str | Path, *, device: str, batch: int) -> ImageFeatures:
    """Features of the images of a reference, saved in the folder ``cache``, empty for that of the reference."""
    cached_file = Path(cache or real.path.parent) / f"{real.path.stem}.{real.fingerprint}.{extractor}.safetensors"
    return _once(cached_file, extractor, lambda: ImageFeatures.of(real.images(), extractor, device=device, batch=batch))


def _once(path: Path, extractor: str, extract: Callable[[], ImageFeatures]) -> ImageFeatures:
    """The features saved at ``path``, else those that ``extract`` returns, which are then saved there. A damaged file counts as missing."""
    saved = ImageFeatures.load(path, extractor)
    if saved is None:
        try:
            path.touch()  # before an hour of work is done for nothing
        except OSError as error:
            raise Unsupported(f"The features of the reference cannot be saved in {str(path.parent)!r}: {error.strerror}.",
                              remedy="Name a folder that can be written to as the cache.") from error
        saved = extract()
        saved.save(path)
    return saved
