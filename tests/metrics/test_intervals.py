"""Intervals are as wide as new sets of images scatter, with torch-fidelity's values of subsets."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from cachemark.core.errors import Unsupported
from cachemark.metrics.compute import subsets
from cachemark.metrics.compute.distribution import distribution, settings
from cachemark.metrics.compute.image_features import ImageFeatures
from cachemark.metrics.compute.quality_intervals import QualityInterval, difference, intervals
from metrics.toys import drawn, reference
from support.later import later

fidelity = later("torch_fidelity")

FEW: Mapping[str, Any] = {"kid_subset_size": 60, "kid_subsets": 10, "isc_splits": 4}
N = 120


def only(features: ImageFeatures, rows: torch.Tensor) -> ImageFeatures:
    return ImageFeatures(features.extractor, features.features[rows], features.logits[rows])


def test_subsets_leave_out_as_many_of_each_stratum() -> None:
    chosen = settings({**FEW, "isc_splits": 7})
    strata = subsets.chunks(N, chosen)
    masks = subsets.drawn(N, 50, strata, 0.1, 0)
    assert [int((~masks)[:, strata == i].sum(1).unique()) for i in range(7)] == [2] * 7
    assert len(masks.unique(dim=0)) == 50
    assert (masks.sum(0) < 50).all(), "each image is left out now and then"
    assert torch.equal(masks, subsets.drawn(N, 50, strata, 0.1, 0))
    assert not torch.equal(masks, subsets.drawn(N, 50, strata, 0.1, 1))


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_the_figures_of_subsets_are_those_of_torch_fidelity(shift: float) -> None:
    features, real = drawn(N, 1, shift), reference(keep=108)
    chosen = settings(FEW)
    split = subsets.chunks(N, chosen)
    masks = subsets.drawn(N, 12, split, 0.1, 0)
    assert int(masks[0].sum()) == 108
    fid, kid, isc, recall = (f(features, real, masks, chosen) for f in (subsets.fid, subsets.kid, subsets.isc, subsets.recall))
    of_subset = {**chosen, "kid_subsets": 1, "kid_subset_size": 108}
    theirs = [fidelity.metric_kid.kid_features_to_metric(only(features, k).features, real.features, **of_subset) for k in masks]
    theirs_kid = torch.tensor([scores["kernel_inception_distance_mean"] for scores in theirs]).double()
    assert torch.allclose(kid - kid[0], theirs_kid - theirs_kid[0], atol=1e-4 * float(theirs_kid.std()))
    for r, k in enumerate(masks):
        part, order = only(features, k), split[k].argsort(stable=True)
        alone = distribution(part, real, kid=False, isc=False)
        assert float(fid[r]) == pytest.approx(alone["fid"], rel=1e-5)
        assert float(recall[r]) == pytest.approx(alone["recall"])
        score = fidelity.metric_isc.isc_features_to_metric(part.logits[order], splits=4, shuffle=False)
        assert float(isc[r]) == pytest.approx(score["inception_score_mean"], rel=1e-6)
    assert min(float(x.std()) for x in (fid, kid, isc, recall)) > 0


def test_the_whole_set_has_the_inception_score_of_torch_fidelity() -> None:
    """The splits are torch-fidelity's, of unequal sizes too."""
    for options in ({"isc_splits": 7}, {"isc_splits": 7, "samples_shuffle": False}, {"isc_splits": 7, "rng_seed": 3}):
        features, chosen = drawn(N - 3, 2), settings(options)
        score = subsets.isc(features, reference(), torch.ones(1, N - 3, dtype=torch.bool), chosen)
        expected = distribution(features, reference(), fid=False, kid=False, prc=False, **options)
        assert float(score) == pytest.approx(expected["isc"], rel=1e-6)


SETS = 120


def covered(ends: list[QualityInterval], centre: float, scale: float = 1.0) -> float:
    """Share of intervals, each made ``scale`` times as wide, that hold ``centre``."""
    return sum(f.value - scale * (f.value - f.low) <= centre <= f.value + scale * (f.high - f.value) for f in ends) / len(ends)


def test_an_interval_covers_what_it_says() -> None:
    """Of sets that differ by their seed only."""
    real = reference()
    many = [intervals(drawn(N, i, 0.1), real, resamples=60, **FEW) for i in range(SETS)]
    for name in ("fid", "kid", "isc", "precision", "recall"):
        values = torch.tensor([by_metric[name].value for by_metric in many], dtype=torch.float64)
        spread, centre = float(values.std()), float(values.mean())
        ends = [by_metric[name] for by_metric in many if not math.isnan(by_metric[name].low)]
        counts = name in ("precision", "recall")
        assert len(ends) == SETS if counts else 0.6 * SETS < len(ends) < SETS, "few images dominate, so some sets have no interval"
        width = sum(f.high - f.low for f in ends) / len(ends)
        assert covered(ends, centre) >= 0.91, name
        assert 0.85 <= width / (2 * 1.96 * spread) <= 1.6, name
        assert covered(ends, centre, 0.4) < 0.85, "less would not do"


