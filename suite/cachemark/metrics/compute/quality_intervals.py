"""95 % intervals of quality values: how much they would vary with other seeds.

An interval holds for sets of the same number of images and the given reference. It compares methods; it need not contain the value
of infinitely many images, because FID and the Inception score are biased in the number of images.

- **precision** is a mean over images, each inside the manifold of the reference or not: Clopper and Pearson's interval.
- **FID, KID, Inception score, recall**: a delete-d jackknife (Shao and Wu, The Annals of Statistics 17, 1989). It leaves out a random
  tenth of the images, for recall a quarter, many times; the variance of the values of the subsets times (n − d) / d estimates the
  variance for the whole set. The ends are ±1.96 standard errors, for FID of its logarithm. A bootstrap is not suitable: an image that
  is drawn twice has distance 0 to its copy, which shrinks the manifold of recall, biases KID, and lowers the rank of the covariance.
- **KID** is reported by torch-fidelity as a mean over random subsets of the set: the variance of that mean is added.
- **No interval** (both ends NaN) if few images dominate: all but precision and recall depend on second and higher moments of the
  features. If the squared distances from the mean have a kurtosis above 0.03 times the number of images, one set does not show how
  far a value scatters. Simulated in docs/results/validation.md.

FID is too high for few images. The same subsets estimate by how much (``bias``): the increase with a tenth fewer images, times
(n − d) / d.

Intervals are too wide where images are as good as real ones, because the values are then quadratic in the sampling error. Over 24
sets of 2000 real scenes (128 features) widths were 1.4 times the scatter of the sets for FID, 1.7 for the Inception score, 1.3 for
recall, and right to 10 % for KID and precision; a bootstrap of FID is 1.9 times too wide at as many images per feature. If images are
worse than real ones, all widths are right. Images count as independent; if each class is drawn equally often, widths are slightly too
large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any, NamedTuple

import torch
from scipy.special import betaincinv
from torch import Tensor

from ...core.errors import Unsupported
from . import subsets
from .distribution import distribution, least_for_isc, settings
from .image_features import ROWS, ImageFeatures, RealImages

Z = NormalDist().inv_cdf(0.975)  # half the width of an interval of 95 %, in standard errors
LEFT_OUT = {"fid": 0.1, "kid": 0.1, "isc": 0.1, "recall": 0.25}  # fraction that a subset lacks; recall is discontinuous and needs more
RESAMPLES = 200  # which gives the width of an interval to about 5 %
WIDE = 512  # features above which FID has a quarter of the resamples, each of which takes seconds
LEAST = 20  # fewest images with a meaningful width
TAILS = 0.03  # highest kurtosis of squared distances, per image, for an interval of FID
_LIGHT = 8.0  # a kurtosis that is accepted for any number of images; d normal features have 3 + 12 / d
_VALUES = {"fid": subsets.fid, "kid": subsets.kid, "isc": subsets.isc, "recall": subsets.recall}
_RANGE = {"fid": (0.0, torch.inf), "kid": (-torch.inf, torch.inf), "isc": (1.0, torch.inf), "recall": (0.0, 1.0)}
_FID_ALONE = {"kid": False, "isc": False, "prc": False, "sfid": False}


class QualityInterval(NamedTuple):
    """A value, the ends of its 95 % interval, and FID's ``bias`` due to the number of images; or NaN."""

    value: float
    low: float
    high: float
    bias: float = torch.nan


