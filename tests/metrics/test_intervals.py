"""Intervals: as wide as fresh sets of images scatter, from values that are torch-fidelity's own on every subset."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import binomtest

from cachemark.core.errors import BadCheckpoint, Unsupported
from cachemark.metrics.compute import quality_intervals as module
from cachemark.metrics.compute import subsets
from cachemark.metrics.compute.distribution import distribution, settings
from cachemark.metrics.compute.image_features import ImageFeatures, RealImages
from cachemark.metrics.compute.quality_intervals import QualityInterval, difference, intervals
from metrics.toys import drawn, reference
from support.later import later

fidelity = later("torch_fidelity")

FEW: Mapping[str, Any] = {"kid_subset_size": 60, "kid_subsets": 10, "isc_splits": 4}
N = 120
FID = {"kid": False, "isc": False, "prc": False}


def fid_interval(features: ImageFeatures, real: RealImages, resamples: int) -> QualityInterval:
    return intervals(features, real, resamples=resamples, **FID)["fid"]


def only(seen: ImageFeatures, kept: torch.Tensor) -> ImageFeatures:
    return ImageFeatures(seen.extractor, seen.features[kept], seen.logits[kept])


# ------------------------------------------------------------------------------------------------ the values of subsets

def test_subsets_leave_out_as_many_of_each_stratum() -> None:
    chosen = settings({**FEW, "isc_splits": 7})
    strata = subsets.chunks(N, chosen)
    kept = subsets.drawn(N, 50, strata, 0.1, 0)
    assert [int((~kept)[:, strata == i].sum(1).unique()) for i in range(7)] == [2] * 7
    assert len(kept.unique(dim=0)) == 50
    assert (kept.sum(0) < 50).all(), "each image is left out now and then"
    assert torch.equal(kept, subsets.drawn(N, 50, strata, 0.1, 0))
    assert not torch.equal(kept, subsets.drawn(N, 50, strata, 0.1, 1))


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_the_figures_of_subsets_are_those_of_torch_fidelity(shift: float) -> None:
    seen, real = drawn(N, 1, shift), reference(keep=108)
    chosen = settings(FEW)
    split = subsets.chunks(N, chosen)
    kept = subsets.drawn(N, 12, split, 0.1, 0)
    assert int(kept[0].sum()) == 108
    fid, kid, isc, recall = (f(seen, real, kept, chosen) for f in (subsets.fid, subsets.kid, subsets.isc, subsets.recall))
    whole = {**chosen, "kid_subsets": 1, "kid_subset_size": 108}
    theirs = [fidelity.metric_kid.kid_features_to_metric(only(seen, k).features, real.features, **whole) for k in kept]
    theirs_kid = torch.tensor([found["kernel_inception_distance_mean"] for found in theirs]).double()
    assert torch.allclose(kid - kid[0], theirs_kid - theirs_kid[0], atol=1e-4 * float(theirs_kid.std()))
    for r, k in enumerate(kept):
        part, order = only(seen, k), split[k].argsort(stable=True)
        alone = distribution(part, real, kid=False, isc=False)
        assert float(fid[r]) == pytest.approx(alone["fid"], rel=1e-5)
        assert float(recall[r]) == pytest.approx(alone["recall"])
        score = fidelity.metric_isc.isc_features_to_metric(part.logits[order], splits=4, shuffle=False)
        assert float(isc[r]) == pytest.approx(score["inception_score_mean"], rel=1e-6)
    assert min(float(x.std()) for x in (fid, kid, isc, recall)) > 0


def test_the_whole_set_has_the_inception_score_of_torch_fidelity() -> None:
    """This fails unless the images fall into the very splits that torch-fidelity makes, also where they are not equally large."""
    for options in ({"isc_splits": 7}, {"isc_splits": 7, "samples_shuffle": False}, {"isc_splits": 7, "rng_seed": 3}):
        seen, chosen = drawn(N - 3, 2), settings(options)
        found = subsets.isc(seen, reference(), torch.ones(1, N - 3, dtype=torch.bool), chosen)
        wanted = distribution(seen, reference(), fid=False, kid=False, prc=False, **options)
        assert float(found) == pytest.approx(wanted["isc"], rel=1e-6)


def test_neighbours_are_found_where_nearly_all_are_left_out() -> None:
    seen, real = drawn(200, 3), reference()
    kept = subsets.drawn(200, 4, torch.zeros(200, dtype=torch.int64), 0.95, 0)
    found = subsets.recall(seen, real, kept, settings({}))
    wanted = [distribution(only(seen, k), real, kid=False, isc=False)["recall"] for k in kept]
    assert found.tolist() == pytest.approx(wanted)


# ------------------------------------------------------------------------------------------------ their width

SETS = 120


@pytest.fixture(scope="module")
def many() -> list[dict[str, QualityInterval]]:
    """The intervals of sets that differ by their draws alone."""
    real = reference()
    return [intervals(drawn(N, i, 0.1), real, resamples=60, **FEW) for i in range(SETS)]


def covered(found: list[QualityInterval], centre: float, scale: float = 1.0) -> float:
    """Share of intervals, each made ``scale`` times as wide, that hold ``centre``."""
    return sum(f.value - scale * (f.value - f.low) <= centre <= f.value + scale * (f.high - f.value) for f in found) / len(found)


@pytest.mark.parametrize("name", ["fid", "kid", "isc", "precision", "recall"])
def test_an_interval_covers_what_it_says(name: str, many: list[dict[str, QualityInterval]]) -> None:
    values = torch.tensor([one[name].value for one in many], dtype=torch.float64)
    spread, centre = float(values.std()), float(values.mean())
    found = [one[name] for one in many if not math.isnan(one[name].low)]
    counts = name in ("precision", "recall")
    assert len(found) == SETS if counts else 0.6 * SETS < len(found) < SETS, "where few images decide, there is none"
    width = sum(f.high - f.low for f in found) / len(found)
    assert covered(found, centre) >= 0.91
    assert 0.85 <= width / (2 * 1.96 * spread) <= 1.6
    assert covered(found, centre, 0.4) < 0.85, "less would not do"


def test_where_few_images_decide_there_is_no_interval() -> None:
    """As in a t distribution of four degrees of freedom, of which the variance of a covariance is infinite."""
    draws, real = torch.Generator().manual_seed(4), reference()
    plain = torch.randn(400, 8, generator=draws)
    heavy = plain / (torch.randn(400, 4, generator=draws).square().mean(1, keepdim=True).sqrt())
    seen = {name: replace(drawn(400, 1), features=rows) for name, rows in (("plain", plain), ("heavy", heavy))}
    found = {name: intervals(features, real, resamples=20, **FEW) for name, features in seen.items()}
    for name in ("fid", "kid", "isc"):
        assert found["plain"][name].low < found["plain"][name].value < found["plain"][name].high
        assert math.isnan(found["heavy"][name].low)
        assert math.isnan(found["heavy"][name].high)
    assert found["heavy"]["recall"].low <= found["heavy"]["recall"].high, "which counts images and no moments"
    assert math.isnan(difference(seen["plain"], seen["heavy"], real, 20).low)


def test_the_bias_of_a_fid_is_about_what_more_images_would_take_away() -> None:
    real = reference(20_000)
    few = [fid_interval(drawn(200, i), real, 60) for i in range(10)]
    lost = sum(ends.value for ends in few) / 10 - fid_interval(drawn(20_000, 11), real, 20).value
    assert sum(ends.bias for ends in few) / 10 == pytest.approx(lost, rel=0.35)
    assert math.isnan(intervals(drawn(N, 3), real, resamples=20, **FEW)["kid"].bias)


def test_a_bootstrap_would_be_too_wide_where_images_are_as_good_as_real() -> None:
    """Why images are left out, instead of being drawn with repetition."""
    real, values, ours, theirs = reference(4000), [], [], []
    for i in range(40):
        seen = drawn(60, i)
        one = fid_interval(seen, real, resamples=40)
        draws = torch.Generator().manual_seed(i)
        again = [only(seen, torch.randint(60, (60,), generator=draws)) for _ in range(40)]
        whole = torch.ones(1, 60, dtype=torch.bool)
        boot = torch.stack([subsets.fid(x, real, whole, {})[0] for x in again])
        values.append(one.value)
        theirs.append(float(boot.std()))
        if not math.isnan(one.low):
            ours.append(one.value * math.log(one.high / one.low) / (2 * 1.96))
    spread = float(torch.tensor(values).std())
    assert len(ours) > 25
    assert sum(ours) / len(ours) < 0.8 * sum(theirs) / 40
    assert sum(theirs) / 40 > 1.4 * spread


def test_intervals_lie_round_the_figures_of_the_set_and_narrow_with_more_images() -> None:
    real, seen = reference(), drawn(480, 5, 0.1)
    few, all_ = intervals(seen.first(60), real, resamples=60, **FEW), intervals(seen, real, resamples=60, **FEW)
    values = distribution(seen, real, **FEW)
    assert list(all_) == ["fid", "kid", "isc", "precision", "recall"]
    for name, ends in all_.items():
        value, low, high = ends.span
        assert value == values[name]
        assert low < value < high
        assert high - low < 0.8 * (few[name].high - few[name].low), name
    assert intervals(seen, real, resamples=60, **FEW) == all_
    assert intervals(seen, real, resamples=60, seed=1, **FEW)["fid"] != all_["fid"]
    assert set(intervals(seen, real, fid=False, isc=False, kid=False)) == {"precision", "recall"}


def test_shares_stay_shares() -> None:
    """Noise far away has no precision, and the interval says how surely."""
    far = replace(drawn(N, 6), features=drawn(N, 6).features + 100)
    found = intervals(far, reference(), resamples=20, kid=False, isc=False)
    assert found["precision"][:2] == (0, 0)
    assert found["precision"].high == pytest.approx(binomtest(0, N).proportion_ci().high)
    assert found["recall"].span == (0, 0, 0)
    near = intervals(reference().image_features, reference(), resamples=20, kid=False, isc=False)
    assert near["precision"].value == near["precision"].high == 1 > near["precision"].low
    assert near["recall"].high == 1


def test_the_choice_of_subsets_is_part_of_the_uncertainty_of_kid() -> None:
    """With few small subsets KID itself is a matter of luck."""
    seen, real, luck, square = drawn(N, 7, 0.1), reference(), [], []
    for size, number in ((20, 4), (60, 200)):
        options = {"fid": False, "isc": False, "prc": False, "kid_subset_size": size, "kid_subsets": number}
        found = intervals(seen, real, resamples=60, **options)["kid"]
        luck.append(distribution(seen, real, **options)["kid_std"] ** 2 / (number - 1))
        square.append(((found.high - found.low) / 2 / 1.959964) ** 2)
    assert square[0] - square[1] == pytest.approx(luck[0] - luck[1], rel=1e-4)
    assert luck[0] > 10 * luck[1]


# ------------------------------------------------------------------------------------------------ pairs and the floor

def test_a_paired_difference_is_narrower_and_sees_what_single_ones_do_not() -> None:
    real, one = reference(), drawn(4 * N, 8, 0.1)
    other = replace(one, features=one.features * 0.95)
    found, (a, b) = difference(one, other, real, 80), (fid_interval(x, real, 80) for x in (one, other))
    assert found.value == pytest.approx(a.value - b.value)
    assert found.low <= found.value <= found.high
    assert found.high - found.low < 0.5 * (a.high - a.low), "what the seeds do to both cancels"
    assert found.high < 0 or found.low > 0
    assert max(a.low, b.low) < min(a.high, b.high), "the single ones overlap"
    assert difference(one, one, real, 20).span == (0, 0, 0)
    unpaired = difference(one, replace(other, features=other.features.flip(0)), real, 80)
    assert unpaired.high - unpaired.low > 2 * (found.high - found.low), "the order is what pairs them"


def test_a_difference_of_nothing_is_rarely_called_one() -> None:
    real = reference()
    found = [difference(drawn(N, i), drawn(N, 1000 + i), real, 40) for i in range(60)]
    assert sum(f.low > 0 or f.high < 0 for f in found) <= 6
    far = [difference(drawn(N, i, 0.3), drawn(N, 1000 + i), real, 40) for i in range(20)]
    assert all(f.low > 0 for f in far if not math.isnan(f.low))
    assert sum(not math.isnan(f.low) for f in far) >= 8


def test_sets_that_are_no_pairs_are_refused() -> None:
    with pytest.raises(Unsupported, match="there are 120 and 119"):
        difference(drawn(N, 1), drawn(N - 1, 1), reference())
    with pytest.raises(BadCheckpoint, match="not of"):
        difference(drawn(N, 1), replace(drawn(N, 1), extractor="another"), reference())


# ------------------------------------------------------------------------------------------------ wrong input

@pytest.mark.parametrize(("count", "options", "words"), [
    (19, {"kid": False, "isc": False, "prc": False}, "An interval needs 20 images, there are 19"),
    (30, {"kid": False, "isc_splits": 16}, "An interval needs 32 images"),
    (30, {"kid": False, "isc": False, "prc_neighborhood": 15}, "An interval needs 32 images"),
    (30, {"kid_subset_size": 31}, "KID needs at least 31 images"),
])  # fmt: skip
def test_too_few_images_for_an_interval_are_counted(count: int, options: dict[str, Any], words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        intervals(drawn(count, 1), reference(), **options)


def test_what_does_not_scatter_has_no_width() -> None:
    assert module._variance(torch.ones(5).double(), torch.eye(5).bool()) == 0
