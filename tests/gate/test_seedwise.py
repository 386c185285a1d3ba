"""Images compared seed by seed: verdicts, their error rate, and values without a verdict."""

import math
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from gate_examples import case, ok
from numpy.typing import NDArray

from cachemark.core import units
from cachemark.core.facts import Facts, MetricFault
from cachemark.core.result import Outcome, Status
from cachemark.gate.comparison import PairOfOutcomes
from cachemark.gate.seedwise import seedwise
from cachemark.stats.sign_flip import DRAWS, sign_flips
from cachemark.store.rows import Verdict

SEEDS = 64


def above(differences: NDArray[np.float64]) -> float:
    return sign_flips([differences])[0][0]


def pair(config: str, one: NDArray[np.float64], two: NDArray[np.float64], metric: str = "psnr") -> PairOfOutcomes:
    base = ok(case("linear"))
    sides = ({metric: list(map(float, side)), "latency": [1.0] * len(side)} for side in (one, two))
    return PairOfOutcomes(config, *(replace(base, samples=samples) for samples in sides))


def sides(change: float, share: float = 1.0, sd: float = 1.0, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """PSNR of some seeds in two sides: a share of the images of the second is ``change`` dB off, the others are the same."""
    stream = np.random.default_rng(seed)
    before, touched = stream.normal(30, 3, SEEDS), stream.random(SEEDS) < share
    return before, before + touched * (change + stream.normal(0, sd, SEEDS))


def rows(*couples: PairOfOutcomes) -> dict[tuple[str, str], Verdict]:
    return {(r.label, r.metric): r for r in seedwise({c.config: c for c in couples})}


def test_worse_and_better_are_told_apart_whichever_side_and_unit_they_have() -> None:
    by_row = rows(pair("worse", *sides(-2)), pair("better", *sides(2)), pair("same", *sides(0, sd=0.1)), pair("open", *sides(0, sd=9)))
    assert {config: row.verdict for (config, _), row in by_row.items()} == {
        "worse": "regressed", "better": "improved", "same": "equivalent", "open": "inconclusive"}
    worse = by_row["worse", "psnr"]
    assert worse.now / worse.then == pytest.approx(worse.change)  # type: ignore[operator]
    one, two = sides(-2)
    assert f"(standard error {np.std(one - two, ddof=1) / 8:.2g}, 64 seeds" in worse.reason
    assert " to " not in worse.reason, "no interval that would not hold where few images changed"
    before, after = sides(-8, share=0.25)
    assert (before == after).mean() > 0.6
    assert rows(pair("configuration", before, after))["configuration", "psnr"].verdict == "regressed"
    verdict = rows(pair("configuration", before, before - 0.1))["configuration", "psnr"]
    assert (verdict.verdict, verdict.reason.startswith("0.1 dB worse")) == ("equivalent", True)
    for metric, verdicts in (("psnr", ["improved", "regressed", "improved"]), ("kl", ["regressed", "improved", "regressed"]),
                             ("color_consistency", ["improved", "regressed", "improved"])):
        one, two = sides(2)
        pairs = pair("c", one, two, metric), pair("c", two, one, metric), pair("c", 1000 * one, 1000 * two, metric)
        assert [rows(each)["c", metric].verdict for each in pairs] == verdicts


def test_p_values_are_exact_where_few_seeds_differ_and_drawn_signs_agree_with_all_of_them() -> None:
    d = np.array([0.3, -0.1, 0.5, 0.2, -0.4, 0.7, 0.1])
    by_hand = np.mean([(np.array(s) @ d) >= d.sum() - 1e-12 for s in product((-1, 1), repeat=len(d))])
    assert above(d) == pytest.approx(by_hand)
    assert above(np.concatenate((d, np.zeros(100)))) == above(d), "seeds at which sides agree say nothing"
    assert above(np.zeros(9)) == 1.0
    d = np.random.default_rng(2).normal(0.35, 1, 40)
    exact, drawn = above(d), above(np.concatenate((d, [1e-9])))  # one more, so that signs are drawn
    assert 0.001 < exact < 0.2
    assert abs(drawn - exact) < 4 * np.sqrt(exact / DRAWS)
    assert above(np.ones(200)) == 1 / (1 + DRAWS), "never nought"


def test_equal_sides_seldom_alarm_over_a_family() -> None:
    """Of a hundred nights of twenty configurations without a change five may alarm, and then 13 or more do by a chance of 1 in 700."""
    nights = ([pair(str(n), *sides(0, sd=2, seed=100 * night + n)) for n in range(20)] for night in range(100))
    assert sum(any(row.verdict == "regressed" for row in rows(*night).values()) for night in nights) <= 12


def test_the_family_is_corrected_for_and_too_few_seeds_say_how_many_are_needed() -> None:
    """A p-value of about 0.01 is a find alone and none among forty."""
    before, after = sides(-0.6, sd=1.5, seed=4)
    assert 0.002 < above(before - after) < 0.04
    others = [pair(str(n), *sides(0, sd=1.5, seed=50 + n)) for n in range(40)]
    for family, verdict in (([], "regressed"), (others, "inconclusive")):
        assert rows(pair("configuration", before, after), *family)["configuration", "psnr"].verdict == verdict
    worst = pair("worst", np.full(5, 30.0), np.arange(10.0, 15.0))
    others = [pair(str(n), np.full(5, 30.0), np.full(5, 30.0)) for n in range(39)]
    verdict = rows(worst, *others)["worst", "psnr"]
    assert verdict.verdict == "inconclusive"
    assert verdict.reason.endswith("; alone among 40 values none can be detected with so few: 10 seeds are needed")
    alone = rows(worst)["worst", "psnr"]
    assert (alone.verdict, "needed" in alone.reason) == ("regressed", False)
    ten = pair("worst", np.full(10, 30.0), np.arange(10.0, 20.0))
    assert rows(ten, *others)["worst", "psnr"].verdict == "regressed", "as many as were said to be needed"
    assert "needed" not in rows(pair("c", *sides(0, sd=9)))["c", "psnr"].reason


def test_two_full_caches_owe_the_same_images_and_their_fidelity_is_called_nothing() -> None:
    (row,) = seedwise({"configuration": pair("configuration", np.ones(1), np.ones(1))})
    assert (row.metric, row.verdict, row.reason.endswith("no value is known seed by seed")) == ("status", "not_compared", True)
    assert seedwise({}) == []
    sixty = np.full(SEEDS, 60.0)
    by_row = rows(full(sixty, sixty))
    assert {key: row.verdict for key, row in by_row.items()} == {("full", "status"): "not_compared"}
    assert by_row["full", "status"].reason.endswith("fidelity of the full cache is to itself")
    assert rows(pair("full", sixty, sixty))["full", "psnr"].verdict == "equivalent", "a side of a plan has its own full cache beside it"
    quality = rows(full(*sides(-2), metric="color_consistency"))
    assert quality["full", "color_consistency"].verdict == "regressed", "quality is not to itself"
    ends = (replace(o, case=replace(o.case, engine="reference")) for o in full(*sides(-2)).sides)
    assert rows(PairOfOutcomes("full", *ends))["full", "psnr"].verdict == "regressed", "another code path than the judging full cache's"
    for alike, hashes, found in (
        ("same", {"then": "a", "now": "a"}, ("images_hash", "equivalent")), ("same", {"then": "a", "now": "b"}, ("images_hash", "changed")),
        ("methods", {"then": "a", "now": "b"}, ("images_hash", "changed")),
        ("numerics", {"then": "a", "now": "b"}, ("images_hash", "not_compared")),
        ("same", {"then": "a", "now": "b", "tokens": "beef"}, ("status", "not_compared")),
        ("same", {"then": "a"}, ("status", "not_compared")), ("same", {}, ("status", "not_compared"))):
        (row,) = seedwise({"full": full(sixty, sixty, **hashes)}, alike=alike)
        assert (row.metric, row.verdict) == found


@pytest.mark.parametrize(("before", "after", "verdict"), [
    (Status.OK, Status.NAN_OUTPUT, "regressed"), (Status.OK, Status.ERROR, "regressed"), (Status.OK, Status.UNSUPPORTED, "not_compared"),
    (Status.OK, Status.CONTENDED, "not_compared"), (Status.OOM, Status.OK, "not_compared"), (Status.OOM, Status.OOM, "not_compared")])
def test_a_second_side_that_alone_fails_at_its_images_has_regressed(before: Status, after: Status, verdict: str) -> None:
    good = pair("configuration", *sides(0))
    ends = [side if status is Status.OK else Outcome(side.case, status, log="NaN") for side, status in (
        (good.before, before), (good.after, after))]
    (row,) = seedwise({"configuration": PairOfOutcomes("configuration", *ends), "other": good})[:1]
    assert (row.label, row.metric, row.verdict) == ("configuration", "status", verdict)
    assert re.fullmatch("its images.*NaN", row.reason)


def full(one: NDArray[np.float64], two: NDArray[np.float64], metric: str = "psnr", **hashes: str) -> PairOfOutcomes:
    """Two full caches; ``hashes`` of their images and of the second side's tokens."""
    made, case_ = pair("full", one, two, metric), case("full")
    facts = [Facts(images_hash=hashes.get(side)) for side in ("then", "now")]
    before, after = (replace(side, case=case_, facts=own) for side, own in zip((made.before, made.after), facts, strict=True))
    return PairOfOutcomes("full", before, replace(after, output_hash=hashes.get("tokens", after.output_hash)))


@pytest.mark.parametrize("which", [0, 1])
def test_a_metric_that_failed_in_one_side_is_named(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(units.OUTSIDE, "contrast", replace(units.METRICS["psnr"], name="contrast"))
    both = pair("configuration", *sides(0, sd=0.1))
    faulty = [both.before, both.after]
    faulty[1 - which] = replace(faulty[1 - which], samples={**faulty[1 - which].samples, "contrast": [0.5] * SEEDS})
    fault = MetricFault(fault="raised", said="ValueError: no edges")
    faulty[which] = replace(faulty[which], facts=Facts(metric_faults={"contrast": fault}))
    row = rows(PairOfOutcomes("configuration", *faulty))["configuration", "contrast"]
    assert (row.verdict, row.reason) == ("not_compared", f"the {('first', 'second')[which]} side has no value of it: ValueError: no edges")
    faulty[1 - which] = replace(faulty[1 - which], samples=both.before.samples)
    assert ("configuration", "contrast") not in rows(PairOfOutcomes("configuration", *faulty)), "it never had one"


def test_figures_of_both_signs_have_the_minimum_effect_of_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a balance around 0 a share of the mean would be no effect at all."""
    monkeypatch.setitem(units.OUTSIDE, "balance", replace(units.METRICS["psnr"], name="balance", within=(-math.inf, math.inf)))
    before = np.tile([1.0, -1.0], SEEDS // 2)
    small, large = (rows(pair("configuration", before, before - off, "balance"))["configuration", "balance"].verdict
                    for off in (0.005, 0.02))
    assert (small, large) == ("equivalent", "regressed")
