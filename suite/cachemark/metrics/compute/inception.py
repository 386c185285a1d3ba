"""Inception v3 of torch-fidelity, with real images of ImageNet (``adm``) or COCO (``coco``).

``adm`` compares with guided-diffusion's reference batch for ImageNet at 256×256. FID uses the statistics of the whole training set in
the file; KID, precision and recall use its 10 000 images, by the same 2048 features (torch-fidelity would take VGG16 for
precision and recall; published values do not). Differences to the authors' evaluator: distances in float32, not float16; images are
shuffled before the splits of the Inception score.

``coco`` is the protocol of FID-30k for text-to-image models. No file of real images is in common use, so values compare between
methods that used one file, and approximately with published ones if it contains 30 000 validation images of 2014, cropped to squares
of 256×256 pixels.

Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

import numpy as np
import torch
from torch import Tensor

from ...core.errors import BadCheckpoint, Unsupported
from ...core.files import is_readable
from ...models.checkpoints import sha256
from .extractor import Extractor, cached, extractor_name, tensors, toolkit
from .image_features import ImageFeatures, RealImages

ADM, COCO, SIDE = "adm", "coco", 256
REFERENCES = {  # a preset's real images, and how to get them
    ADM: ("ADM's reference batch", "with: curl -LO https://openaipublic.blob.core.windows.net/diffusion/jul-2021/ref_batches/imagenet/256/"
                                   "VIRTUAL_imagenet256_labeled.npz"),
    COCO: ("real images of COCO in an npz file", "by: docs/reference/quality.md, which describes how to make it from COCO's val2014"),
}
# Ten splits are 5000 images each at 50 000, as in the authors' evaluator; so is the neighborhood.
OPTIONS = {"isc_splits": 10, "prc_neighborhood": 3}
FAMILY = "inception-v3-compat"  # torch-fidelity's name of the network
LAYERS = ("2048", "logits_unbiased")  # its features, and the logits without bias that the Inception score uses
ARRAY = "arr_0.npy"
CHUNK = 100  # images per read


def load(
    name: str, weights: str | Path, reference: str | Path, *, device: str = "cpu", batch: int = 64
) -> tuple[Extractor, RealImages]:
    """Return the extractor and the real images of ``adm`` or ``coco``.

    ``weights`` default to PyTorch's download cache. The features of the real images are computed once and saved next to ``reference``.
    Raises Unsupported, with how to get it, for a missing file; BadCheckpoint for a damaged or wrong one.
    """
    weights = _required(name, weights, reference)
    extractor, real = inception_extractor(weights), ReferenceBatch(reference)
    statistics = None if name == COCO else real.statistics()
    features = _features_once(real, extractor, device, batch)
    if statistics is None:
        return extractor, RealImages.of(features)
    mean, covariance = statistics
    if mean.shape != features.features.shape[1:]:
        raise BadCheckpoint(f"{str(reference)!r} has statistics of {len(mean)} features, not of {features.features.shape[1]}.",
                            remedy="Use the reference batch of guided-diffusion for ImageNet at 256×256.")
    return extractor, RealImages(extractor.name, 0, mean, covariance, features.features, features.logits)


def identity(name: str, weights: str | Path, reference: str | Path) -> dict[str, Any]:
    """Return the preset's part of a case's identity. Raises Unsupported for a missing file."""
    extractor = extractor_name(sha256(_required(name, weights, reference)), FAMILY)
    return {"preset": name, "extractor": extractor, "reference": ReferenceBatch(reference).fingerprint, "resize": SIDE,
            "options": dict(OPTIONS)}  # fmt: skip


def _required(name: str, weights: str | Path, reference: str | Path) -> Path:
    """Return the path of the weights. Raises Unsupported for a missing file of weights or real images."""
    file = weights_file(weights)
    _require(reference, *REFERENCES[name])
    return file


def weights_file(weights: str | Path = "") -> Path:
    """Return the path of the weights, by default in PyTorch's download cache.

    Raises Unsupported, with how to get it, if it is missing.
    """
    if not weights and (downloaded := cached(source())).is_file():
        weights = downloaded
    _require(weights, "the weights of Inception v3", f"with: curl -LO {source()}")
    return Path(weights)


def _require(path: str | Path, what: str, remedy: str) -> None:
    if not str(path) or not is_readable(path):
        path_note = f" ({str(path)!r} is not a file)" if str(path) else ""
        raise Unsupported(f"not measured: needs {what}{path_note}, get it {remedy}")


def source() -> str:
    """Return the address of the weights."""
    toolkit()
    from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3

    return URL_INCEPTION_V3


def inception_extractor(file: Path) -> Extractor:
    """Return the network with the weights in a file.

    Features are the 2048 of the last pooling, logits the 1008 without bias. Raises BadCheckpoint for another file.
    """
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

    clean = io.BytesIO()  # the tensors alone: torch-fidelity would run code in the file
    torch.save(tensors(file, source()), clean)
    clean.seek(0)
    try:
        network = FeatureExtractorInceptionV3(FAMILY, list(LAYERS), feature_extractor_weights_path=clean)
    except RuntimeError as error:  # of load_state_dict: names or shapes
        raise BadCheckpoint(f"{str(file)!r} does not fit torch-fidelity's {FAMILY}: {' '.join(str(error).split())[:300]}.",
                            remedy=f"Use the file of {source()}.") from error
    return Extractor(sha256(file), lambda: network, FAMILY)


class ReferenceBatch:
    """An npz file of real images in the format of guided-diffusion's evaluation suite.

    ``arr_0`` contains the images, uint8 (N, H, W, 3); ``mu`` and ``sigma`` are mean and covariance of the 2048 Inception features of the
    whole data set. The file for ImageNet has 10 000 images in 2 GB, which are read in pieces. Every method raises BadCheckpoint for a
    damaged file or one of another kind.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self._reading(), ZipFile(self.path) as archive, archive.open(ARRAY) as file:
            _header(file)
            content = sorted((member.filename, member.CRC, member.file_size) for member in archive.infolist())
        self.fingerprint = hashlib.sha256(repr(content).encode()).hexdigest()[:12]  # of the zip's checksums, because the file is large

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Return mean (F,) float32 and covariance (F, F) float64, the types that torch-fidelity computes."""
        with self._reading():
            return _statistics(self.path)

    def images(self) -> Iterator[Tensor]:
        """Yield the images in order, in parts (B, 3, H, W) of uint8."""
        with self._reading(), ZipFile(self.path) as archive, archive.open(ARRAY) as file:
            count, *size = _header(file)
            for start in range(0, count, CHUNK):
                size_of_part = min(CHUNK, count - start)
                data = bytearray(file.read(size_of_part * int(np.prod(size))))
                yield torch.frombuffer(data, dtype=torch.uint8).view(size_of_part, *size).permute(0, 3, 1, 2).contiguous()
            if file.read(1):
                raise ValueError("it has more bytes than its header states")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # bytes of any origin: the reader may fail in any way
            problem = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
            problem = problem.strip(".") or type(error).__name__
            raise BadCheckpoint(f"{str(self.path)!r} is not a reference batch, or a damaged one: {problem}.",
                                remedy="Fetch it again; it must hold arr_0 (uint8 images), mu and sigma.") from error


def statistics_alone(path: str | Path) -> tuple[Tensor, Tensor] | None:
    """Return mean and covariance of an npz file without images, as pytorch-fid writes it, or None.

    Raises BadCheckpoint for values that are not statistics."""
    try:
        with np.load(path, allow_pickle=False) as file:
            if not {"mu", "sigma"} <= set(file.files) or ARRAY.removesuffix(".npy") in file.files:
                return None
    except Exception:  # bytes of any origin: the reader of a reference batch reports the problem
        return None
    try:
        return _statistics(path)
    except Exception as error:
        raise BadCheckpoint(f"{str(path)!r} has no statistics: {error}.", remedy="It must hold mu (F,) and sigma (F, F).") from error


def _statistics(path: str | Path) -> tuple[Tensor, Tensor]:
    """Return mean and covariance in an npz file. Raises ValueError, KeyError, or what NumPy raises."""
    with np.load(path, allow_pickle=False) as file:
        mean, covariance = torch.from_numpy(file["mu"]).float(), torch.from_numpy(file["sigma"]).double()
    if mean.dim() != 1 or covariance.shape != (len(mean), len(mean)):
        raise ValueError(f"mu is {tuple(mean.shape)}, sigma {tuple(covariance.shape)}")
    if not (mean.isfinite().all() and covariance.isfinite().all()):
        raise ValueError("mu or sigma is not finite")
    return mean, covariance


def _header(file: IO[bytes]) -> tuple[int, ...]:
    """Return the shape in the header of an npy file of images, and move the file to the end of the header."""
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, fortran_order, dtype = read[np.lib.format.read_magic(file)](file)
    if dtype != np.uint8 or fortran_order or len(shape) != 4 or shape[3] != 3:
        raise ValueError(f"arr_0 is {dtype} of shape {shape}, not uint8 (N, H, W, 3)")
    return shape


def _features_once(real: ReferenceBatch, extractor: Extractor, device: str, batch: int) -> ImageFeatures:
    """Return the features of real images, saved next to their file; replace a damaged file."""
    path = real.path.parent / f"{real.path.stem}.{real.fingerprint}.{extractor.name}.safetensors"
    saved = ImageFeatures.load(path, extractor.name)
    if saved is None:
        try:
            path.touch()  # fail before an hour of work, not after it
        except OSError as error:
            raise Unsupported(f"The features of the reference cannot be saved in {str(path.parent)!r}: {error.strerror}.",
                              remedy="Copy the reference to a folder that can be written to.") from error
        saved = ImageFeatures.of(real.images(), extractor, device=device, batch=batch)
        saved.save(path)
    return saved
