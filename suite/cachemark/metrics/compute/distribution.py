"""FID, KID, Inception score, precision and recall of a set of images, by torch-fidelity.

torch-fidelity reads the features of the images, and features and statistics of the reference, from its cache. The cache is a
temporary folder of one call, and its names are content hashes, because torch-fidelity compares names only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from ...core.errors import Unsupported, unknown
from .extractor import declare, toolkit
from .image_features import ImageFeatures, RealImages

NAMES = {
    "frechet_inception_distance": "fid", "kernel_inception_distance_mean": "kid", "kernel_inception_distance_std": "kid_std",
    "inception_score_mean": "isc", "inception_score_std": "isc_std", "precision": "precision", "recall": "recall",
}
METRICS = ("fid", "kid", "isc", "prc")
COMMON = ("rng_seed", "samples_shuffle", "verbose")


def distribution(features: ImageFeatures, reference: RealImages, **options: Any) -> dict[str, float]:
    """Return FID, KID, Inception score, precision and recall by the short names in :data:`NAMES`.

    ``options`` are torch-fidelity's, with its defaults, whose name starts with a metric (``kid_subset_size=500``; ``kid=False`` omits
    KID), and ``rng_seed``, ``samples_shuffle``, ``verbose``. FID compares with all images of the reference, KID, precision and recall
    with those whose features it stores.

    Raises UnknownName for another option, which torch-fidelity would ignore; BadCheckpoint for a reference of another extractor;
    Unsupported for fewer images than a metric needs.
    """
    chosen = settings(options)
    reference.expect(features.extractor)
    _require_enough(len(features), len(reference.features), chosen)
    declare(features.extractor)
    mine, real = f"images-{features.digest}", f"reference-{reference.digest}"
    with TemporaryDirectory(prefix="cachemark-") as folder:
        features.write_cache(Path(folder), mine)
        reference.write_cache(Path(folder), real)
        scores = toolkit().calculate_metrics(
            input1=_OnlyFeatures(), input1_cache_name=mine, input2=_OnlyFeatures(), input2_cache_name=real, cache_root=folder,
            feature_extractor=features.extractor, cuda=False, save_cpu_ram=True, **chosen,
        )
    return {name: float(scores[key]) for key, name in NAMES.items() if key in scores}


def settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options, with torch-fidelity's defaults and every metric on. Raises UnknownName."""
    defaults = {n: value for n, value in toolkit().defaults.DEFAULTS.items() if n in COMMON or n.split("_")[0] in METRICS}
    for option in options:
        if option not in defaults:
            raise unknown("option of torch-fidelity", option, defaults)
    return {**defaults, **dict.fromkeys(METRICS, True), "verbose": False, **options}


class _OnlyFeatures(torch.utils.data.Dataset[Tensor]):
    """A data set without images. Reading one means that torch-fidelity did not find the features."""

    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: int) -> Tensor:
        raise AssertionError("torch-fidelity did not find the features in its cache: the names of its files have changed")


def _require_enough(images: int, real: int, chosen: Mapping[str, Any]) -> None:
    """Raise Unsupported for fewer images, or real images with features, than a metric needs."""
    subset, splits, neighbors = chosen["kid_subset_size"], chosen["isc_splits"], chosen["prc_neighborhood"] + 1
    needs = {  # metric: (images, real images, subject of the message, source of the number)
        "fid": (2, 0, "FID needs", "for a covariance"),
        "kid": (subset, subset, "KID needs", "kid_subset_size"),
        "isc": (splits, 0, "The Inception score needs", "isc_splits"),
        "prc": (neighbors, neighbors, "Precision and recall need", "prc_neighborhood + 1"),
    }
    for metric, (least, least_real, who, why) in needs.items():
        if chosen[metric] and (images < least or real < least_real):
            raise Unsupported(f"{who} at least {least} images ({why}); there are {images} generated and {real} real ones.",
                              remedy=f"Pass more images or a smaller option, or omit it with {metric}=False.")
