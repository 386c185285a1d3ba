"""FID, sFID, KID, Inception score, precision and recall of a set of images.

torch-fidelity computes all but sFID, which is FID's formula on spatial features, and the Inception score with splits of a fixed size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...core.errors import Unsupported, unknown
from . import subsets
from .extractor import toolkit
from .image_features import ImageFeatures, RealImages, moments
from .sample_batches import Moments

NAMES = {
    "frechet_inception_distance": "fid", "kernel_inception_distance_mean": "kid", "kernel_inception_distance_std": "kid_std",
    "inception_score_mean": "isc", "inception_score_std": "isc_std", "precision": "precision", "recall": "recall",
}
METRICS = ("fid", "kid", "isc", "prc")
COMMON = ("rng_seed", "samples_shuffle", "verbose")
SPLIT_SIZE = "isc_split_size"
OWN: dict[str, Any] = {SPLIT_SIZE: 0, "sfid": True}  # options that torch-fidelity lacks
ROWS = 1000  # whose distances are in memory at a time, for precision and recall; torch-fidelity has 10 000


def distribution(features: ImageFeatures, reference: RealImages, **options: Any) -> dict[str, float]:
    """Return FID, KID, Inception score, precision and recall by the short names in :data:`NAMES`, and sFID as ``sfid``.

    ``options`` are torch-fidelity's, with its defaults, whose name starts with a metric (``kid_subset_size=500``; ``kid=False`` omits
    KID), and ``rng_seed``, ``samples_shuffle``, ``verbose``. ``isc_split_size``: images per split of the Inception score, in order and
    not shuffled, as in the ADM evaluator (0: torch-fidelity's ``isc_splits``). sFID needs spatial features on both sides. FID and sFID
    compare with all images of the reference, KID, precision and recall with those whose features it stores.

    Raises UnknownName for another option, which torch-fidelity would ignore; BadCheckpoint for a reference of another extractor;
    Unsupported for fewer images than a metric needs.
    """
    chosen, fidelity, scores = settings(options), toolkit(), dict[str, float]()
    reference.expect(features.extractor)
    _require_enough(len(features), len(reference.features), chosen)
    if chosen["fid"]:
        own, real = ({"mu": each.mean.numpy(), "sigma": each.covariance.numpy()} for each in (moments(features.features), reference))
        scores |= fidelity.metric_fid.fid_statistics_to_metric(own, real, chosen["verbose"])
    if chosen["kid"]:
        scores |= fidelity.metric_kid.kid_features_to_metric(features.features, reference.features, **chosen)
    if chosen["isc"] and chosen[SPLIT_SIZE]:
        scores["inception_score_mean"] = float(subsets.isc(features, reference, torch.ones(1, len(features), dtype=torch.bool), chosen))
    elif chosen["isc"]:
        scores |= fidelity.metric_isc.isc_featuresdict_to_metric({"logits": features.logits}, "logits", **chosen)
    if chosen["prc"]:
        scores |= fidelity.metric_prc.prc_features_to_metric(features.features, reference.features, save_cpu_ram=True, **chosen)
    values = {name: float(scores[key]) for key, name in NAMES.items() if key in scores}
    if chosen["sfid"] and features.spatial is not None and reference.spatial is not None:
        values["sfid"] = frechet(moments(features.spatial), reference.spatial)
    return values


def frechet(images: Moments, real: Moments) -> float:
    """Return the Fréchet distance, with the trace of the root of Σ₁Σ₂ from the symmetric Σ₂^½ Σ₁ Σ₂^½."""
    values, vectors = torch.linalg.eigh(real.covariance)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    shared = torch.linalg.eigvalsh(root @ images.covariance @ root).clamp(min=0).sqrt().sum()
    apart = (images.mean.double() - real.mean.double()).square().sum()
    return float(apart + images.covariance.trace() + real.covariance.trace() - 2 * shared)


def settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options, with torch-fidelity's defaults and every metric on. Raises UnknownName."""
    defaults = {n: value for n, value in toolkit().defaults.DEFAULTS.items() if n in COMMON or n.split("_")[0] in METRICS}
    defaults |= OWN | {"prc_batch_size": ROWS}
    for option in options:
        if option not in defaults:
            raise unknown("option of torch-fidelity", option, defaults)
    return {**defaults, **dict.fromkeys(METRICS, True), "verbose": False, **options}


def too_few(images: int, real: int, options: Mapping[str, Any]) -> tuple[dict[str, bool], dict[str, str]]:
    """Return options that disable metrics with too few images or real images, and the reason by metric."""
    chosen, left_out, reasons = settings(options), dict[str, bool](), dict[str, str]()
    subset, splits, neighbors = chosen["kid_subset_size"], least_for_isc(chosen), chosen["prc_neighborhood"] + 1
    for option, names, least, of_real in (("kid", ("kid",), subset, True), ("isc", ("isc",), splits, False),
                                          ("prc", ("precision", "recall"), neighbors, True)):
        if images < least or (of_real and real < least):
            counted = f"{images} and {real} real ones" if of_real else str(images)
            left_out[option] = False
            reasons |= dict.fromkeys(names, f"It needs at least {least} images; there are {counted}. Add images.")
    return left_out, reasons


def least_for_isc(chosen: Mapping[str, Any]) -> int:
    """Return the smallest number of images for the Inception score: one per split."""
    return 1 if chosen[SPLIT_SIZE] else int(chosen["isc_splits"])


def _require_enough(images: int, real: int, chosen: Mapping[str, Any]) -> None:
    """Raise Unsupported for fewer images, or real images with features, than a metric needs."""
    subset, splits, neighbors = chosen["kid_subset_size"], least_for_isc(chosen), chosen["prc_neighborhood"] + 1
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
