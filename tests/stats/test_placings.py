"""Placings: valid tests of each pair, one error rate over all rankings, and claims in both directions."""

import math

import numpy as np
import pytest
import scipy

from cachemark.stats.gaffke import chance_at_most
from cachemark.stats.placings import Ranking, chances_of_pairs, placings
from cachemark.stats.two_samples import p_greater
from studies import placing_study


def test_unbounded_values_are_compared_by_the_exact_sign_test_and_bounded_ones_by_their_mean() -> None:
    apart = np.random.default_rng(0).normal(0.05, 0.2, (3, 40)).clip(-1, 1)
    wins = np.maximum((apart > 0).sum(axis=1), (apart < 0).sum(axis=1))
    by_signs, first = chances_of_pairs(apart, math.inf)
    assert by_signs == pytest.approx(scipy.stats.binom.sf(wins - 1, 40, 0.5), rel=1e-5)
    assert list(first) == list((apart > 0).sum(axis=1) * 2 >= 40)
    for digits in (8, 1):  # many distinct differences, and few that are counted
        rounded = apart.round(digits)
        p, first = chances_of_pairs(rounded, 1.0)
        assert p == pytest.approx([chance_at_most(row if up else -row, 0.0, -1.0) for row, up in zip(rounded, first, strict=True)])


def test_a_place_counts_the_better_methods_and_more_rankings_claim_less() -> None:
    stream = np.random.RandomState(0)
    ranking = Ranking({name: list(stream.binomial(4, p, 128) / 4) for name, p in (("a", 1.0), ("b", 0.98), ("c", 0.9), ("d", 0.5))}, 1.0)
    alone = placings({"": ranking})[""]
    assert [(name, placing.place, placing.behind, placing.tied, placing.ahead) for name, placing in alone.items()] == [
        ("a", 1, (), ("b",), ("c", "d")), ("b", 1, (), ("a",), ("c", "d")), ("c", 3, ("a", "b"), (), ("d",)),
        ("d", 4, ("a", "b", "c"), (), ())]
    others = Ranking({"a": [0.0, 0.0], "b": [0.0, 0.0]}, 1.0)
    among = placings({"": ranking, **{str(k): others for k in range(10**4)}})[""]
    assert set(among["c"].behind) < set(alone["c"].behind)
    assert all(placing.tied for placing in placings({"": Ranking({"a": [1.0], "b": [0.0]}, 1.0)})[""].values()), "one seed claims nothing"


def test_the_study_counts_wrong_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing_study, "SEEDS", (64, 256))
    rows = {(row["truth"], row["seeds"]): row for row in placing_study.table(0.01, 1)}
    assert all(row[placing_study.USED] <= 0.15 for row in rows.values()), "of 20 reports"
    assert rows["quality: all equal", 64][placing_study.UNCORRECTED] > 0.2
    assert rows["quality: steps of 2 points", 256]["differences claimed"] > rows["quality: steps of 2 points", 64]["differences claimed"]


def test_two_samples_are_told_apart_by_ranks_exactly_even_if_few() -> None:
    assert p_greater([[1.0, 1.0, 1.0], [0.6] * 32, [0.0, 0.05, 0.15]], [0.1, 0.2, 0.3]) == pytest.approx([1 / 20, 1 / 6545, 19 / 20])
    assert p_greater([[1.0] * 3], [1.0] * 3)[0] > 0.5, "ties tell nothing"


@pytest.mark.parametrize(("size", "others"), [(3, 40), (32, 32), (64, 20), (33, 64), (64, 500)])
def test_two_samples_are_told_apart_as_by_scipy(size: int, others: int) -> None:
    stream = np.random.default_rng(size)
    other, smooth = stream.normal(0, 1, others), stream.normal(0.2, 1, (20, size))
    for digits in (8, 0):  # without and with ties
        rows, than = smooth.round(digits), other.round(digits)
        method = "exact" if min(size, others) <= 32 else "asymptotic"
        expected = scipy.stats.mannwhitneyu(rows, than[None, :], alternative="greater", method=method, axis=1).pvalue
        assert p_greater(rows.tolist(), than.tolist()) == pytest.approx(expected, rel=1e-9)
    assert p_greater([[1.0] * 64], [1.0] * 64)[0] == 1.0, "all values are equal"
