"""Rows beside roofline times and beside papers' values, which are never mixed: what follows, and which flags are raised when."""

from dataclasses import replace
from typing import Any

import pytest
import report_sample as sample

from cachemark.analysis.columns import LIMITS
from cachemark.analysis.device_limits import Limits, against_limits
from cachemark.analysis.papers import PaperRow, PaperTable, paper_row, papers, published
from cachemark.analysis.report_row import ReportRow
from cachemark.core.facts import Facts, TokensPerPass
from cachemark.core.limits import Limit
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import DISTRIBUTION, Sampling

BESIDE = {"method": "linear", "budget": "1/4", "parameters": {"B": 64}}
RANDOM = "random:0/random:0"
XL = {"model": "llamagen-xl", "weights": RANDOM, "grid": (24, 24), "batch": 256, "dtype": "bfloat16", "sampling": Sampling(cfg_scale=1.75)}


def limit(least: float, nbytes: float = 0.0, flops: float = 0.0) -> dict[str, Any]:
    """A roofline time of attention and linear products, two to one."""
    return Limit(least, least, int(nbytes), int(flops), 1e10, 1e11, {"attention": least * 2 / 3, "matmul": least / 3}).to_json()


def ran(latency: float, least: dict[str, Any] | None, slope: dict[str, Any] | None = None, **changes: Any) -> Outcome:
    facts = {"kernel": "sdpa", **({"limit": least} if least else {}), **({"slope": slope} if slope else {})}
    samples = {"latency": [latency] * 5, "psnr": [30.0] * 64}
    return Outcome(sample.case(**changes), Status.OK, samples, facts=Facts.from_json(facts))


def full(latency: float = 2.0, least: float = 1.0, nbytes: float = 1e10, flops: float = 2e10) -> Outcome:
    return ran(latency, limit(least, nbytes, flops), role="baseline")


def candidate(latency: float = 1.25, least: float = 0.5, **more: Any) -> Outcome:
    return ran(latency, limit(least, 5e9, 2e10), method="linear", budget="1/4", parameters={"B": 64}, **more)


def decoding(latency: float, least: dict[str, Any] | None, **changes: Any) -> Outcome:
    """A case that decodes four tokens per step."""
    outcome = ran(latency, least, **{"method": "full", "budget": "1", "decoder": {"name": "jacobi", "window": 8}, **changes})
    rate = TokensPerPass(mean=4.0, spread=1.0, least=3.0, most=5.0)
    return replace(outcome, facts=replace(outcome.facts, different_kernel="x", tokens_per_pass=rate))


def table(*outcomes: Outcome) -> Limits:
    group = sample.group(*outcomes)
    return against_limits(group.full, group.candidates)  # type: ignore[return-value]


def texts(row: ReportRow) -> dict[str, str]:
    return {column.key: column.cell(row).text for column in LIMITS.columns}


def decoded(*outcomes: Outcome) -> ReportRow:
    return next(row for row in sample.group(*outcomes).rows if row.case.decoder)


def test_what_is_derived_from_the_least_time_and_flagged_with_its_reason() -> None:
    limits = table(full(), candidate(slope={"slope": 1e-9, "bytes_per_s": 3e9, "intercept": 0.004, "r2": 0.99}))
    assert (limits.rates, limits.parts) == ("10.0 GB/s memory bandwidth, 0.10 TFLOP/s", "attention 66.7 %, matmul 33.3 %")
    complete, linear = map(texts, limits.rows)
    assert [complete[key] for key in ("over_roofline", "mbu", "mfu", "roofline_speedup", "of_roofline")] == [
        "2.00×", "50.0 %", "10.0 %", "–", "–"]
    assert [linear[key] for key in ("roofline_time", "over_roofline", "roofline_speedup", "speedup", "of_roofline", "step_slope")] == [
        "500 ms", "2.50×", "2.00×", "1.60×", "80.0 %", "3.0 GB/s"]
    assert LIMITS.columns[-1].cell(limits.rows[1]).under == "+ 4.00 ms"
    assert not [mark for row in limits.rows for mark in row.limit_marks]
    for outcomes, flag, number in (
        ((full(latency=5.0), candidate(latency=3.0)), "low utilization", "20 %"),
        ((full(), candidate(latency=0.8)), "implausible speedup", "2.50×"),
        ((full(), candidate(latency=2.5)), "use the full cache", "2.00×"), ((full(latency=0.9), candidate()), "in a cache", "")):
        marks = {mark.text: mark.reason for row in table(*outcomes).rows for mark in row.limit_marks}
        assert number in marks[flag]


def test_a_decoder_cannot_gain_more_than_its_steps_and_its_method_allow() -> None:
    """A device that waits computes windows at no cost: with half as many FLOPs more, twice the speed is plausible."""
    for latency, expected in ((10.0, ["use the full cache"]), (4.0, []), (1.6, ["implausible speedup"])):
        limits = table(full(8.0), decoding(latency, limit(1.5)))
        row = limits.rows[1]
        assert ([mark.text for mark in row.limit_marks], limits.decoders) == (expected, True)
        assert (texts(row)["roofline_speedup"], texts(row)["of_roofline"]) == ("4.00×", f"{100 * (8.0 / latency) / 4:.1f} %")
        assert not table(full(2.0), candidate()).decoders
    for outcomes, words in (([full(2.0), decoding(0.4, None)], "4.00 tokens"), ([full(2.0), decoding(0.6, None)], ""),
                            ([full(2.0), candidate(), decoding(0.2, limit(9.0), **BESIDE)], "8.00×"),
                            ([full(2.0), candidate(), decoding(0.3, limit(9.0), **BESIDE)], "")):
        row = decoded(*outcomes)
        flagged = "implausible speedup" in [mark.text for mark in row.limit_marks]
        assert (words in row.implausible, bool(row.implausible), flagged) == (True, bool(words), bool(words))


