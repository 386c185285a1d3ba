"""The baseline check: each kind of change gets its verdict, and uncompared values have a reason."""

import dataclasses
from typing import Any

import pytest
from gate_examples import ENVIRONMENT, SAMPLES, case, changed, exchange, ok, plan

from cachemark.core.errors import NothingMeasured
from cachemark.core.facts import Facts
from cachemark.core.result import INFRASTRUCTURE, Environment, Outcome, Status
from cachemark.gate.baseline_check import Comparison, compare
from cachemark.gate.judgement import RunJudgement
from cachemark.store.rows import Verdict


def judge(now: list[Outcome], then: list[Outcome] | None = None, environment: Environment = ENVIRONMENT, **options: Any) -> Comparison:
    return compare(exchange(plan() if then is None else then), now, environment, **options)


def row(found: Comparison, method: str, metric: str) -> Verdict:
    (only,) = (r for r in found.rows if r.label.split()[1] == method and r.metric == metric)
    return only


def with_status(status: Status) -> list[Outcome]:
    return [*plan()[:3], ok(case("rkv")) if status is Status.OK else Outcome(case("rkv"), status, log="why")]


LESS = [dataclasses.replace(o, samples={k: v for k, v in o.samples.items() if k != "kl"}) if o.ok else o for o in plan()]
CAPTURED = changed(plan(), "linear", samples={**SAMPLES, "capture_seconds": [2.0]})
SLOWER = changed(plan(), "linear", samples={"latency": [1.1, 1.21, 1.32]})
ZERO = changed(plan(), "linear", samples={"peak_memory": [0.0]})
H200 = dataclasses.replace(ENVIRONMENT, machine_class="h200")


@pytest.mark.parametrize(("then", "now", "options", "method", "metric", "verdict", "reason", "code"), [
    (CAPTURED, CAPTURED, {}, "linear", "capture_seconds", "not_compared", "a single wall time: reported without a verdict", 0),
    (plan(), SLOWER, {"threshold": 0.09}, "linear", "latency", "regressed", "", 1),
    (plan(), SLOWER, {"threshold": 0.11}, "linear", "latency", "equivalent", "", 0),
    (plan(), changed(plan(), "linear", samples={"latency": [1.0, 1.1, 9.0]}), {}, "linear", "latency", "equivalent", "", 0),
    (plan(), [*plan(), Outcome(case("full"), Status.ERROR, log="boom")], {"min_coverage": 0.5}, "linear", "latency", "not_compared",
     "the run has no full cache to compare times with", 1),
    (plan(), [*changed(plan(), "h2o", status=Status.TIMEOUT, samples={}, log="slow"), ok(case("h2o"))], {}, "h2o", "latency", "equivalent",
     "", 0),
    *((plan(), plan(), {"environment": H200}, "h2o", metric, verdict, reason, 0) for metric, verdict, reason in (
        ("latency", "not_compared", "other machine class: ci-cpu then, h200 now"),
        ("peak_memory", "not_compared", "other machine class: ci-cpu then, h200 now"), ("kv_logical", "equivalent", ""))),
    *((with_status(then), with_status(now), {}, "rkv", "status", verdict, f"{then} then, {now} now", verdict == "regressed")
      for then, now, verdict in ((Status.OK, Status.OOM, "regressed"), (Status.OOM, Status.OK, "improved"),
                                 (Status.OOM, Status.OOM, "equivalent"), (Status.OOM, Status.ERROR, "changed"))),
    (plan(), [*plan()[:3], ok(case("window"))], {"min_coverage": 0.75}, "rkv", "status", "missing", "in the baseline, not in this run", 0),
    (plan(), [*plan()[:3], ok(case("window"))], {"min_coverage": 0.75}, "window", "status", "new", "not in the baseline", 0),
    (plan(), LESS, {}, "h2o", "kl", "missing", "measured in the baseline, not in this run", 0),
    (plan(), changed(plan(), "h2o", output_hash="beef"), {}, "h2o", "output_hash", "changed", "cafe then, beef now", 0),
    (ZERO, ZERO, {}, "linear", "peak_memory", "equivalent", "", 0),
    (ZERO, plan(), {}, "linear", "peak_memory", "not_compared", "no ratio to a value of zero", 0),
    (plan(), changed(plan(), "linear", samples={"tokens_per_s_last": [0.0]}), {}, "linear", "tokens_per_s_last", "regressed", "", 1),
    (LESS, plan(), {}, "h2o", "kl", "new", "measured in this run, not in the baseline", 0)])
def test_verdicts(then: Any, now: Any, options: Any, method: str, metric: str, verdict: str, reason: str, code: int) -> None:
    comparison = judge(now, then, **options)
    judged_row = row(comparison, method, metric)
    assert (judged_row.verdict, judged_row.reason, comparison.exit_code) == (verdict, reason, code)


