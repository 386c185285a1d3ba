"""The preset of FID-30k, by which text-to-image models are compared on COCO's captions: Inception v3, and real images of COCO.

There is no file of real images that everybody takes, so the value is comparable between methods that were measured with one file, and near
to published ones where that holds 30 000 of the validation images of 2014, cut to squares and at 256×256 pixels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...core.errors import Unsupported
from ...core.files import is_readable
from ...models.checkpoints import sha256
from .adm import FAMILY, OPTIONS, SIDE, ReferenceBatch, features_once, inception, source
from .extractor import extractor_name
from .feature_preset import Preset
from .image_features import RealImages

NAME = "coco"
GUIDE = "docs/reference/quality.md, which says how to make it of COCO's val2014"


def coco(weights: str | Path, reference: str | Path, *, cache: str | Path = "", device: str = "cpu", batch: int = 64) -> Preset:
    """torch-fidelity's ``inception-v3-compat`` with the file ``weights``, against the images of the npz file ``reference``.

    FID, KID, precision and recall compare with the images in it (``arr_0``, uint8 (N, 256, 256, 3)), whose features are computed once and
    saved in the folder ``cache``, by default that of ``reference``. Raises what :func:`~cachemark.metrics.compute.adm.adm` raises.
    """
    _present(weights, reference)
    extractor, real = inception(weights), ReferenceBatch(reference)
    return Preset(NAME, extractor, RealImages.of(features_once(real, extractor, cache, device=device, batch=batch)), SIDE, OPTIONS)


def identity(weights: str | Path, reference: str | Path) -> dict[str, Any]:
    """The part of a case's identity that the preset decides, from the two files alone, without building the network. Raises Unsupported
    for a missing file."""
    _present(weights, reference)
    return {"preset": NAME, "extractor": extractor_name(sha256(weights), FAMILY), "reference": ReferenceBatch(reference).fingerprint,
            "resize": SIDE, "options": dict(OPTIONS)}  # fmt: skip


def _present(weights: str | Path, reference: str | Path) -> None:
    if not str(weights) or not is_readable(weights):
        raise Unsupported(f"not measured: needs the weights of Inception v3{_given(weights)}, get it with: curl -LO {source()}")
    if not str(reference) or not is_readable(reference):
        raise Unsupported(f"not measured: needs real images of COCO in an npz file{_given(reference)}, get it by: {GUIDE}")


def _given(path: str | Path) -> str:
    return f" ({str(path)!r} is not a file)" if str(path) else ""
