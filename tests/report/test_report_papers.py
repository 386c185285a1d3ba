"""The papers' values beside the roofline times and beside ours: three columns that are never mixed."""

from dataclasses import replace
from typing import Any

import pytest
import report_sample as sample

from cachemark.analysis.papers import PaperRow, PaperTable, paper_row, papers, published
from cachemark.core.facts import Facts
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Sampling

RANDOM = "random:0/random:0"
XL = {"model": "llamagen-xl", "weights": RANDOM, "grid": (24, 24), "batch": 256, "dtype": "bfloat16", "sampling": Sampling(cfg_scale=1.75)}


def ran(seconds: float, facts: dict[str, Any] | None = None, **changes: Any) -> Outcome:
    values = Facts.from_json({"kernel": "sdpa", **(facts or {})})
    return Outcome(sample.case(**{**XL, **changes}), Status.OK, {"latency": [seconds] * 3}, "random weights: not measured", facts=values)


FULL = ran(12.8, role="baseline")
QUARTER = ran(6.4, method="linear", parameters={"B": 144}, budget="1/4")


def measured(*outcomes: Outcome) -> list[PaperTable]:
    """The tables of which a row was measured."""
    return [paper for paper in papers(outcomes, sample.ENVIRONMENT) if paper.here]


def line(name: str, *outcomes: Outcome) -> PaperRow:
    """The row of that name in the only table of which a row was measured."""
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
        full, candidate = ran(30.0, role="baseline", **wide), ran(20.0, method="linear", parameters={"B": 144}, budget="1/4", **wide)
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
        other = ran(6.4, extra, method="linear", parameters={"B": 144}, dtype=dtype)
        assert line("LlamaGen-XL, LineAR 1/4", FULL, other).no_speedup == "not compared"
    changes: list[dict[str, Any]] = [{"batch": 96}, {"engine": "reference"}, {"codec": "int8"}]
    eighth = ran(5.0, method="linear", parameters={"B": 72}, budget="1/8")
    assert measured(FULL, eighth, *(replace(QUARTER, case=replace(QUARTER.case, **change)) for change in changes)) == []
    assert line("LlamaGen-XL, LineAR 1/6", FULL, QUARTER, eighth).how == "not in this run"


def test_rows_are_compared_with_the_papers_own_baseline_and_its_model() -> None:
    """LazyMAR compares 32 passes with 64; GtR prints seconds alone."""
    assert paper_row(published().row("GtR, MAR-H", "GtR-H, 32"), []).claimed == pytest.approx(0.81 / 0.22)
    mar = {"model": "mar-b", "batch": 128, "dtype": "float16", "grid": (16, 16)}
    full = ran(8.0, role="baseline", **{**mar, "sampling": Sampling(steps=64)})
    fewer = ran(2.0, method="lazymar", **{**mar, "sampling": Sampling(steps=32)})
    row = line("LazyMAR-B, 32", full, fewer)
    assert (row.reached, row.cell.batch_stated) == (4.0, False)
    var = {"grid": (16, 16), "batch": 64, "dtype": "float16", "role": "baseline", "sampling": Sampling()}
    runs = [ran(seconds, model=model, weights=weights, **var) for seconds, model, weights in (
        (6.4, "var-d30", RANDOM), (3.2, "var-d30+d16-n8", "random:0+random:0/random:0"), (1.0, "var-d20", "trained"))]
    assert [(paper.title, paper.commands) for paper in measured(*runs)] == [("CoDe, main table", ("cachemark run code-var --device cuda",))]
    assert (line("CoDe, N = 8", *runs).reached, line("CoDe, N = 8", *runs).measured) == (2.0, 0.05)
    assert line("VAR-d20", *runs).no_speedup == "not compared"
    assert measured(runs[0]) == [], "a baseline alone measures no paper"
