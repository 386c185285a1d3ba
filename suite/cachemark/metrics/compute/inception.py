"""Inception v3 of torch-fidelity, with real images of ImageNet (``adm``) or COCO (``coco``).

``adm`` is the protocol of guided-diffusion's evaluator. FID and sFID use the statistics of the whole training set in the reference
batch; precision and recall use its images, by the same 2048 features (torch-fidelity would take VGG16; published values do not). The
Inception score is the mean over splits of 5000 images in the order of the set. sFID uses the first 7 channels of the 1×1 branch of
``Mixed_6d`` (``mixed_6/conv`` in the TensorFlow graph), 17×17 positions, flattened as positions × channels. Differences to the authors'
evaluator: distances of precision and recall in float32, not float16, and the root of a covariance by eigenvalues.

``coco`` is the protocol of FID-30k for text-to-image models. No file of real images is in common use, so values compare between
methods that used one file, and approximately with published ones if it contains 30 000 validation images of 2014, cropped to squares
of 256×256 pixels.

``adm768``, ``adm192`` and ``adm64`` compare features of earlier layers, averaged over positions, for statistics such as those of
``pytorch-fid --dims 768``.

Nothing is downloaded.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ...core.errors import BadCheckpoint, Unsupported
from ...core.files import is_readable
from ...models.checkpoints import sha256
from .extractor import Extractor, cached, download, extractor_name, tensors, toolkit
from .image_features import ImageFeatures, RealImages
from .sample_batches import Moments, SampleBatch

ADM, COCO, SIDE = "adm", "coco", 256
LAYERS = {ADM: 2048, COCO: 2048, "adm768": 768, "adm192": 192, "adm64": 64}  # features by preset
REFERENCES = {  # a preset's real images, and how to get them
    ADM: ("ADM's reference batch", "with: curl -LO https://openaipublic.blob.core.windows.net/diffusion/jul-2021/ref_batches/imagenet/256/"
                                   "VIRTUAL_imagenet256_labeled.npz"),
    COCO: ("real images of COCO in an npz file", "by: docs/reference/quality.md, which describes how to make it from COCO's val2014"),
}
OPTIONS = {"isc_split_size": 5000, "prc_neighborhood": 3}  # of the authors' evaluator
FAMILY = "inception-v3-compat"  # torch-fidelity's name of the network
LOGITS = "logits_unbiased"  # without bias: the Inception score uses them
CHANNELS, POSITIONS = 7, 17 * 17  # of the spatial features
BATCH = 8  # images per forward pass: 16 take a fifth less time on a CPU and 240 MB more


def load(
    name: str, weights: str | Path, reference: str | Path, *, device: str = "cpu", batch: int = BATCH
) -> tuple[Extractor, RealImages, int]:
    """Return the extractor, the real images and their side for a preset such as ``adm``.

    ``weights`` default to PyTorch's download cache. The features of the real images are computed once and saved next to ``reference``.
    Raises Unsupported, with how to get it, for a missing file; BadCheckpoint for a damaged or wrong one.
    """
    weights = _required(name, weights, reference)
    extractor, real = inception_extractor(weights, LAYERS[name]), SampleBatch(reference)
    if not len(real):
        raise BadCheckpoint(f"{str(reference)!r} has statistics without images.", remedy="Use a reference batch with arr_0 (uint8 images).")
    return extractor, with_moments(name, real, lambda: RealImages.of(_features_once(real, extractor, device, batch))), real.size[0]


def with_moments(name: str, file: SampleBatch, load: Callable[[], RealImages]) -> RealImages:
    """Return real images with the statistics in their file, if it has any that count; ``load`` gives the images' own.

    Raises BadCheckpoint, before ``load``, for statistics of another layer."""
    if name == COCO or (moments := file.moments()) is None:
        return load()
    require_width(file.path, moments, name, LAYERS[name])
    spatial, real = _spatial(file), load()
    return RealImages(real.extractor, 0, moments.mean, moments.covariance, real.features, real.logits, spatial=spatial)


def of_statistics(name: str, extractor: Extractor, file: SampleBatch) -> RealImages:
    """Return a reference without images.

    Raises BadCheckpoint for statistics of another number of features.
    """
    moments = file.moments()
    assert moments is not None, "a file without images has statistics"
    require_width(file.path, moments, name, LAYERS[name])
    nothing = torch.empty(0, len(moments))
    return RealImages(extractor.name, 0, moments.mean, moments.covariance, nothing, nothing, spatial=_spatial(file))


def _spatial(file: SampleBatch) -> Moments | None:
    """Return the statistics of spatial features in a file, or None.

    Raises BadCheckpoint for others than the ADM evaluator's.
    """
    moments = file.moments(spatial=True)
    if moments is not None and len(moments) != POSITIONS * CHANNELS:
        raise BadCheckpoint(f"{str(file.path)!r} has spatial statistics (mu_s) of {len(moments)} features, not of {POSITIONS * CHANNELS}.",
                            remedy="Use mu_s and sigma_s of the ADM evaluator, or remove both.")
    return moments


def require_width(file: Path, moments: Moments, name: str, width: int) -> None:
    """Raise BadCheckpoint for statistics of another number of features than the preset's."""
    if len(moments) != width:
        other = next((preset for preset, features in LAYERS.items() if features == len(moments)), "")
        raise BadCheckpoint(f"{str(file)!r} has statistics of {len(moments)} features, not of {width} as preset {name}.",
                            remedy=f"Use --preset {other}, or statistics of {width} features." if other else
                            f"Use statistics of {', '.join(map(str, sorted(set(LAYERS.values()))))} features of Inception v3.")