def test_where_few_images_decide_or_there_are_too_few_there_is_no_interval() -> None:
    """Heavy tails: for four degrees of freedom the variance of a covariance is infinite."""
    draws, real = torch.Generator().manual_seed(4), reference()
    plain = torch.randn(400, 8, generator=draws)
    heavy = plain / (torch.randn(400, 4, generator=draws).square().mean(1, keepdim=True).sqrt())
    sets = {name: replace(drawn(400, 1), features=rows) for name, rows in (("plain", plain), ("heavy", heavy))}
    ends = {name: intervals(features, real, resamples=20, **FEW) for name, features in sets.items()}
    for name in ("fid", "kid", "isc"):
        assert ends["plain"][name].low < ends["plain"][name].value < ends["plain"][name].high
        assert math.isnan(ends["heavy"][name].low)
        assert math.isnan(ends["heavy"][name].high)
    assert ends["heavy"]["recall"].low <= ends["heavy"]["recall"].high, "which counts images and no moments"
    assert math.isnan(difference(sets["plain"], sets["heavy"], real, 20).low)
    for count, options, words in ((19, {"kid": False, "isc": False, "prc": False}, "An interval needs 20 images, there are 19"),
                                  (30, {"kid": False, "isc_splits": 16}, "An interval needs 32 images"),
                                  (30, {"kid": False, "isc": False, "prc_neighborhood": 15}, "An interval needs 32 images"),
                                  (30, {"kid_subset_size": 31}, "KID needs at least 31 images")):
        with pytest.raises(Unsupported, match=words):
            intervals(drawn(count, 1), reference(), **options)


def test_intervals_lie_round_the_figures_of_the_set_and_narrow_with_more_images() -> None:
    real, features = reference(), drawn(480, 5, 0.1)
    few, all_ = intervals(features.first(60), real, resamples=60, **FEW), intervals(features, real, resamples=60, **FEW)
    values = distribution(features, real, **FEW)
    assert list(all_) == ["fid", "kid", "isc", "precision", "recall"]
    for name, ends in all_.items():
        value, low, high = ends[:3]
        assert value == values[name]
        assert low < value < high
        assert high - low < 0.8 * (few[name].high - few[name].low), name
    assert intervals(features, real, resamples=60, **FEW) == all_
    assert intervals(features, real, resamples=60, seed=1, **FEW)["fid"] != all_["fid"]
    assert set(intervals(features, real, fid=False, isc=False, kid=False)) == {"precision", "recall"}


def test_the_choice_of_subsets_is_part_of_the_uncertainty_of_kid() -> None:
    """With few small subsets KID itself is a matter of luck."""
    features, real, luck, square = drawn(N, 7, 0.1), reference(), [], []
    for size, number in ((20, 4), (60, 200)):
        options = {"fid": False, "isc": False, "prc": False, "kid_subset_size": size, "kid_subsets": number}
        ends = intervals(features, real, resamples=60, **options)["kid"]
        luck.append(distribution(features, real, **options)["kid_std"] ** 2 / (number - 1))
        square.append(((ends.high - ends.low) / 2 / 1.959964) ** 2)
    assert square[0] - square[1] == pytest.approx(luck[0] - luck[1], rel=1e-4)
    assert luck[0] > 10 * luck[1]


def test_a_paired_difference_sees_what_single_ones_do_not_and_nothing_is_rarely_called_one() -> None:
    real, first = reference(), drawn(4 * N, 8, 0.1)
    other = replace(first, features=first.features * 0.95)
    paired, (a, b) = difference(first, other, real, 80), (
        intervals(x, real, resamples=80, kid=False, isc=False, prc=False)["fid"] for x in (first, other))
    assert paired.value == pytest.approx(a.value - b.value)
    assert paired.low <= paired.value <= paired.high
    assert paired.high - paired.low < 0.5 * (a.high - a.low), "what the seeds do to both cancels"
    assert paired.high < 0 or paired.low > 0
    assert max(a.low, b.low) < min(a.high, b.high), "the single ones overlap"
    assert difference(first, first, real, 20)[:3] == (0, 0, 0)
    unpaired = difference(first, replace(other, features=other.features.flip(0)), real, 80)
    assert unpaired.high - unpaired.low > 2 * (paired.high - paired.low), "the order is what pairs them"
    real = reference()
    differences = [difference(drawn(N, i), drawn(N, 1000 + i), real, 40) for i in range(60)]
    assert sum(f.low > 0 or f.high < 0 for f in differences) <= 6
    far = [difference(drawn(N, i, 0.3), drawn(N, 1000 + i), real, 40) for i in range(20)]
    assert all(f.low > 0 for f in far if not math.isnan(f.low))
    assert sum(not math.isnan(f.low) for f in far) >= 8
