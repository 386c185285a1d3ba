"""Non-inferior and placed: tests that are exact where they can be, hold at few seeds, and have one error rate over all claims."""

import math

import numpy as np
import pytest
import scipy

from cachemark.analysis.answers import Candidate, select
from cachemark.stats.gaffke import chance_at_most, chances_at_most, chances_of_rows, weights
from cachemark.stats.intervals import ratio_of_medians
from cachemark.stats.non_inferiority import ALPHA, fewest_to_show, holm, least_seeds, p_non_inferior, seeds_to_show
from cachemark.stats.placings import Ranking, chances_of_pairs, placings
from cachemark.stats.two_samples import p_greater
from studies import placing_study


def test_it_is_the_exact_binomial_test_or_the_share_of_weightings_that_lose_the_margin() -> None:
    for losses, n in ((0, 1), (0, 59), (1, 64), (5, 40), (39, 40), (40, 40)):
        gains = [-1.0] * losses + [0.0] * (n - losses)
        assert p_non_inferior([gains], 0.05, -1.0) == pytest.approx([scipy.stats.binom.cdf(losses, n, 0.05)], rel=1e-6)
    for gains in ([0.0] * 20 + [-0.25] * 5 + [0.5] * 3, [-1.0, 1.0, 0.1, 0.2], [0.01] * 30 + [-0.3], [-0.05, -0.04]):
        given = weights(np.random.RandomState(1), len(gains), 200_000)
        share = float((np.append(np.array(gains) + 1, 0.0) @ given <= 0.95).mean())
        assert p_non_inferior([gains], 0.05, -1.0) == pytest.approx([share], abs=0.004)


def test_one_number_moves_it_the_right_way_and_many_samples_are_those_one_by_one() -> None:
    some = [0.0] * 50 + [-0.25] * 4
    more, p, less = p_non_inferior([[*some, 0.0], some, [*some, -0.5]], 0.05, -1.0)
    assert more < p < less
    assert p_non_inferior([some], 0.06, -1.0) < [p] < p_non_inferior([some], 0.05, -2.0), "where more can be lost, less is shown"
    values, counts = [-0.5, 0.0, 0.25], [[1, 40, 3], [0, 64, 0], [9, 9, 9]]
    each = [chance_at_most(np.repeat(values, row).tolist(), -0.05, -1.0) for row in counts]
    assert chances_at_most(values, counts, -0.05, -1.0) == pytest.approx(each)
    rows = np.random.RandomState(2).choice([-0.5, 0.0, 0.25, 0.5], (20, 40), p=[0.1, 0.5, 0.2, 0.2])
    for digits in (rows, rows + np.linspace(0, 1e-3, 800).reshape(20, 40)):  # few distinct values, and many
        twice = [chance_at_most([*row, *row], -0.05, -1.0) for row in digits]
        assert chances_of_rows(digits, -0.05, -1.0, times=2) == pytest.approx(twice)
    assert [chance_at_most([0.1, 0.2], limit) for limit in (0.2, 0.0, -1.0)] == [1, 0, 0], "there is nothing to weigh"


def test_holm_never_falls_and_below_the_least_seeds_not_even_no_loss_shows_it() -> None:
    for p, adjusted in (([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]), ([0.9, 0.5], [1.0, 1.0]), ([], [])):
        assert holm(p) == pytest.approx(adjusted)
    for claims in (1, 12, 40):
        least = least_seeds(0.05, -1.0, claims)
        p = [holm(p_non_inferior([[0.0] * n], 0.05, -1.0) + [1.0] * (claims - 1))[0] for n in (least - 1, least)]
        assert p[1] <= ALPHA < p[0]
        assert (claims, least) in ((1, 59), (12, 107), (40, 131))


def test_the_seeds_that_would_show_it_are_the_first_that_do_and_of_many_the_fewest_of_each() -> None:
    gains = [0.0] * 60 + [-0.25] * 3 + [-0.5]
    needed = seeds_to_show(gains, 0.05, -1.0, 12) or 0
    assert needed > 107
    assert [seeds_to_show(gains, 0.05, -1.0, 12, most) for most in (needed, needed - 1)] == [needed, None]
    thrice = gains * 3
    assert (p_non_inferior([thrice], 0.05, -1.0)[0] <= ALPHA / 12) == (needed <= len(thrice))
    assert seeds_to_show([0.0] * 9, 0.05, -1.0, 12) == 107
    assert seeds_to_show([-0.1] * 9 + [0.0], 0.05, -1.0, 1) is None, "it loses more than the margin"
    assert seeds_to_show([-0.0499999] * 64, 0.05, -1.0, 1) is None, "nobody makes so many"
    for seed in range(4):
        stream = np.random.RandomState(seed)
        gains = stream.choice([-0.5, -0.25, 0.0, 0.25], (40, 24), p=[0.05, 0.1, 0.7, 0.15])
        each = [seeds_to_show(own, 0.05, -1.0, 40) for own in gains]
        needed = [number for number in each if number]
        assert len(set(needed)) > 3
        assert None in each
        fewest = [fewest_to_show(gains, 0.05, -1.0, 40, *most) for most in ((), (min(needed),), (min(needed) - 1,))]
        assert fewest == [min(needed), min(needed), None]


LOSSES = {"all or nothing": ([-1.0, 0.0], [0.05, 0.95]), "halves": ([-0.5, 0.0], [0.1, 0.9]),
          "and gains": ([-1.0, 0.0, 0.25], [0.06, 0.9, 0.04])}  # fmt: skip