def identity(name: str, weights: str | Path, reference: str | Path) -> dict[str, Any]:
    """Return the preset's part of a case's identity. Raises Unsupported for a missing file."""
    extractor = extractor_name(sha256(_required(name, weights, reference)), FAMILY)
    real = SampleBatch(reference)
    return {"preset": name, "extractor": extractor, "reference": real.fingerprint, "resize": real.size[0], "options": dict(OPTIONS)}


def _required(name: str, weights: str | Path, reference: str | Path) -> Path:
    """Return the path of the weights. Raises Unsupported for a missing file of weights or real images."""
    file = weights_file(weights)
    _require(reference, *REFERENCES.get(name, REFERENCES[ADM]))
    return file


def weights_file(weights: str | Path = "") -> Path:
    """Return the path of the weights, by default in PyTorch's download cache.

    Raises Unsupported, with how to get it, if it is missing.
    """
    if not weights and (downloaded := cached(source())).is_file():
        weights = downloaded
    _require(weights, "the weights of Inception v3", f"with: {download(source(), weights)}")
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


class _Inception(nn.Module):
    """torch-fidelity's network with its spatial features as a third output, (B, 17·17·7)."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self._spatial: Tensor | None = None
        network.Mixed_6d.branch1x1.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self._spatial = output[:, :CHANNELS].permute(0, 2, 3, 1).flatten(1)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return features, logits and spatial features of bytes (B, 3, H, W)."""
        features, logits = self.network(images)
        assert self._spatial is not None, "logits come after the hook"
        return features, logits, self._spatial


def inception_extractor(file: Path, width: int = 2048) -> Extractor:
    """Return the network with the weights in a file.

    Features are the 2048 of the last pooling or the means of an earlier layer, logits the 1008 without bias. Raises BadCheckpoint for
    another file.
    """
    from torch_fidelity.feature_extractor_inceptionv3 import BasicConv2d, FeatureExtractorInceptionV3

    state, shapes = tensors(file, source()), io.BytesIO()  # names and shapes alone: torch-fidelity would run code in the file
    torch.save({name: tensor.to("meta") for name, tensor in state.items()}, shapes)
    shapes.seek(0)
    try:
        with torch.device("meta"):
            network = FeatureExtractorInceptionV3(FAMILY, [str(width), LOGITS], feature_extractor_weights_path=shapes)
    except RuntimeError as error:  # of load_state_dict: names or shapes
        raise BadCheckpoint(f"{str(file)!r} does not fit torch-fidelity's {FAMILY}: {' '.join(str(error).split())[:300]}.",
                            remedy=f"Use the file of {source()}.") from error
    network.load_state_dict(state, assign=True)
    del state  # each tensor is freed as soon as its layer is fused
    network.float()
    for module in network.modules():  # twice as fast on a CPU; features differ by rounding, 4e-7 of the largest
        if isinstance(module, BasicConv2d):
            module.conv, module.bn = fuse_conv_bn_eval(module.conv, module.bn), nn.Identity()
    network.to(memory_format=torch.channels_last)
    family = FAMILY if width == 2048 else f"{FAMILY}-{width}"
    whole = _Inception(network)
    return Extractor(sha256(file), lambda: whole, family, spatial=True, batch=BATCH)


def _features_once(real: SampleBatch, extractor: Extractor, device: str, batch: int) -> ImageFeatures:
    """Return the features of real images, saved next to their file; replace a damaged file."""
    path = real.path.parent / f"{real.path.stem}.{real.fingerprint}.{extractor.name}.safetensors"
    saved = ImageFeatures.load(path, extractor)
    if saved is None:
        try:
            path.touch()  # fail before an hour of work, not after it
        except OSError as error:
            raise Unsupported(f"The features of the reference cannot be saved in {str(path.parent)!r}: {error.strerror}.",
                              remedy="Copy the reference to a folder that can be written to.") from error
        saved = ImageFeatures.of(real.images(), extractor, device=device, batch=batch)
        saved.save(path)
    return saved
