"""The papers' figures beside floors and beside ours: three columns that are never mixed."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from typing import Any

import report_sample as sample
from page import Page

from cachemark.report.papers import Line, Table, papers, published
from cachemark.report.render import render
from cachemark.report.view import build
from cachemark.result import Outcome, Status
from cachemark.spec import Sampling

RANDOM = "random:0/random:0"
XL = {"model": "llamagen-xl", "weights": RANDOM, "grid": (24, 24), "batch": 256, "dtype": "bfloat16", "sampling": Sampling(cfg_scale=1.75)}


def ran(seconds: float, facts: dict[str, Any] | None = None, **changes: Any) -> Outcome:
    held = {"kernel": "sdpa", **(facts or {})}
    return Outcome(sample.case(**{**XL, **changes}), Status.OK, {"latency": [seconds] * 3}, "random weights: not measured", facts=held)


FULL = ran(12.8, role="baseline")
QUARTER = ran(6.4, method="linear", knobs={"B": 144}, budget="1/4")


def table(*outcomes: Outcome) -> Table:
    (found,) = papers(outcomes, sample.ENVIRONMENT)
    return found


def line(found: Table, name: str) -> Line:
    return next(line for line in found.lines if line.name == name)


def test_published_floor_and_ours_stand_side_by_side() -> None:
    found = table(FULL, QUARTER)
    assert (found.title, found.machine) == ("LineAR, Table 4", "cpu-example-8")
    quarter = line(found, "LlamaGen-XL, LineAR 1/4")
    assert quarter.setting == "batch 256, NVIDIA A800 80 GB"
    assert quarter.printed == "latency 63.99 s a batch; throughput 4.00 it/s; memory 25.51 GB"
    assert (quarter.printed_speed_up, quarter.ideal, quarter.ours_speed_up) == ("5.18", "1.85×", "2.00×")
    assert quarter.gap == "12.3 × floor"
    assert quarter.ours == "25.0 ms an image, bfloat16, eager; random weights: quality not measured"
    assert quarter.remark.startswith("5.18× is more than the 1.85×")
    assert line(found, "LlamaGen-XL, full").ours_speed_up == "–"


def test_what_was_not_run_and_what_cannot_be_run_say_so() -> None:
    found = table(FULL, QUARTER)
    assert line(found, "LlamaGen-XL, LineAR 1/6").ours == "not in this run"
    assert line(found, "Janus-Pro-7B, full").ours == "no such model here"
    assert line(found, "Janus-Pro-7B, full").floor == "–"


def test_another_batch_budget_or_engine_is_another_row() -> None:
    changes: list[dict[str, Any]] = [{"batch": 128}, {"engine": "reference"}, {"codec": "int8"}]
    strangers = [replace(QUARTER, case=replace(QUARTER.case, **change)) for change in changes]
    assert papers([FULL, *strangers], sample.ENVIRONMENT) == ()
    eighth = ran(5.0, method="linear", knobs={"B": 72}, budget="1/8")
    assert papers([FULL, eighth], sample.ENVIRONMENT) == ()
    assert line(table(FULL, QUARTER, eighth), "LlamaGen-XL, LineAR 1/6").ours == "not in this run"


def test_a_case_without_figures_shows_how_it_ended() -> None:
    dead = Outcome(QUARTER.case, Status.OOM, log="out of memory")
    quarter = line(table(FULL, dead), "LlamaGen-XL, LineAR 1/4")
    assert (quarter.ours, quarter.ours_speed_up) == ("oom", "–")


def test_speed_ups_between_unlike_runs_are_refused() -> None:
    facts: list[dict[str, Any]] = [{"kernel": "matmul"}, {}, {"quality_only": "needs mass"}]
    for told, dtype in zip(facts, ("bfloat16", "float32", "bfloat16"), strict=True):
        other = ran(6.4, told, method="linear", knobs={"B": 144}, dtype=dtype)
        assert line(table(FULL, other), "LlamaGen-XL, LineAR 1/4").ours_speed_up == "not compared"


def test_a_paper_s_own_baseline_is_what_its_rows_are_compared_with() -> None:
    """LazyMAR compares 32 passes with 64."""
    mar = {"model": "mar-b", "batch": 128, "dtype": "float16", "grid": (16, 16)}
    full = ran(8.0, role="baseline", **{**mar, "sampling": Sampling(steps=64)})
    fewer = ran(2.0, method="lazymar", **{**mar, "sampling": Sampling(steps=32)})
    found = line(table(full, fewer), "LazyMAR-B, 32")
    assert found.ours_speed_up == "4.00×"
    assert "which the paper does not state" in found.setting


def test_no_run_of_other_models_shows_papers() -> None:
    assert papers(sample.mixed(), sample.ENVIRONMENT) == ()
    assert "No published figures belong to the cases of this run." in render(build(sample.RUN, sample.mixed()))


def test_the_page_has_the_tables_and_changes_no_verdict() -> None:
    run = replace(sample.RUN, plan="linear-table4")
    view = build(run, [FULL, QUARTER])
    page = Page(render(view))
    assert [e for e in page.elements if e.tag == "section" and e.attrs.get("id") == "papers"]
    rows = [row for table in page.tables() for row in table if row and row[0].startswith("LlamaGen-XL, LineAR 1/4")]
    assert len(rows) == 1
    assert "5.18" in rows[0]
    assert "2.00×" in rows[0]
    (arm,) = view.chapters[0].section.arms
    assert arm.speed_up is not None
    assert arm.speed_up.value == 2.0
    assert all("5.18" not in str(sentence) for sentence in view.chapters[0].sentences)


def test_the_file_holds_what_it_says() -> None:
    data = json.loads((resources.files("cachemark") / "data" / "published" / "speed.json").read_text(encoding="utf-8"))
    assert len(data["cells"]) == len(published().cells) == len({(c["table"], c["row"]) for c in data["cells"]})
    for cell in published().cells:
        assert published().row(cell.table, cell.against).ours["method"] == "full"
        assert bool(cell.model) == (cell.floor is not None) == bool(cell.plan)
        assert isinstance(cell.means(sample.case()), bool) if cell.model else True