def intervals(
    features: ImageFeatures, reference: RealImages, *, resamples: int = RESAMPLES, seed: int = 0, **options: Any
) -> dict[str, QualityInterval]:
    """Return ``fid``, ``kid``, ``isc``, ``precision`` and ``recall`` with their intervals.

    Raises what :func:`.distribution.distribution` raises, and Unsupported for a set too small to leave out a tenth.
    """
    values, chosen = distribution(features, reference, **options), settings(options)
    by_metric, few = {}, _few_dominate(features)
    for name, subset_values in _VALUES.items():
        if name in values:
            wide = name == "fid" and features.features.shape[1] > WIDE
            subset_masks = _subset_masks(len(features), LEFT_OUT[name], resamples // 4 if wide else resamples, seed, chosen)
            drawn = subset_values(features, reference, subset_masks, chosen)
            variance, bias = _variance(drawn, subset_masks), torch.nan
            if name == "kid":
                variance += values["kid_std"] ** 2 / max(chosen["kid_subsets"] - 1, 1)
            if name == "fid":
                bias = _scale(subset_masks) * (float(drawn.mean()) - values[name])
            if few and name != "recall":
                variance = torch.nan
            ends = _by_share(values[name], variance) if name == "fid" else _around(values[name], variance, *_RANGE[name])
            by_metric[name] = ends._replace(bias=bias)
    if "precision" in values:
        by_metric["precision"] = _share(values["precision"], len(features))
    if "sfid" in values:  # 2023 features without a projection: subsets would take as long as those of FID again
        by_metric["sfid"] = QualityInterval(values["sfid"], torch.nan, torch.nan)
    return {name: by_metric[name] for name in values if name in by_metric}


def difference(
    first: ImageFeatures, second: ImageFeatures, reference: RealImages, resamples: int = RESAMPLES, seed: int = 0
) -> QualityInterval:
    """Return FID of ``first`` minus FID of ``second`` with its interval, for images of equal seeds.

    The same images are left out of both sets, so variation that they share does not widen the interval. Raises what
    :func:`intervals` raises, and Unsupported for sets of different length.
    """
    second.expect(first.extractor)
    if len(first) != len(second):
        raise Unsupported(f"Images are compared in pairs of one seed; there are {len(first)} and {len(second)}.",
                          remedy="Pass both sets with the same seeds in the same order.")
    chosen = settings(_FID_ALONE)
    value = distribution(first, reference, **_FID_ALONE)["fid"] - distribution(second, reference, **_FID_ALONE)["fid"]
    subset_masks = _subset_masks(len(first), LEFT_OUT["fid"], resamples, seed, chosen)
    values = subsets.fid(first, reference, subset_masks, chosen) - subsets.fid(second, reference, subset_masks, chosen)
    return _around(value, torch.nan if _few_dominate(first) or _few_dominate(second) else _variance(values, subset_masks))


def least_for_intervals(options: Mapping[str, Any]) -> int:
    """Return the smallest number of images for :func:`intervals` with these options."""
    chosen = settings(options)
    return max(LEAST, 2 * least_for_isc(chosen) if chosen["isc"] else 0, 2 * (chosen["prc_neighborhood"] + 1) if chosen["prc"] else 0)


def _subset_masks(count: int, share: float, resamples: int, seed: int, chosen: Mapping[str, Any]) -> Tensor:
    """Return subsets, (resamples, count) bool, with equal losses of each split of the Inception score."""
    if count < (least := least_for_intervals(chosen)):
        raise Unsupported(f"An interval needs {least} images, there are {count}.", remedy="Pass more images, or do without intervals.")
    strata = subsets.chunks(count, chosen) if chosen["isc"] else torch.zeros(count, dtype=torch.int64)
    return subsets.drawn(count, resamples, strata, share, seed)


def _variance(values: Tensor, subset_masks: Tensor) -> float:
    """Return the variance of the value of the whole set, from the values of its subsets."""
    return _scale(subset_masks) * float(values.var(correction=0))


def _scale(subset_masks: Tensor) -> float:
    """Return the ratio of images in a subset to images left out."""
    size = int(subset_masks[0].sum())
    return size / (subset_masks.shape[1] - size)


def _few_dominate(features: ImageFeatures) -> bool:
    """Return whether few images dominate the second moments: the distances from the mean have heavy tails."""
    rows = features.features
    centre = rows.mean(0, dtype=torch.float64)
    far = torch.cat([(part.double() - centre).square().sum(1) for part in rows.split(ROWS)])
    off = far - far.mean()
    spread = float(off.square().mean())
    return spread > 0 and float(off.pow(4).mean()) / spread**2 > max(TAILS * len(rows), _LIGHT)


def _around(value: float, variance: float, least: float = -torch.inf, most: float = torch.inf) -> QualityInterval:
    reach = Z * variance**0.5
    if reach != reach:
        return QualityInterval(value, torch.nan, torch.nan)
    return QualityInterval(value, max(value - reach, least), min(value + reach, most))


def _by_share(value: float, variance: float) -> QualityInterval:
    """Return an interval on the logarithm: FID is positive, and its scatter may grow with it."""
    reach = Z * variance**0.5
    if reach > value:  # near 0, where rounding decides the sign of FID and no logarithm exists
        return _around(value, variance, min(value, 0.0))
    factor = math.exp(reach / value) if reach == reach else torch.nan
    return QualityInterval(value, value / factor, value * factor)


def _share(value: float, count: int) -> QualityInterval:
    """Return Clopper and Pearson's interval of a fraction of ``count`` independent images."""
    hits, tail = round(value * count), NormalDist().cdf(-Z)
    low = float(betaincinv(hits, count - hits + 1, tail)) if hits else 0.0
    return QualityInterval(value, low, float(betaincinv(hits + 1, count - hits, 1 - tail)) if hits < count else 1.0)
