"""Several batches of one model: drawn once, with what ran out of memory at the edge."""

from __future__ import annotations

from dataclasses import replace

import report_sample as sample

from cachemark.analysis.case_group import case_groups
from cachemark.analysis.report_view import build
from cachemark.core.result import Outcome, Status
from cachemark.report.charts.chart import Chart
from cachemark.report.charts.chart_set import chart_set
from cachemark.report.page.render import render


def at(outcome: Outcome, batch: int, seconds: float, peak: float) -> Outcome:
    samples = {**outcome.samples, "latency": [seconds], "peak_memory": [peak]}
    return replace(outcome, case=replace(outcome.case, batch=batch), samples=samples)


def charts(*outcomes: Outcome) -> list[dict[str, Chart]]:
    parts = case_groups(outcomes)
    return [{chart.title: chart for chart in chart_set(part, parts).charts if "against batch" in chart.title} for part in parts]


def test_throughput_and_memory_over_batches_stand_with_the_smallest() -> None:
    full, candidate = sample.full(), sample.candidate("linear", "1/4")
    dead = sample.failed(at(full, 64, 1.0, 1.0), Status.OOM, "no room")
    first, *remaining = charts(at(full, 4, 2.0, 2.0**20), at(candidate, 4, 1.0, 2.0**19), at(full, 16, 4.0, 2.0**22),
                          at(candidate, 16, 2.0, 2.0**21),
                          dead, at(candidate, 64, 4.0, 2.0**23))
    assert remaining == [{}, {}]
    speed, memory = first["Images per second against batch"], first["Peak memory against batch"]
    assert speed.columns == ("Case", "Batch 4", "Batch 16", "Batch 64")
    assert speed.rows == (("full", "2", "4", "oom"), ("LineAR 1/4", "4", "8", "16"))
    assert memory.rows[1] == ("LineAR 1/4", "512 KiB", "2.00 MiB", "8.00 MiB")
    assert ">oom</text>" in memory.svg
    assert (speed.tab, memory.tab) == ("speed", "memory")


def test_a_search_for_the_largest_batch_is_no_batch() -> None:
    """Its case has the batch where the search began, which an ordinary block may have too."""
    full, candidate = sample.full(), sample.candidate("linear", "1/4")
    ran = [at(full, 8, 2.0, 2.0**20), at(candidate, 8, 1.0, 2.0**19), at(full, 16, 4.0, 2.0**22), at(candidate, 16, 2.0, 2.0**21)]
    largest = {"max_batch": [640.0], "throughput_max": [9.0], "peak_memory": [2.0**30]}
    sought = [replace(o, case=replace(o.case, batch=16, evaluation={"max_batch": {"limit": 0}}), samples=largest,
                      judgement="throughput only") for o in (full, candidate)]  # fmt: skip
    (first, *_), (with_search, *_) = charts(*ran), charts(*ran, *sought)
    assert [(chart.columns, chart.rows) for chart in with_search.values()] == [(chart.columns, chart.rows) for chart in first.values()]
    assert with_search["Images per second against batch"].columns == ("Case", "Batch 8", "Batch 16")
    assert charts(*ran[:2], *sought) == [{}, {}]
    page = render(build(sample.RUN, [*ran, *sought]))
    assert "largest batch that fits, searched from 16, grid" in page
