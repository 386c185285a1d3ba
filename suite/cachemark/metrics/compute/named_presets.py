"""The presets of quality by name, with the files that each of them needs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from ...core.errors import Unsupported, unknown
from ...models import checkpoints
from ...models.tiny import tiny_features as features
from ...models.weights import packaged
from .adm import NAME as ADM
from .adm import SIDE, adm, identity, source
from .coco import NAME as COCO
from .coco import coco
from .coco import identity as coco_identity
from .extractor import cached, register
from .feature_preset import Preset
from .image_features import RealImages

SCENE = "scene"
INCEPTION = {ADM: (adm, identity), COCO: (coco, coco_identity)}  # by name the preset that Inception makes, and what decides it
NAMES = (SCENE, *INCEPTION)
SCENE_OPTIONS = {"kid_subset_size": 250}  # KID has no bias in it, and sets of 500 images are common here


def preset(name: str, *, weights: str | Path = "", reference: str | Path = "", cache: str | Path = "", device: str = "cpu") -> Preset:
    """``scene`` (the procedural scenes; both files come with the package), ``adm`` (ImageNet at 256×256) or ``coco`` (COCO, likewise).

    ``weights`` of the latter two may be left out where PyTorch's own cache of downloads holds them. Raises UnknownName for another
    name, and what :func:`~cachemark.metrics.compute.adm.adm` or :meth:`~cachemark.metrics.compute.image_features.RealImages.load` raise.
    """
    if name == SCENE:
        return scene(weights or packaged(f"{features.NAME}.safetensors"), reference)
    if name in INCEPTION:
        return INCEPTION[name][0](weights or downloaded(), reference, cache=cache, device=device)
    raise unknown("preset of quality", name, NAMES)


def stated(name: str, weights: str | Path = "", reference: str | Path = "") -> dict[str, Any]:
    """The part of a case's identity that a preset decides. For a missing file of adm or coco, ``missing`` says how to get it.
    Raises what :func:`preset` raises of files that are here."""
    if name not in INCEPTION:
        return preset(name, weights=weights, reference=reference).identity
    try:
        return INCEPTION[name][1](weights or downloaded(), reference)
    except Unsupported as error:
        return {"preset": name, "missing": str(error), "resize": SIDE}


def scene(weights: str | Path, reference: str | Path = "") -> Preset:
    """The network of the procedural scenes at ``weights``, and the reference beside it unless another is given."""
    extractor = register(checkpoints.sha256(weights), partial(features.load, weights))
    real = RealImages.load(reference or Path(weights).with_suffix(".reference.safetensors"), extractor)
    return Preset(SCENE, extractor, real, options=SCENE_OPTIONS, names_classes=True)


def downloaded() -> str:
    """Path of the Inception weights in PyTorch's download cache; empty where they have not been downloaded."""
    path = cached(source())
    return str(path) if path.is_file() else ""
