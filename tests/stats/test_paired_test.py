"""The test on pairs against enumeration and against SciPy, what it does not depend on, and the verdicts of a family."""

import dataclasses
import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy
from hypothesis import given, settings, strategies as st

from cachemark.core.errors import CachemarkError
from cachemark.stats import paired_test as pairs
from cachemark.stats.paired_test import Effect, PairRatios, Rule, hodges_lehmann, interval, judge, log_ratios, needed, screen
from cachemark.stats.sign_flip import MOST_PAIRS, sign_flip

RULE = Rule(delta=0.02, family=200)
rows = st.lists(st.floats(-0.3, 0.3).map(lambda x: round(x, 4)), min_size=1, max_size=12)


def noise(configs: int, n: int, sd: float = 0.005, centre: float = 0.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(centre, sd, (configs, n))


@settings(max_examples=40)
@given(rows)
def test_sign_flip_is_what_enumeration_gives(d: list[float]) -> None:
    """The share of choices of signs whose mean is at least the one found. Integers, so sums are exact."""
    whole = [round(10_000 * x) for x in d]
    sums = [sum(s * x for s, x in zip(signs, whole, strict=True)) for signs in itertools.product((1, -1), repeat=len(d))]
    assert float(sign_flip(d)) == sum(flipped >= sum(whole) for flipped in sums) / len(sums)


def test_sign_flip_goes_from_the_least_to_one_and_rejects_equal_sides_as_often_as_it_says() -> None:
    for n in (1, 6, 17, MOST_PAIRS):
        d = np.linspace(0.01, 0.02, n)
        assert float(sign_flip(d)) == 2.0**-n
        assert float(sign_flip(-d)) == float(sign_flip(0 * d)) == 1.0
    for n in (6, 8, 9, 17):
        p = sign_flip(np.random.default_rng(n).standard_t(3, (4000, n)))
        for level in (1 / 16, 1 / 4):
            assert abs(float((p <= level).mean()) - level) < 4 * math.sqrt(level * (1 - level) / 4000)


@given(rows)
def test_hodges_lehmann_is_the_median_of_all_averages_of_two(d: list[float]) -> None:
    averages = [(a + b) / 2 for a, b in itertools.combinations_with_replacement(d, 2)]
    assert float(hodges_lehmann(d)) == pytest.approx(float(np.median(averages)), abs=1e-12)


def test_the_interval_holds_what_scipy_does_not_reject_and_covers_as_often_as_it_says() -> None:
    for n in range(1, 13):
        sums = [sum(ranks) for k in range(n + 1) for ranks in itertools.combinations(range(1, n + 1), k)]
        assert pairs.signed_rank(n).tolist() == (np.bincount(sums) / 2**n).tolist()
    for confidence in (0.5, 0.9, 0.95):
        for n in (6, 14, 17, 24):
            d = noise(1, n, seed=n)[0]
            low, high, sure = interval(d, confidence)
            assert sure >= confidence

            def p(centre: float, d: np.ndarray = d) -> float:
                return float(scipy.stats.wilcoxon(d - centre, method="exact").pvalue)

            level = (1 - sure) * (1 + 1e-9)  # the same number by another sum
            assert p(float(low) + 1e-9) > level >= p(float(low) - 1e-9)
            assert p(float(high) - 1e-9) > level >= p(float(high) + 1e-9)
    for n in (6, 17):
        low, high, sure = interval(noise(4000, n, seed=n))
        covered = float(((low <= 0) & (high >= 0)).mean())
        assert abs(covered - sure) < 4 * math.sqrt(sure * (1 - sure) / 4000)


@pytest.mark.parametrize(("n", "sure"), [(1, 0.0), (2, 0.5), (4, 0.875), (5, 0.9375), (6, 0.90625)])
def test_few_pairs_say_how_little_they_carry(n: int, sure: float) -> None:
    d = np.arange(n) / 100
    low, high, confidence = interval(d)
    assert confidence == sure
    assert bool(low <= hodges_lehmann(d) <= high)
    assert n > 5 or (float(low), float(high)) == (d[0], d[-1])
    assert bool(pairs.within(0 * d, RULE)) == (n >= 5), "equality is not shown by so few pairs, however equal they are"


def test_arrays_of_configs_give_what_the_configs_give_alone() -> None:
    for n in (6, 13):
        d = noise(7, n)
        assert sign_flip(d).tolist() == [float(sign_flip(row)) for row in d]
        assert hodges_lehmann(d).tolist() == [float(hodges_lehmann(row)) for row in d]
        assert np.stack(interval(d)[:2], axis=1).tolist() == [[float(x) for x in interval(row)[:2]] for row in d]
        assert sign_flip(d.reshape(7, 1, n)).shape == (7, 1)


def test_log_ratios_are_positive_where_the_second_side_is_worse_and_no_pair_is_refused() -> None:
    assert log_ratios([1.0, 2.0], [1.1, 2.2]) == pytest.approx([math.log(1.1)] * 2)
    assert log_ratios([[1.0, 1.0, 9.0]], [[2.0, 2.0, 1.0]]) == pytest.approx([math.log(2)]), "the median image counts"
    drifting = log_ratios([[1.0, 1.0, 3.0]], [[1.1, 3.3, 3.3]])
    assert drifting == pytest.approx([math.log(1.1)]), "images of one index were measured at the same speed of the machine"
    for words, refused in REFUSED:
        with pytest.raises(CachemarkError, match=words):
            refused()


REFUSED: tuple[tuple[str, Callable[[], object]], ...] = (
    (r"shapes \(1,\) and \(2,\) make no pairs", lambda: log_ratios([1.0], [1.0, 2.0])), ("make no pairs", lambda: log_ratios([], [])),
    ("not positive", lambda: log_ratios([1.0], [0.0])), ("not positive", lambda: log_ratios([math.nan], [1.0])),
    *(("finite numbers", lambda of=of, bad=bad: of(bad)) for of in (sign_flip, hodges_lehmann, interval, Effect.from_ratios)
      for bad in ([], 0.1, [math.inf, 0.0])),
    ("too many for the exact test", lambda: sign_flip(np.ones(MOST_PAIRS + 1))),
    ("minimum effect of 0", lambda: Rule(0, 200)), ("minimum effect of 2", lambda: Rule(2, 200)), ("family of 0", lambda: Rule(0.02, 0)),
    ("201 configurations exceed the family of 200", lambda: pairs.adjusted([1.0] * 201, RULE)),
)


def test_confirming_pairs_grow_with_the_family_and_adjusted_is_benjamini_hochberg_over_it() -> None:
    assert [Rule(0.02, m).looks for m in (1, 4, 50, 102, 103, 200, 600)] == [
        (6, 14), (8, 14), (11, 14), (12, 15), (13, 16), (13, 16), (15, 18)]
    for m in (1, 200, 600, 5000):
        first, last = Rule(0.02, m).looks
        assert pairs.LOOKS * 2.0**-first * m <= pairs.FDR < pairs.LOOKS * 2.0 ** (1 - first) * m, "one changed configuration can stand out"
        assert pairs.LOOKS * 2.0**-last * m <= pairs.FDR / 8
    p = [0.001, 0.2, 0.008, 0.039]
    ordered = sorted(p)
    expected = {x: min(1.0, min(200 * y / (k + 1) for k, y in enumerate(ordered) if y >= x)) for x in p}
    assert pairs.adjusted(p, RULE) == pytest.approx([expected[x] for x in p])


def test_screening_decides_at_the_first_look_that_can_and_a_suspect_needs_a_small_p_and_three_quarters_of_the_effect() -> None:
    wide = noise(1, 24, 0.2)[0]
    screened = screen(np.stack([*(noise(1, 24, 0.001, centre)[0] for centre in (0.0, 0.05, -0.05)), wide]), RULE)
    assert (screened.side.tolist(), screened.equal.tolist()) == ([0, 1, -1, 0], [True, False, False, False])
    assert screened.pairs.tolist() == [6, 6, 6, 24]
    up = np.linspace(0.9, 1.1, 6) * RULE.limit
    assert screen([up * 0.76, up * 0.74], RULE).side.tolist() == [1, 0]
    unsure = np.array([1.0, 1, 1, 1, 1, -20]) * RULE.limit
    assert float(hodges_lehmann(unsure)) == pytest.approx(RULE.limit)
    assert float(sign_flip(unsure)) > 1 / 2
    assert screen([unsure], RULE).side.tolist() == [0]


def config(centre: float, sd: float = 0.003, seed: int = 0, rule: Rule = RULE) -> PairRatios:
    drawn = noise(1, 24 + rule.looks[-1], sd, centre, seed)[0]
    return PairRatios(tuple(drawn[:24]), tuple(drawn[24:]))


def test_the_four_verdicts() -> None:
    configs = {"slow": config(0.06), "fast": config(-0.06), "same": config(0.0), "noisy": config(0.0, sd=0.2)}
    comparison = judge(configs, RULE)
    assert {name: j.verdict for name, j in comparison.items()} == {
        "slow": "regressed", "fast": "improved", "same": "equivalent", "noisy": "inconclusive"}
    assert comparison["slow"].adjusted == 200 * 2 * 2.0 ** -RULE.looks[0]
    assert [comparison[name].pairs for name in ("slow", "same", "noisy")] == [6 + RULE.looks[0], 6, 24]
    assert comparison["noisy"].reason.startswith("not resolved at 2 %: ")
    assert comparison["same"].reason.startswith("within 2 %: ")
    slow = comparison["slow"].effect
    assert slow.low < math.expm1(0.06) < slow.high
    assert (comparison["slow"].reason, f"{RULE.looks[0]} pairs" in str(slow)) == (str(slow), True)
    rule = dataclasses.replace(RULE, delta=0.05)
    small = judge({"a": config(0.045, sd=0.001, rule=rule)}, rule)["a"]
    assert (small.adjusted < 0.05, small.verdict) == (True, "equivalent"), "below the minimum effect, however sure"


def test_only_fresh_pairs_convict_and_a_suspect_without_them_is_never_passed() -> None:
    """A configuration that was chosen because its first pairs were bad is judged by the others."""
    biased = PairRatios(config(0.06).screening, config(0.0).fresh)
    judgement = judge({"a": biased}, RULE)["a"]
    assert (judgement.verdict, judgement.pairs) == ("equivalent", 6 + RULE.looks[0])
    assert judgement.effect == Effect.from_ratios(biased.fresh[: RULE.looks[0]])
    slow = config(0.06)
    for taken in (0, RULE.looks[0] - 1):
        judgement = judge({"a": PairRatios(slow.screening, slow.fresh[:taken])}, RULE)["a"]
        assert (judgement.verdict, judgement.adjusted) == ("inconclusive", 1.0)
        assert f"{taken} of {RULE.looks[-1]} pairs confirm" in judgement.reason
    none = judge({"a": PairRatios(slow.screening[:5])}, RULE)["a"]
    assert (none.verdict, none.effect, none.pairs, none.reason) == ("inconclusive", None, 0, "5 of the 6 pairs that are needed")


def test_pairs_stop_at_the_look_that_decides_and_needed_leads_to_the_verdict() -> None:
    """A clear change needs the fewest pairs with which one configuration can stand out, an unclear one those of the second look."""
    rule, clear = Rule(0.02, 4), config(0.06)
    unclear = np.array(clear.fresh)
    unclear[3] = -0.001
    assert rule.looks == (8, 14)
    for fresh, missing in ((clear.fresh, (8, 1, 0, 0)), (tuple(unclear), (8, 1, 6, 1))):
        taken = [needed(PairRatios(clear.screening, fresh[:count]), rule) for count in (0, 7, 8, 13)]
        assert taken == [("confirm", n) if n else ("done", 0) for n in missing]
    for fresh, verdict in ((clear.fresh[:8], "regressed"), (unclear[:13], "inconclusive"), (unclear[:14], "regressed")):
        assert judge({"a": PairRatios(clear.screening, fresh)}, rule)["a"].verdict == verdict
    for centre, sd, stages in ((0.06, 0.003, ["screen", "confirm"]), (0.0, 0.003, ["screen"]), (0.0, 0.2, ["screen"] * 5)):
        whole, have, asked = config(centre, sd), PairRatios(()), []
        while (ask := needed(have, RULE))[0] != "done":
            asked.append(ask[0])
            screening, fresh = len(have.screening) + (ask[0] == "screen") * ask[1], len(have.fresh) + (ask[0] == "confirm") * ask[1]
            have = PairRatios(whole.screening[:screening], whole.fresh[:fresh])
        assert (asked, judge({"a": have}, RULE)) == (stages, judge({"a": whole}, RULE))
    assert needed(PairRatios([0.0] * 7), RULE) == ("done", 0)
    assert needed(PairRatios([0.2, -0.2] * 4), RULE) == ("screen", 4)


def test_two_looks_keep_the_error_rate_and_the_family_is_corrected_for() -> None:
    """Exact rate over all signs of equal pairs: a configuration passes the first look, or by itself the second one."""
    for family in (1, 4, 50):
        rule = Rule(0.001, family)
        first, last = rule.looks
        signs = 1 - 2 * ((np.arange(2**last)[:, None] >> np.arange(last)) & 1)
        size = np.linspace(0.9, 1.1, last)
        p = [pairs.LOOKS * tail((signs * size)[:, :count].sum(axis=1)) for count in (first, last)]
        passed = (p[0] * family <= pairs.FDR) | (p[1] * family <= pairs.FDR)
        assert pairs.FDR / family / 2 <= float(passed.mean()) <= pairs.FDR / family
        some = np.random.default_rng(family).choice(2**last, 60)
        for row in [*some, *np.flatnonzero(passed)[:20]]:
            count, own = pairs.confirmed((signs[row] * size).tolist(), 1, rule)
            assert own == pytest.approx(min(1.0, p[0][row] if count == first else p[1][row]))
    rule = Rule(0.02, 1)
    fresh = np.linspace(0.03, 0.05, rule.looks[-1])
    fresh[:4] = -0.004, -0.005, -0.006, -0.007
    suspect = PairRatios([0.04] * 6, tuple(fresh))
    assert judge({"a": suspect}, rule)["a"].verdict == "regressed"
    many = dataclasses.replace(rule, family=51)
    assert (many.looks[-1], judge({"a": suspect}, many)["a"].verdict) == (rule.looks[-1], "inconclusive")
    assert judge({str(i): suspect for i in range(51)}, many)["0"].verdict == "regressed", "many such configurations support each other"


def tail(sums: np.ndarray) -> np.ndarray:
    """The share of equally likely values that are at least each one."""
    ordered = np.sort(sums)
    return 1 - np.searchsorted(ordered, sums - 1e-9) / len(sums)


families = st.lists(st.tuples(st.sampled_from([0.0, 0.03, 0.06, -0.06]), st.sampled_from([0.002, 0.01, 0.1]), st.integers(0, 99)),
                    min_size=1, max_size=5)


@settings(max_examples=25)
@given(families)
def test_names_and_their_order_do_not_matter_and_swapped_sides_swap_verdicts(family: list[tuple[float, float, int]]) -> None:
    configs = {str(i): config(*given_) for i, given_ in enumerate(family)}
    comparison = judge(configs, RULE)
    renamed = judge({f"other {name}": configs[name] for name in reversed(configs)}, RULE)
    assert {name.removeprefix("other "): j for name, j in renamed.items()} == comparison
    swapped = judge({n: PairRatios([-x for x in c.screening], [-x for x in c.fresh]) for n, c in configs.items()}, RULE)
    for name, judgement in comparison.items():
        assert swapped[name].verdict == {"regressed": "improved", "improved": "regressed"}.get(judgement.verdict, judgement.verdict)
        assert (swapped[name].pairs, swapped[name].adjusted) == (judgement.pairs, judgement.adjusted)


def test_equal_sides_raise_no_alarm_and_a_changed_config_does() -> None:
    """8 families of 200 configurations, noise as of a GPU with locked clocks; the bound is far above what can happen if the rate is
    held."""
    alarms = 0
    for night in range(8):
        drawn = noise(200, 24 + RULE.looks[-1], 0.004, seed=night)
        drawn[7] += math.log1p(0.05)
        comparison = judge({str(i): PairRatios(row[:24], row[24:]) for i, row in enumerate(drawn)}, RULE)
        regressed = {name for name, j in comparison.items() if j.verdict == "regressed"}
        assert "7" in regressed
        alarms += regressed != {"7"}
    assert alarms <= 1
