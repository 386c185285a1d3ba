"""Intervals of quality values: how much they would vary with other seeds.

Every interval is one of 95 % for sets of the same number of images, with the reference taken as given: it tells methods apart, and it
does not hold the value that infinitely many images would have, because FID and Inception score are biased in the number of images.

- **precision** is a mean over images, each inside the manifold of the reference or not: Clopper and Pearson's interval of a share.
- **FID, KID, Inception score, recall**: a delete-d jackknife (Shao and Wu, The Annals of Statistics 17, 1989). A random tenth of the
  images, for recall a quarter, is left out again and again; the variance of the values of what is left, times (n − d) / d, estimates
  that of the figure of the whole set; the ends are ±1.96 of its root, for FID of its logarithm's. A bootstrap would not do: an image drawn
  twice lies at a distance of 0 from its copy, which shrinks the manifold that recall measures, biases KID, and takes away from the rank of
  the covariance.
- **KID** is printed by torch-fidelity as a mean over random subsets of the set: the variance of that mean is added.
- **No interval** where few images decide: all but precision and recall follow second and higher moments of the features, and where
  their squared distances from the middle have a kurtosis of more than 0.03 of the number of images, how far a value scatters is not
  known from one set. Both ends are then NaN. Simulated in docs/results/validation.md.

FID is too high for few images. The same subsets say by how much: what a tenth fewer images add, times (n − d) / d, is about what the images
lack that there could be (``bias``).

What remains is on the wide side where images are as good as real, because the values are then quadratic in what the draws do. Over 24
sets of 2000 real scenes (128 features) widths were 1.4 times what the sets scattered by for FID, 1.7 for the Inception score, 1.3 for
recall, and right to 10 % for KID and precision. A bootstrap of FID is 1.9 times too wide at as many images per feature. Where images are
worse than real, all are right.

Images count as independent draws. Where each class is drawn equally often they are not quite, and widths are a little too large.
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
from .distribution import distribution, settings
from .image_features import ImageFeatures, RealImages

Z = NormalDist().inv_cdf(0.975)  # half the width of an interval of 95 %, in standard errors
LEFT_OUT = {"fid": 0.1, "kid": 0.1, "isc": 0.1, "recall": 0.25}  # share of the images that a subset lacks; recall jumps, and needs more
RESAMPLES = 200  # the width of an interval is then itself known to about 5 %
LEAST = 20  # images below which a width would be noise
TAILS = 0.03  # kurtosis of squared distances over the number of images, above which the images leave the scatter of FID open
_LIGHT = 8.0  # a kurtosis that is light enough at any number of images: of d normal features it is 3 + 12 / d
ALIKE = 0.5  # share of images found again in the reference, from which on they are called the same
_FIGURES = {"fid": subsets.fid, "kid": subsets.kid, "isc": subsets.isc, "recall": subsets.recall}
_RANGE = {"fid": (0.0, torch.inf), "kid": (-torch.inf, torch.inf), "isc": (1.0, torch.inf), "recall": (0.0, 1.0)}
_FID_ALONE = {"kid": False, "isc": False, "prc": False}


class QualityInterval(NamedTuple):
    """A value and the ends of its 95 % interval, NaN where there is none. ``bias``: about how much of a FID is due to the number of
    images, NaN of other values."""

    value: float
    low: float
    high: float
    bias: float = torch.nan

    @property
    def span(self) -> tuple[float, float, float]:
        """The value and both ends."""
        return self.value, self.low, self.high


def intervals(
    features: ImageFeatures, reference: RealImages, *, resamples: int = RESAMPLES, seed: int = 0, **options: Any
) -> dict[str, QualityInterval]:
    """``fid``, ``kid``, ``isc``, ``precision``, ``recall`` as of :func:`~.distribution`, each with its
    interval. Raises what that raises, and Unsupported for a set of which no tenth can be left out."""
    values, chosen = distribution(features, reference, **options), settings(options)
    by_metric, few = {}, _few_decide(features)
    for name, figures in _FIGURES.items():
        if name in values:
            subset_masks = _kept(len(features), LEFT_OUT[name], resamples, seed, chosen)
            drawn = figures(features, reference, subset_masks, chosen)
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
    return {name: by_metric[name] for name in values if name in by_metric}


def fid_interval(features: ImageFeatures, reference: RealImages, resamples: int = RESAMPLES, seed: int = 0) -> QualityInterval:
    """FID from the features of a set of images, with its interval. Raises what :func:`intervals` raises."""
    return intervals(features, reference, resamples=resamples, seed=seed, **_FID_ALONE)["fid"]


def difference(
    one: ImageFeatures, other: ImageFeatures, reference: RealImages, resamples: int = RESAMPLES, seed: int = 0
) -> QualityInterval:
    """FID of ``one`` minus that of ``other``, with its interval, where image i of both has the same seed and condition.

    The same images are left out of both, so what the two sets share by their seeds does not widen the interval. Raises what
    :func:`intervals` raises, and Unsupported for sets of different length.
    """
    other.expect(one.extractor)
    if len(one) != len(other):
        raise Unsupported(f"Images are compared in pairs of one seed; there are {len(one)} and {len(other)}.",
                          remedy="Give both sets with the same seeds in the same order.")
    chosen = settings(_FID_ALONE)
    value = distribution(one, reference, **_FID_ALONE)["fid"] - distribution(other, reference, **_FID_ALONE)["fid"]
    subset_masks = _kept(len(one), LEFT_OUT["fid"], resamples, seed, chosen)
    figures = subsets.fid(one, reference, subset_masks, chosen) - subsets.fid(other, reference, subset_masks, chosen)
    return _around(value, torch.nan if _few_decide(one) or _few_decide(other) else _variance(figures, subset_masks))


def real_floor(real: ImageFeatures, reference: RealImages, count: int, resamples: int = RESAMPLES, seed: int = 0) -> QualityInterval:
    """FID of ``count`` real images that are not in the reference: what a perfect generator would get with so many images.

    Raises what :func:`intervals` raises, and Unsupported where ``real`` are fewer, or are images of the reference.
    """
    chosen = real.first(count)
    reference.expect(chosen.extractor)
    stored_rows = [{row.tobytes() for row in x.half().numpy()} for x in (reference.features, chosen.features)]  # as files store them
    again = len(stored_rows[0] & stored_rows[1])
    if again > ALIKE * count:
        raise Unsupported(f"{again} of {count} images are in the reference itself: their FID says nothing about other real images.",
                          remedy="Give real images that the reference was not made of.")
    return fid_interval(chosen, reference, resamples, seed)


def _kept(count: int, share: float, resamples: int, seed: int, chosen: Mapping[str, Any]) -> Tensor:
    """The subsets, (resamples, count) bool. Each split of the Inception score, where that is wanted, loses the same number."""
    least = max(LEAST, 2 * chosen["isc_splits"] if chosen["isc"] else 0, 2 * (chosen["prc_neighborhood"] + 1) if chosen["prc"] else 0)
    if count < least:
        raise Unsupported(f"An interval needs {least} images, there are {count}.", remedy="Give more images, or do without intervals.")
    strata = subsets.chunks(count, chosen) if chosen["isc"] else torch.zeros(count, dtype=torch.int64)
    return subsets.drawn(count, resamples, strata, share, seed)


def _variance(figures: Tensor, subset_masks: Tensor) -> float:
    """Variance of the value of the whole set, from those of its subsets of one size."""
    return _scale(subset_masks) * float(figures.var(correction=0))


def _scale(subset_masks: Tensor) -> float:
    """Images that are left over images that are left out."""
    size = int(subset_masks[0].sum())
    return size / (subset_masks.shape[1] - size)


def _few_decide(features: ImageFeatures) -> bool:
    """Return whether few images decide what second moments are: their distances from the middle have heavy tails for so many."""
    rows = features.features.double()
    far = (rows - rows.mean(0)).square().sum(1)
    off = far - far.mean()
    spread = float(off.square().mean())
    return spread > 0 and float(off.pow(4).mean()) / spread**2 > max(TAILS * len(rows), _LIGHT)


def _around(value: float, variance: float, least: float = -torch.inf, most: float = torch.inf) -> QualityInterval:
    reach = Z * variance**0.5
    if reach != reach:
        return QualityInterval(value, torch.nan, torch.nan)
    return QualityInterval(value, max(value - reach, least), min(value + reach, most))


def _by_share(value: float, variance: float) -> QualityInterval:
    """As :func:`_around` on the logarithm: a FID is above 0, and where tails are heavy its scatter grows with it."""
    if value <= 0:
        return _around(value, variance, 0.0)
    factor = math.exp(Z * variance**0.5 / value) if variance == variance else torch.nan
    return QualityInterval(value, value / factor, value * factor)


def _share(value: float, count: int) -> QualityInterval:
    """Clopper and Pearson's interval of a share of ``count`` independent images."""
    hits, tail = round(value * count), NormalDist().cdf(-Z)
    low = float(betaincinv(hits, count - hits + 1, tail)) if hits else 0.0
    return QualityInterval(value, low, float(betaincinv(hits + 1, count - hits, 1 - tail)) if hits < count else 1.0)
