"""Comparisons from made-up pairs: verdicts, exit codes, and flakes and peaks at the rates of the guide, on seeds that chose no rule."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gate_examples import ENVIRONMENT, case, ok

from cachemark.core.errors import UnfairComparison
from cachemark.core.facts import Facts
from cachemark.core.result import Outcome, Status
from cachemark.gate.comparison import ConfigPairs, PairOfOutcomes, Tally, measure_until_decided, other_tokens, refuse_unfair, verdicts
from cachemark.gate.flakes import FINAL, MOST, QUIET, FlakeRule
from cachemark.stats.paired_test import Rule
from cachemark.store.rows import Verdict
from cachemark.workflows.progress import PairLines

RULE = Rule(0.1, 5)
KERNEL, OWN, PRICED = {"kernel": "sdpa"}, {"kernel": "mass"}, {"kernel": "mass", "different_kernel": "it needs it"}
NOT_FUSED = {"kernel": "math", "quality_only": "not fused"}
OF_FLAKES = Rule(0.1, 200)


def outcome(seconds: float, config: str = "linear", **changed: Any) -> Outcome:
    samples = {"latency": [seconds] * 3, "kv_allocated": [2048.0], "peak_memory": [5000.0]} | changed.pop("samples", {})
    return replace(ok(case(config)), samples=samples, unjudged="a side of a pair", **changed)


def source(effects: dict[str, float], sd: float = 0.01, seed: int = 0, spoil: Callable[..., PairOfOutcomes] = lambda pair: pair) -> Any:
    """A function that measures pairs of configurations with these effects, and counts them."""
    stream, counts = np.random.default_rng(seed), dict.fromkeys(effects, 0)

    def measure(names: list[str]) -> Iterable[PairOfOutcomes]:
        for name in names:
            counts[name] += 1
            first, second = np.exp(stream.normal(0, sd, 2))
            yield spoil(PairOfOutcomes(name, outcome(first, name), outcome(second * (1 + effects[name]), name)))

    measure.counts = counts  # type: ignore[attr-defined]
    return measure


def rows(config_pairs: dict[str, ConfigPairs], alike: str = "same", rule: Rule = RULE) -> dict[tuple[str, str], Verdict]:
    return {(r.label, r.metric): r for r in verdicts(config_pairs, rule, alike)}


@pytest.mark.parametrize(("before", "after", "verdict"), [
    (Status.OK, Status.OOM, "regressed"), (Status.OOM, Status.OK, "improved"), (Status.OOM, Status.OOM, "not_compared"),
    (Status.OK, Status.THROTTLED, "not_compared"), (Status.CONTENDED, Status.OK, "not_compared"), (Status.OK, Status.TIMEOUT, "regressed"),
    (Status.NAN_OUTPUT, Status.OK, "improved"), (Status.ERROR, Status.OK, "not_compared"), (Status.UNSUPPORTED, Status.OK, "not_compared")])
def test_a_side_that_fails_ends_its_config_with_its_status(before: Status, after: Status, verdict: str) -> None:
    def end(outcome: Outcome, status: Status) -> Outcome:
        return outcome if status is Status.OK else Outcome(outcome.case, status, log="first line\nthe last line")

    measure = source({"fails": 0.0}, spoil=lambda c: PairOfOutcomes(c.config, end(c.before, before), end(c.after, after)))
    by_row = rows(measure_until_decided(measure.counts, measure, RULE))
    one_alone = (before, after).count(Status.OK) == 1 and not {before, after} & FINAL
    assert measure.counts == {"fails": 1 + FlakeRule(RULE.family).enough if one_alone else 1}
    ((key, row),) = by_row.items()
    assert (key, row.verdict, "the last line" in row.reason) == (("fails", "status"), verdict, True)
    disturbed = {before, after} & {Status.THROTTLED, Status.CONTENDED}
    unready = after is Status.OK and before in (Status.ERROR, Status.UNSUPPORTED)
    assert row.reason.startswith("the first side does not run") is unready
    code = 5 if disturbed or unready else {"regressed": 1, "improved": 0, "not_compared": 4}[verdict]
    assert Tally((row,), 1).exit_code == code


def exact(alike: str = "same", when: int = 0, **changed: Any) -> dict[str, str]:
    """Verdicts of a configuration whose second side has something else from pair ``when`` on."""
    numbers = iter(range(99))

    def spoil(couple: PairOfOutcomes) -> PairOfOutcomes:
        given = {**changed, "samples": {**couple.after.samples, **changed.get("samples", {})}}
        return couple if next(numbers) < when else PairOfOutcomes(couple.config, couple.before, replace(couple.after, **given))

    measure = source({"configuration": 0.0}, spoil=spoil)
    return {metric: row.verdict for (_, metric), row in rows(measure_until_decided(measure.counts, measure, RULE), alike).items()}


def test_bytes_and_tokens_are_compared_exactly_unless_they_may_differ() -> None:
    plain = exact()
    assert plain == {"latency": "equivalent", "kv_allocated": "equivalent", "peak_memory": "equivalent", "output_hash": "equivalent"}
    assert exact(samples={"kv_allocated": [2080.0]}) == {**plain, "kv_allocated": "regressed"}
    assert exact(samples={"kv_allocated": [2010.0]}) == {**plain, "kv_allocated": "improved"}
    assert exact(samples={"kv_allocated": [2049.0]}) == {**plain, "kv_allocated": "changed"}, "2.00 KiB both times"
    assert exact(samples={"peak_memory": [5040.0]}) == plain
    assert exact(samples={"peak_memory": [5060.0]}) == {**plain, "peak_memory": "regressed"}
    assert exact(output_hash="beef") == {**plain, "output_hash": "changed"}
    assert exact(output_hash="beef", when=3) == {**plain, "output_hash": "changed"}, "not in every pair: not deterministic"
    assert exact(samples={"kv_allocated": [2080.0]}, when=5) == {**plain, "kv_allocated": "regressed"}
    other = {"output_hash": "beef", "samples": {"kv_allocated": [4096.0]}}
    assert exact("methods", **other) == {"latency": "equivalent", "kv_allocated": "not_compared", "peak_memory": "not_compared"}
    assert exact("methods", output_hash="beef", when=3)["output_hash"] == "changed", "it contradicts itself"
    assert exact("numerics", **other) == {"latency": "equivalent", "kv_allocated": "regressed", "peak_memory": "equivalent"}


@pytest.mark.parametrize(("alike", "verdict"), [("same", "changed"), ("methods", "changed"), ("numerics", "not_compared")])
def test_the_same_tokens_owe_the_same_images(alike: str, verdict: str) -> None:
    def compared_images(before: str, after: str) -> tuple[dict[str, Verdict], list[str]]:
        def hashed(outcome: Outcome, images: str) -> Outcome:
            return replace(outcome, facts=Facts(images_hash=images or None))

        measure = source({"c": 0.0}, spoil=lambda c: PairOfOutcomes(c.config, hashed(c.before, before), hashed(c.after, after)))
        config_pairs = measure_until_decided(measure.counts, measure, RULE)
        return {metric: row for (_, metric), row in rows(config_pairs, alike).items()}, other_tokens(config_pairs)

    by_metric, images = compared_images("aaaa", "bbbb")
    tokens = by_metric["output_hash"]
    assert (by_metric["images_hash"].verdict, tokens.verdict, tokens.reason, images) == (verdict, "equivalent", "", ["c"])
    for before, after in (("aaaa", "aaaa"), ("aaaa", ""), ("", "")):
        by_metric, images = compared_images(before, after)
        assert ("images_hash" in by_metric, by_metric["output_hash"].reason, images) == (False, "same tokens, nothing to compare", [])


@pytest.mark.parametrize(("changes", "facts", "tf32", "words"), [
    ({}, (KERNEL, KERNEL), False, ""), ({"dtype": "bfloat16"}, (KERNEL, KERNEL), False, "compute dtype: float32 and bfloat16"),
    ({"engine": "reference"}, (KERNEL, KERNEL), False, "engine: eager and reference"),
    ({"batch": 2}, (KERNEL, KERNEL), False, "batch: 1 and 2"), ({}, (KERNEL, KERNEL), True, "TF32 flag: False and True"),
    ({}, (KERNEL, OWN), False, "attention kernel: sdpa and mass"), ({}, (NOT_FUSED, PRICED), False, "attention kernel"),
    ({}, (KERNEL, PRICED), False, ""), ({}, (PRICED, KERNEL), False, ""),  # its price is the method's own
    ({}, (NOT_FUSED, NOT_FUSED), False, ""), ({}, ({}, OWN), False, ""),
])  # fmt: skip
def test_sides_that_differ_in_more_are_refused(changes: dict[str, Any], facts: tuple[dict[str, str], ...], tf32: bool, words: str) -> None:
    before, after = (replace(outcome(1.0), facts=Facts.from_json(given)) for given in facts)
    after = replace(after, case=replace(after.case, **changes))
    here, there = (replace(ENVIRONMENT, facts={"tf32": flag}) for flag in (False, tf32))
    with pytest.raises(UnfairComparison, match=words) if words else nullcontext():
        refuse_unfair(before, after, (here, there))


def row(label: str, verdict: str, metric: str = "latency", reason: str = "") -> Verdict:
    return Verdict("k", label, metric, verdict, reason)


def test_how_a_comparison_ends_also_when_time_is_up() -> None:
    equal = [row(f"c{i}", "equivalent") for i in range(18)]
    assert Tally(tuple(equal), 18).exit_code == 0
    assert Tally((*equal, row("x", "regressed")), 19).exit_code == 1
    assert Tally((*equal, row("x", "inconclusive"), row("y", "inconclusive")), 20).exit_code == 0, "a tenth may stay open"
    assert Tally((*equal, *(row(f"o{i}", "inconclusive") for i in range(3))), 21).exit_code == 3
    assert Tally((*equal, row("x", "changed", "output_hash")), 18).exit_code == 1
    assert Tally((*equal, row("x", "changed", "output_hash")), 18, fail_on_change=False).exit_code == 0
    assert Tally((*equal, row("x", "changed", "kv_allocated")), 18).exit_code == 0, "less than is printed"
    assert Tally(tuple(equal), 19).exit_code == 4
    assert Tally(tuple(equal), 19, min_coverage=0.9).exit_code == 0
    assert Tally((*equal, row("x", "not_compared", "status", "ok then, throttled now: …")), 19).exit_code == 5
    assert Tally((), 0).exit_code == 4
    broken = tuple(row(f"c{i}", "not_compared", "status", "the first side does not run, error then, ok now: TypeError") for i in range(3))
    assert Tally(broken, 3).exit_code == 5, "a first side that runs nowhere is no pass"
    assert Tally((*broken[:2], row("c2", "equivalent")), 3).exit_code == 4, "this configuration ran: the code can be driven"
    measure, rounds = source({"slower": 0.8, "noisy": 0.0}, sd=0.3), iter(range(8))
    measured_pairs = measure_until_decided([*measure.counts, "never"], lambda names: measure([n for n in names if n != "never"]), RULE,
                   lambda: next(rounds, None) is not None)
    by_row = rows(measured_pairs)
    assert measure.counts == {"slower": 8, "noisy": 8}
    assert {by_row[config, "latency"].verdict for config in measure.counts} == {"inconclusive"}
    assert by_row["never", "status"].verdict == "not_compared"
    assert Tally(tuple(by_row.values()), 3, min_coverage=0.5).exit_code == 3


def judged(fails: Callable[[int, int], bool], peak: Callable[[int, int], float] = lambda n, side: 5000.0,
           rounds: int = 99) -> tuple[dict[str, Verdict], int]:
    """Rows of one configuration by metric, and how many pairs it took; ``fails``: whether side 0 or 1 of the n-th pair fails, n from 1."""
    count = 0

    def side(side: int) -> Outcome:
        good = replace(ok(case("linear")), samples={"latency": [1.0] * 3, "peak_memory": [peak(count, side)]}, unjudged="a side")
        return Outcome(good.case, Status.TIMEOUT, log="it hung") if fails(count, side) else good

    def measure(names: list[str]) -> list[PairOfOutcomes]:
        nonlocal count
        count += 1
        return [PairOfOutcomes(name, side(0), side(1)) for name in names]

    config_pairs = measure_until_decided(["configuration"], measure, OF_FLAKES, lambda: count < rounds)
    return {row.metric: row for row in verdicts(config_pairs, OF_FLAKES)}, count


def test_lines_state_the_pairs_until_the_next_decision(capsys: pytest.CaptureFixture[str]) -> None:
    lines, good = PairLines(), ok(case("linear"))

    def measure(names: list[str]) -> list[PairOfOutcomes]:
        lines.measured(pair := PairOfOutcomes(names[0], good, good), "times")
        return [pair]

    measure_until_decided(["a"], measure, OF_FLAKES, left=lines.left)
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith("[1/6] a, pair 1; at least 5 more, about")
    assert last == "[6/6] a, pair 1"


def test_one_failure_is_a_flake_and_a_side_that_keeps_failing_has_a_cause() -> None:
    for side in (0, 1):
        by_metric, count = judged(lambda n, which, side=side: (n, which) == (3, side))
        assert {name: row.verdict for name, row in by_metric.items()} == {
            "status": "equivalent", "latency": "equivalent", "peak_memory": "equivalent", "output_hash": "equivalent"}
        assert count == 3 + QUIET
        assert Tally(tuple(by_metric.values()), 1).exit_code == 0
    by_metric, count = judged(lambda n, side: side == 1)
    assert (count, {name: row.verdict for name, row in by_metric.items()}) == (1 + FlakeRule(200).enough, {"status": "regressed"})
    assert judged(lambda n, side: side == 1 and n > 4)[0]["status"].verdict == "regressed"
    both, count = judged(lambda n, side: True)
    assert (count, both["status"].verdict) == (1, "not_compared"), "both at once is no flake"
    by_metric, count = judged(lambda n, side: side == 1 and n in (1, 3))
    assert (count, by_metric["status"].verdict) == (1 + MOST, "inconclusive")
    assert Tally(tuple(by_metric.values()), 1).exit_code == 3
    assert judged(lambda n, side: side == 1, rounds=2)[0]["status"].verdict == "inconclusive", "time was up before it could be told"


def false_nights(rate: float, nights: int, stream: np.random.Generator, configs: int = 200, pairs: int = 7) -> float:
    """The share of nights without a change in which a failure is taken for a cause, if either side of each pair may fail by chance."""
    rule, wrong = FlakeRule(configs), 0

    def caused() -> bool:
        further = tries = 0
        while rule.open(further, tries):
            further, tries = further + int(stream.random() < rate), tries + 1
        return rule.caused(further)

    for suspects in stream.binomial(configs, 1 - (1 - rate) ** (2 * pairs), nights):
        wrong += any(caused() for _ in range(suspects))
    return wrong / nights


@pytest.mark.parametrize("rate", [1e-4, 1e-3, 1e-2])
def test_flakes_fail_no_more_nights_than_stated(rate: float) -> None:
    """Without trying again 12, 63 and all but 100 % of such nights failed."""
    assert false_nights(rate, 400, np.random.default_rng(2201)) <= 0.05


def night_of_peaks(stream: np.random.Generator, configs: int, sd: float, grown: float = 1.0) -> list[str]:
    """Verdicts on the peaks of a night, the second side's being ``grown`` times the first's in the first configuration."""
    def side(name: str, factor: float) -> Outcome:
        peak = 5e6 * factor * float(np.exp(stream.normal(0, sd)))
        return replace(ok(case(name)), samples={"latency": [1.0] * 3, "peak_memory": [peak]}, unjudged="a side")

    rule, names = Rule(0.1, configs), [f"configuration {number}" for number in range(configs)]
    config_pairs = measure_until_decided(
        names, lambda left: [PairOfOutcomes(n, side(n, 1.0), side(n, grown if n == names[0] else 1.0)) for n in left], rule)
    return [row.verdict for row in verdicts(config_pairs, rule) if row.metric == "peak_memory"]


def test_a_peak_that_grew_is_found_through_its_noise_or_without_it() -> None:
    """By the worst pair, nearly every such night failed."""
    assert "regressed" not in night_of_peaks(np.random.default_rng(2203), 40, 0.0075)
    first, *others = night_of_peaks(np.random.default_rng(2204), 5, 0.005, grown=1.03)
    assert (first, "regressed" in others) == ("regressed", False)
    for size, verdict in ((5040.0, "equivalent"), (5060.0, "regressed"), (4900.0, "improved")):
        by_metric, count = judged(lambda n, side: False, lambda n, side, size=size: size if side else 5000.0)
        assert (count, by_metric["peak_memory"].verdict) == (6, verdict)