def test_a_decoder_that_draws_other_images_is_not_compared_seed_by_seed() -> None:
    outcome = ran(0.9, None, method="full", budget="1", decoder={"name": "sjd", "window": 8})
    outcome = replace(outcome, samples={"latency": [0.9] * 5, "kl": [1e-9] * 64, "color_consistency": [0.9] * 64},
                      facts=outcome.facts | Facts.from_json({"different_kernel": "x", "decoder": {"keeps": DISTRIBUTION}}))
    row = decoded(full(2.0), outcome)
    assert (row.method, row.marks[0].text) == ("full + sjd 8", "same distribution")
    assert (row.place, bool(row.unranked)) == (None, True)


def timed(seconds: float, facts: dict[str, Any] | None = None, **changes: Any) -> Outcome:
    values = Facts.from_json({"kernel": "sdpa", **(facts or {})})
    return Outcome(sample.case(**{**XL, **changes}), Status.OK, {"latency": [seconds] * 3}, "random weights: not measured", facts=values)


FULL = timed(12.8, role="baseline")
QUARTER = timed(6.4, method="linear", parameters={"B": 144}, budget="1/4")


def measured(*outcomes: Outcome) -> list[PaperTable]:
    return [paper for paper in papers(outcomes, sample.ENVIRONMENT) if paper.here]


def line(name: str, *outcomes: Outcome) -> PaperRow:
    (paper,) = measured(*outcomes)
    return next(line for line in paper.lines if line.cell.row == name)


def test_published_least_and_ours_stand_side_by_side_for_the_cases_that_can_be_compared() -> None:
    (exported,) = measured(FULL, QUARTER)
    assert (exported.title, exported.hardware, exported.machine) == ("LineAR, Table 4", "NVIDIA A800 80 GB", "cpu-example-8")
    quarter = line("LlamaGen-XL, LineAR 1/4", FULL, QUARTER)
    assert (quarter.measured, quarter.reached) == (6.4 / 256, 2.0)
    assert quarter.remark.startswith("5.18× exceeds the 1.85×")
    assert line("LlamaGen-XL, full", FULL, QUARTER).reached is None
    for order in (1, -1):
        wide = {"dtype": "float32"}
        full, candidate = timed(30.0, role="baseline", **wide), timed(20.0, method="linear", parameters={"B": 144}, budget="1/4", **wide)
        dead = [Outcome(outcome.case, Status.OOM, log="out of memory") for outcome in (full, candidate)]
        for alternatives in (dead, [full, dead[1]], [dead[0], candidate], [full]):
            quarter = line("LlamaGen-XL, LineAR 1/4", *[*alternatives, FULL, QUARTER][::order])
            assert (quarter.measured, quarter.reached) == (6.4 / 256, 2.0)
            assert quarter.case_key == QUARTER.case.key
        alone = line("LlamaGen-XL, LineAR 1/4", *dead, QUARTER)
        assert (alone.measured, alone.reached) == (6.4 / 256, None)


def test_speedups_between_unlike_runs_are_refused_and_another_batch_budget_or_engine_is_another_row() -> None:
    facts: list[dict[str, Any]] = [{"kernel": "matmul"}, {}, {"quality_only": "needs mass"}]
    for extra, dtype in zip(facts, ("bfloat16", "float32", "bfloat16"), strict=True):
        other = timed(6.4, extra, method="linear", parameters={"B": 144}, dtype=dtype)
        assert line("LlamaGen-XL, LineAR 1/4", FULL, other).no_speedup == "not compared"
    changes: list[dict[str, Any]] = [{"batch": 96}, {"engine": "reference"}, {"codec": "int8"}]
    eighth = timed(5.0, method="linear", parameters={"B": 72}, budget="1/8")
    assert measured(FULL, eighth, *(replace(QUARTER, case=replace(QUARTER.case, **change)) for change in changes)) == []
    assert line("LlamaGen-XL, LineAR 1/6", FULL, QUARTER, eighth).how == "not in this run"


def test_rows_are_compared_with_the_papers_own_baseline_and_its_model() -> None:
    """LazyMAR compares 32 passes with 64; GtR prints seconds alone."""
    assert paper_row(published().row("GtR, MAR-H", "GtR-H, 32"), []).claimed == pytest.approx(0.81 / 0.22)
    mar = {"model": "mar-b", "batch": 128, "dtype": "float16", "grid": (16, 16)}
    full = timed(8.0, role="baseline", **{**mar, "sampling": Sampling(steps=64)})
    row = line("LazyMAR-B, 32", full, timed(2.0, method="lazymar", **{**mar, "sampling": Sampling(steps=32)}))
    assert (row.reached, row.cell.batch_stated) == (4.0, False)
    var = {"grid": (16, 16), "batch": 64, "dtype": "float16", "role": "baseline", "sampling": Sampling()}
    runs = [timed(seconds, model=model, weights=weights, **var) for seconds, model, weights in (
        (6.4, "var-d30", RANDOM), (3.2, "var-d30+d16-n8", "random:0+random:0/random:0"), (1.0, "var-d20", "trained"))]
    assert [(paper.title, paper.commands) for paper in measured(*runs)] == [("CoDe, main table", ("cachemark run code-var --device cuda",))]
    assert (line("CoDe, N = 8", *runs).reached, line("CoDe, N = 8", *runs).measured) == (2.0, 0.05)
    assert line("VAR-d20", *runs).no_speedup == "not compared"
    assert measured(runs[0]) == [], "a baseline alone measures no paper"