def test_times_are_ratios_to_the_native_full_cache_of_the_same_run_and_cell() -> None:
    slower = [dataclasses.replace(o, samples={**o.samples, "latency": [3 * v for v in o.raw("latency")]}) if o.ok else o for o in plan()]
    comparison = judge(slower)
    linear = row(comparison, "linear", "latency")
    assert (comparison.exit_code, linear.then, linear.now) == (0, pytest.approx(0.55), pytest.approx(0.55))
    only_full = judge(changed(plan(), "full", samples={"latency": [1.0, 1.0, 1.0]}))
    assert row(only_full, "linear", "latency").verdict == row(only_full, "h2o", "latency").verdict == "regressed"
    assert row(only_full, "linear", "latency").change == pytest.approx(2)
    for fields in ({"batch": 2}, {"codec": "int8"}, {"role": "other_seeds"}, {"budget": "1/2"}):
        outcomes = [ok(case("full", **fields)), ok(case("linear"))]
        comparison = judge(outcomes, outcomes)
        assert row(comparison, "linear", "latency").reason == "the baseline has no full cache to compare times with"
        assert comparison.exit_code == 0
    outcomes = [*plan(), ok(case("window", codec="int8")), ok(case("full", codec="int8", role="candidate"), latency=[1.5])]
    comparison = judge(outcomes, outcomes)
    assert row(comparison, "window", "latency").then == pytest.approx(0.55)
    assert [r.then for r in comparison.rows if r.label == "tiny full int8" and r.metric == "latency"] == [pytest.approx(0.75)]


@pytest.mark.parametrize(("metric", "values", "verdict", "code"), [  # every metric by its threshold and direction: test_metric_table.py
    *((metric, [factor * value for value in SAMPLES[metric]], verdict, int(verdict == "regressed")) for metric, factor, verdict in (
        ("latency", 1.14, "equivalent"), ("latency", 1.16, "regressed"), ("latency", 0.86, "improved"), ("latency", 0.88, "equivalent"),
        *(("tokens_per_s_last", *row) for row in ((0.86, "regressed"), (0.88, "equivalent"), (1.16, "improved"))))),
    ("kv_allocated", [2080.0], "regressed", 1), ("kv_allocated", [2010.0], "improved", 0), ("kv_logical", [1024.0], "equivalent", 0),
    ("kv_allocated", [2049.0], "changed", 0), ("kv_allocated", [2047.0], "changed", 0),
    ("kl", [0.1, 0.2, 0.303], "regressed", 1), ("kl", [0.1, 0.2, 0.297], "improved", 0),
    ("kl", [0.1, 0.2, 0.3000001], "changed", 0), ("kl", [0.1, 0.2, 0.2999999], "changed", 0),
    ("psnr", [30.0, 31.0, 31.0], "regressed", 1), ("psnr", [30.0, 31.0, 33.0], "improved", 0), ("psnr", [30.0, 31.0, 31.9], "changed", 0),
    ("psnr", [31.0, 31.0, 31.0], "changed", 0), ("psnr", [32.0, 31.0, 30.0], "changed", 0),
    ("psnr", [30.0, 31.0], "not_compared", 0),
])
def test_times_have_a_threshold_and_exact_metrics_none(metric: str, values: list[float], verdict: str, code: int) -> None:
    comparison = judge(changed(plan(), "h2o", samples={metric: values}))
    assert (row(comparison, "h2o", metric).verdict, comparison.exit_code) == (verdict, code)


def test_other_numerics_keep_bytes_exact_and_are_compared_within_their_rounding_noise() -> None:
    """Under other numerics nothing is better or worse. The batch-size reference row shows the noise; its distance from 0 counts twice."""
    for kl, reference, verdict in (
        (0.2, None, "not_compared"),  # equal, but no row has shown how far rounding alone moves it
        (0.2, 0.05, "equivalent"), (0.29, 0.05, "equivalent"), (0.31, 0.05, "not_compared"), (0.11, 0.05, "equivalent"),
        (0.05, 0.05, "not_compared"), (0.2, 0.0, "equivalent"), (0.21, 0.0, "not_compared"),
    ):
        other = dataclasses.replace(ENVIRONMENT, fingerprint="avx512")
        rows = [] if reference is None else [ok(case("full", role="other_batch"), kl=[reference, reference, reference])]
        comparison = judge([*changed(plan(), "h2o", samples={"kl": [kl, kl, kl]}), *rows], [*plan(), *rows], other)
        assert (row(comparison, "h2o", "kl").verdict, comparison.with_verdict("regressed")) == (verdict, ())
        assert row(comparison, "h2o", "psnr").verdict == "not_compared", "decibels of two noises do not add up"
        assert row(comparison, "h2o", "kv_allocated").verdict == "equivalent", "bytes are counted, so they are equal everywhere"
    other = dataclasses.replace(ENVIRONMENT, fingerprint="torch 2.7 / 4 threads")
    more_bytes = changed(plan(), "h2o", samples={"kv_allocated": [4096.0], "kl": [9.0, 9.0, 9.0]}, output_hash="beef")
    comparison = judge(more_bytes, environment=other)
    verdicts = {metric: row(comparison, "h2o", metric) for metric in ("kv_allocated", "latency", "kl", "psnr", "output_hash")}
    assert [judged_row.verdict for judged_row in verdicts.values()] == ["regressed", *["not_compared"] * 4]
    assert verdicts["kl"].reason == "other numerics fingerprint: torch 2.6 / 4 threads then, torch 2.7 / 4 threads now"
    assert (comparison.cases, comparison.exit_code) == ((1, 4), 4), "bytes alone judge no case; one ran out of memory on both sides"