@pytest.mark.parametrize("n", [16, 64, 256])
@pytest.mark.parametrize("name", LOSSES)
def test_a_report_of_twelve_that_lose_the_margin_calls_one_non_inferior_in_five_of_a_hundred_at_most(name: str, n: int) -> None:
    values, shares = LOSSES[name]
    assert math.isclose(np.dot(values, shares), -0.05)
    counts = np.random.default_rng(8).multinomial(n, shares, size=(600, 12)).reshape(-1, len(values))
    lowest = chances_at_most(values, counts, -0.05, -1.0).reshape(600, 12).min(axis=1)
    assert (12 * lowest <= ALPHA).mean() <= 0.07  # 600 reports: 0.05 and two and a half standard errors


STORES, METHODS, MARGIN, PROCESS_BIAS = 1000, 6, 0.05, 0.02
VALUES = np.array([-1.0, -0.5, 0.0, 0.5])  # gains of color consistency


def recommended(stream: np.random.Generator, losses: np.ndarray, gains: np.ndarray, seeds: int) -> list[int | None]:
    """The number of the method that each store recommends, None for the full cache, from noisy scores and times."""
    lost = losses.reshape(-1)
    chances = np.stack([lost * 0.6, lost * 0.9, 1 - 1.6 * lost, 0.1 * lost], axis=1)  # on average -lost
    counts = np.array([stream.multinomial(seeds, row) for row in chances])
    p = chances_at_most(VALUES, counts, -MARGIN, -1.0).reshape(losses.shape)
    chosen: list[int | None] = []
    for mine, speeds in zip(p, gains, strict=True):
        adjusted = holm(mine.tolist())
        full = 2.0 * np.exp(PROCESS_BIAS * stream.normal()) * (1 + 0.002 * stream.normal(size=10))
        candidates = []
        for k, speed in enumerate(speeds):
            times = 2.0 / speed * np.exp(PROCESS_BIAS * stream.normal()) * (1 + 0.002 * stream.normal(size=10))
            candidates.append(Candidate(str(k), ratio_of_medians(full.tolist(), times.tolist()), 0.5, adjusted[k] <= ALPHA))
        best, _ = select(candidates)
        chosen.append(int(best.key) if best else None)
    return chosen


def test_a_truly_worse_method_is_recommended_in_one_store_of_twenty_and_the_best_is_found() -> None:
    """The worst case: whatever is faster loses the margin exactly, and what loses it most is the fastest."""
    for seeds in (64, 256, 2000):
        stream = np.random.default_rng(seeds)
        losses = MARGIN * stream.choice([1.0, 1.0, 1.2, 2.0], (STORES, METHODS))
        shown = recommended(stream, losses, 1 + 4 * losses, seeds)
        assert sum(choice is not None for choice in shown) <= 0.05 * STORES
    stream = np.random.default_rng(7)
    losses = stream.choice([0.0, 0.01, 0.15], (STORES, METHODS), p=[0.4, 0.3, 0.3])
    gains = stream.permuted(np.tile([0.9, 1.15, 1.3, 1.5, 1.75, 2.0], (STORES, 1)), axis=1)  # further apart than process bias can move them
    truth = [max((k for k in range(METHODS) if losses[s, k] < MARGIN and gains[s, k] > 1), key=lambda k: gains[s, k], default=None)
             for s in range(STORES)]
    shown = recommended(stream, losses, gains, 1000)
    assert sum(choice == best for choice, best in zip(shown, truth, strict=True)) >= 0.9 * STORES
    worse = sum(choice is not None and losses[s, choice] >= MARGIN for s, choice in enumerate(shown))
    assert worse <= 0.05 * STORES


def test_placings_are_by_exact_tests_and_more_rankings_claim_less() -> None:
    apart = np.random.default_rng(0).normal(0.05, 0.2, (3, 40)).clip(-1, 1)
    wins = np.maximum((apart > 0).sum(axis=1), (apart < 0).sum(axis=1))
    by_signs, first = chances_of_pairs(apart, math.inf)
    assert by_signs == pytest.approx(scipy.stats.binom.sf(wins - 1, 40, 0.5), rel=1e-5)
    assert list(first) == list((apart > 0).sum(axis=1) * 2 >= 40)
    for digits in (8, 1):  # many distinct differences, and few that are counted
        rounded = apart.round(digits)
        p, first = chances_of_pairs(rounded, 1.0)
        assert p == pytest.approx([chance_at_most(row if up else -row, 0.0, -1.0) for row, up in zip(rounded, first, strict=True)])
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


def test_two_samples_are_told_apart_by_ranks_exactly_and_as_by_scipy() -> None:
    assert p_greater([[1.0, 1.0, 1.0], [0.6] * 32, [0.0, 0.05, 0.15]], [0.1, 0.2, 0.3]) == pytest.approx([1 / 20, 1 / 6545, 19 / 20])
    assert p_greater([[1.0] * 3], [1.0] * 3)[0] > 0.5, "ties tell nothing"
    for size, others in ((3, 40), (32, 32), (64, 20), (33, 64), (64, 500)):
        stream = np.random.default_rng(size)
        other, smooth = stream.normal(0, 1, others), stream.normal(0.2, 1, (20, size))
        for digits in (8, 0):  # without and with ties
            rows, than = smooth.round(digits), other.round(digits)
            method = "exact" if min(size, others) <= 32 else "asymptotic"
            expected = scipy.stats.mannwhitneyu(rows, than[None, :], alternative="greater", method=method, axis=1).pvalue
            assert p_greater(rows.tolist(), than.tolist()) == pytest.approx(expected, rel=1e-9)
        assert p_greater([[1.0] * 64], [1.0] * 64)[0] == 1.0, "all values are equal"
