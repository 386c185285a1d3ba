"""Failures and peaks: flakes and real causes, at the rates stated in the guide. The seeds were not used to choose rules."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from gate_examples import case, ok

from cachemark.core.result import Outcome, Status
from cachemark.gate.comparison import PairOfOutcomes, Tally, measure_until_decided, verdicts
from cachemark.gate.flakes import MOST, QUIET, FlakeRule
from cachemark.stats.paired_test import Rule
from cachemark.store.rows import Verdict
from cachemark.workflows.progress import PairLines

RULE = Rule(0.1, 200)
Fails = Callable[[int, int], bool]
"""Whether the first (0) or second (1) side of the n-th pair of a configuration fails, n from 1."""


def judged(fails: Fails, peak: Callable[[int, int], float] = lambda n, side: 5000.0, rounds: int = 99) -> tuple[dict[str, Verdict], int]:
    """The rows of one configuration by metric, and how many pairs it took."""
    count = 0

    def side(side: int) -> Outcome:
        good = replace(ok(case("linear")), samples={"latency": [1.0] * 3, "peak_memory": [peak(count, side)]}, unjudged="a side")
        return Outcome(good.case, Status.TIMEOUT, log="it hung") if fails(count, side) else good

    def measure(names: list[str]) -> list[PairOfOutcomes]:
        nonlocal count
        count += 1
        return [PairOfOutcomes(name, side(0), side(1)) for name in names]

    config_pairs = measure_until_decided(["configuration"], measure, RULE, lambda: count < rounds)
    return {row.metric: row for row in verdicts(config_pairs, RULE)}, count


def test_lines_state_the_pairs_until_the_next_decision(capsys: pytest.CaptureFixture[str]) -> None:
    lines, good = PairLines(), ok(case("linear"))

    def measure(names: list[str]) -> list[PairOfOutcomes]:
        lines.measured(pair := PairOfOutcomes(names[0], good, good), "times")
        return [pair]

    measure_until_decided(["a"], measure, RULE, left=lines.left)
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
    late, _ = judged(lambda n, side: side == 1 and n > 4)
    assert late["status"].verdict == "regressed"
    both, count = judged(lambda n, side: True)
    assert (count, both["status"].verdict) == (1, "not_compared"), "both at once is no flake"
    by_metric, count = judged(lambda n, side: side == 1 and n in (1, 3))
    assert count == 1 + MOST
    assert by_metric["status"].verdict == "inconclusive"
    assert Tally(tuple(by_metric.values()), 1).exit_code == 3
    early, _ = judged(lambda n, side: side == 1, rounds=2)
    assert early["status"].verdict == "inconclusive", "time was up before it could be told"


def false_nights(rate: float, nights: int, stream: np.random.Generator, configs: int = 200, pairs: int = 7) -> float:
    """The share of nights without a change in which a failure is taken for a cause, if either side of each of so many pairs of each
    configuration may fail by chance and begin the tries."""
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
    assert first == "regressed"
    assert "regressed" not in others
    for size, verdict in ((5040.0, "equivalent"), (5060.0, "regressed"), (4900.0, "improved")):
        by_metric, count = judged(lambda n, side: False, lambda n, side, size=size: size if side else 5000.0)
        assert (count, by_metric["peak_memory"].verdict) == (6, verdict)