def test_images_are_compared_where_hashed_and_what_the_machine_ended_is_no_verdict() -> None:
    """The tokens may be the same and what is decoded from them another picture."""
    for then, now, verdict in (("aa", "aa", "equivalent"), ("aa", "bb", "changed"), ("", "bb", None), ("aa", "", None)):
        before, after = (changed(plan(), "h2o", facts=Facts(images_hash=images or None)) for images in (then, now))
        comparison = judge(after, before)
        rows = [r.verdict for r in comparison.rows if (r.label.split()[1], r.metric) == ("h2o", "images_hash")]
        assert (rows, row(comparison, "h2o", "output_hash").verdict) == ([verdict] if verdict else [], "equivalent")
    for when in ("then", "now"):
        for status in INFRASTRUCTURE:
            ended = [*plan()[:3], Outcome(case("rkv"), status, log="why")]
            sides = (ended, plan()) if when == "now" else (plan(), ended)
            comparison = judge(*sides)
            assert (row(comparison, "rkv", "status").verdict, comparison.coverage, comparison.exit_code) == ("not_compared", 0.75, 4)
            assert judge(*sides, min_coverage=0.5).exit_code == 0


def test_too_little_coverage_and_values_that_cannot_be_compared_never_pass() -> None:
    comparison = judge(plan()[:2])
    assert (comparison.coverage, comparison.exit_code, judge(plan()[:2], min_coverage=0.5).exit_code) == (0.5, 4, 0)
    assert RunJudgement(comparison).headline.startswith("Too little was compared: ")
    worse = judge(changed(plan()[:2], "linear", samples={"kv_logical": [9999.0]}))
    assert worse.exit_code == 4
    assert any("Worst: tiny linear 1/4, kv_logical" in line for line in worse.details()), "the regression is still told"
    outcomes = [Outcome(case("linear"), Status.OK, {"latency": [1.0]}, unjudged="random weights")]
    comparison = judge(outcomes, outcomes, min_coverage=0.0)
    assert (comparison.with_verdict("not_compared"), comparison.exit_code) == (comparison.rows, 4)
    with pytest.raises(NothingMeasured, match=r"accepted/demo\.json and this run share no case: 4 there, 1 here"):
        judge([ok(case("window"))])
    for then, now in ((plan(), []), ([], plan()), ([], [])):
        with pytest.raises(NothingMeasured):
            judge(now, then)
    for edit in (lambda baseline: dataclasses.replace(baseline, metrics={}),
                 lambda baseline: dataclasses.replace(baseline, metrics={name: version + 1 for name, version in baseline.metrics.items()})):
        comparison = compare(edit(exchange(plan())), plan(), ENVIRONMENT)
        assert comparison.cases[0] == comparison.cases[1]
        assert (comparison.coverage < 0.5, comparison.exit_code) == (True, 4)
        assert any("by another definition of their metric, or by none" in line for line in comparison.details())


def test_summary_names_the_worst_of_every_kind_of_figure() -> None:
    """A KL that was next to nothing grows a thousandfold beside a latency that doubles: neither hides the other."""
    old = changed(changed(plan(), "linear", samples={"kl": [1e-6, 1e-6]}), "h2o", samples={"kl": [1e-6, 1e-6]})
    new = changed(old, "linear", samples={"kl": [1e-3, 1e-3], "latency": [2.2, 2.2, 2.2]})
    new = changed(new, "h2o", samples={"kl": [2e-3, 2e-3], "kv_logical": [2e9]})
    (line,) = [line for line in judge(new, old).details() if line.startswith("Worst: ")]
    worst = line.removeprefix("Worst: ").rstrip(".").split("; ")
    assert [part.split(":")[0] for part in worst[:3]] == ["tiny linear 1/4, latency", "tiny h2o 1/4, kv_logical", "tiny h2o 1/4, kl"]
    assert (worst[0].endswith("× full now"), worst[1].endswith("2e+09 B now")) == (True, True)
    assert worst[2:] == ["tiny h2o 1/4, kl: 1e-06 nat/token then, 0.002 nat/token now", "and 1 more"]
