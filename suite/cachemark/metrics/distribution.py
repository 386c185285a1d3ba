"""Quality of a set of images against real ones: FID, KID, Inception score, precision and recall, all computed by torch-fidelity.

Nothing here is a formula of our own. torch-fidelity reads statistics and features of the reference from its cache, and keeps
there those of the images; the cache is a folder that is made for one call and goes with it, and its names are content hashes,
because torch-fidelity itself compares names alone.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from ..errors import Unsupported, unknown
from .features import FEATURES, toolkit
from .reference import Pictures, Reference

NAMES = {
    "frechet_inception_distance": "fid", "kernel_inception_distance_mean": "kid", "kernel_inception_distance_std": "kid_std",
    "inception_score_mean": "isc", "inception_score_std": "isc_std", "precision": "precision", "recall": "recall",
}
METRICS = ("fid", "kid", "isc", "prc")
COMMON = ("batch_size", "rng_seed", "samples_shuffle", "verbose")
LEVEL = 0.95


def distribution(images: Tensor, reference: Reference, extractor: str, *, device: str = "cpu", **options: Any) -> dict[str, float]:
    """``fid``, ``kid``, ``kid_std``, ``isc``, ``isc_std``, ``precision``, ``recall`` of images (N, 3, H, W), RGB, bytes or in [−1, 1].

    ``extractor`` is a name that :func:`~cachemark.metrics.features.register` gave. ``options`` are those of torch-fidelity, with its
    defaults, whose name begins with a metric (``kid_subset_size=500``; ``kid=False`` leaves KID out), and ``batch_size``,
    ``rng_seed``, ``samples_shuffle``, ``verbose``. FID compares with all images of the reference, KID, precision and recall with
    those whose features it keeps.

    Raises UnknownName for another option, which torch-fidelity would ignore; BadCheckpoint where another extractor made the
    reference; Unsupported for images that are not finite or fewer than a metric needs.
    """
    return _measured(images, reference, extractor, device, options)[0]


def fid_interval(
    images: Tensor, reference: Reference, extractor: str, *, resamples: int = 200, seed: int = 0, device: str = "cpu", batch: int = 64
) -> tuple[float, float, float]:
    """FID of images, and the ends of its 95 % interval over which images were drawn: a bootstrap of their features.

    A resample holds fewer different images than the set, and FID grows as images get fewer. What the resamples tell is therefore
    how far they lie from their own mean, and those distances are laid round the FID of the set. It belongs to sets of this
    size, it is too wide rather than too narrow where images are few (twice at 300 embedded ones, 1.3 times at 1000), and it takes
    the reference as given. Raises what :func:`distribution` raises.
    """
    only = {"fid": True, "kid": False, "isc": False, "prc": False, "batch_size": batch}
    scores, features = _measured(images, reference, extractor, device, only)
    draws = torch.Generator().manual_seed(seed)
    found = torch.tensor([_fid(_resampled(features, draws), reference) for _ in range(resamples)], dtype=torch.float64)
    tail = (1 - LEVEL) / 2
    low, high = torch.quantile(found - found.mean(), torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return scores["fid"], scores["fid"] + low, scores["fid"] + high


def _resampled(features: Tensor, draws: torch.Generator) -> Tensor:
    return features[torch.randint(len(features), (len(features),), generator=draws)]


def _fid(features: Tensor, reference: Reference) -> float:
    """FID of features (N, F), by torch-fidelity."""
    metric = toolkit().metric_fid
    real = {"mu": reference.mean.numpy(), "sigma": reference.covariance.numpy()}
    return metric.fid_statistics_to_metric(metric.fid_features_to_statistics(features), real, False)[metric.KEY_METRIC_FID]


def _measured(
    images: Tensor, reference: Reference, extractor: str, device: str, options: dict[str, Any]
) -> tuple[dict[str, float], Tensor]:
    """The figures of images, and their features (N, F)."""
    chosen = {**dict.fromkeys(METRICS, True), "verbose": False, **_known(options)}
    reference.expect(extractor)
    pictures = Pictures(images)
    _enough(len(pictures), len(reference.features), chosen)
    mine, real = f"images-{pictures.digest}", f"reference-{reference.digest}"
    with TemporaryDirectory(prefix="cachemark-") as folder:
        reference.lay(Path(folder), real)
        scores = toolkit().calculate_metrics(
            input1=pictures, input1_cache_name=mine, input2=_Laid(), input2_cache_name=real, cache_root=folder,
            feature_extractor=extractor, cuda=torch.device(device).type == "cuda", save_cpu_ram=True, **chosen,
        )
        features = torch.load(Path(folder) / f"{mine}-{extractor}-features-{FEATURES}.pt", weights_only=True)
    return {name: float(scores[key]) for key, name in NAMES.items() if key in scores}, features


class _Laid(torch.utils.data.Dataset[Tensor]):
    """Stands for the images of a reference, of which only the features are there. To read one means that they were not found."""

    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: int) -> Tensor:
        raise AssertionError("torch-fidelity did not find the reference in its cache: the names of its files have changed")


def _known(options: dict[str, Any]) -> dict[str, Any]:
    """``options``, or UnknownName for one that torch-fidelity does not have or that is not for the caller to choose."""
    defaults = toolkit().defaults.DEFAULTS
    names = [name for name in defaults if name in COMMON or name.split("_")[0] in METRICS]
    for given in options:
        if given not in names:
            raise unknown("option of torch-fidelity", given, names)
    return options


def _enough(images: int, real: int, chosen: dict[str, Any]) -> None:
    """Raise Unsupported where there are fewer images, or real ones with features, than a chosen metric needs."""
    value = {**toolkit().defaults.DEFAULTS, **chosen}
    needs = {  # metric: (images, real images, where that number comes from)
        "fid": (2, 0, "a covariance"),
        "kid": (value["kid_subset_size"], value["kid_subset_size"], "kid_subset_size"),
        "isc": (value["isc_splits"], 0, "isc_splits"),
        "prc": (value["prc_neighborhood"] + 1, value["prc_neighborhood"] + 1, "prc_neighborhood, beside the image itself"),
    }
    for metric, (least, least_real, why) in needs.items():
        if value[metric] and (images < least or real < least_real):
            raise Unsupported(f"{metric} needs {least} images because of {why}; there are {images}, and {real} real ones with features.",
                              remedy=f"Give more images, or a smaller option, or leave it out with {metric}=False.")
