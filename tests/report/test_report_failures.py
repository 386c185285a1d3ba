"""Runs of which much is missing: what failed says why, what was searched for is no gap, and nothing is drawn from nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import report_sample as sample

from cachemark.analysis.baseline_comparison import BaselineComparison
from cachemark.analysis.case_group import case_groups
from cachemark.analysis.report_view import build
from cachemark.analysis.run_history import HistoryNight, run_history
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Sampling
from cachemark.report.page.render import render
from cachemark.store.rows import Verdict

TRACE = 'Traceback (most recent call last):\n  File "trial.py", line 88, in run\nMemoryError: 4.1 GiB wanted'


def searched(method: str = "full", role: str = "baseline") -> Outcome:
    """A search for the largest batch."""
    case = sample.case(method=method, role=role, budget="1" if method == "full" else "1/2", evaluation={"max_batch": {"limit": 0}})
    return Outcome(case, Status.OK, {"max_batch": [64.0], "throughput_max": [3.5]}, "timed only")


@pytest.mark.parametrize(("log", "reason"), [
    (TRACE, "MemoryError: 4.1 GiB wanted"),
    (f"No outcome within 600 s; the process was ended.\nwarning: unused\n{TRACE}", "No outcome within 600 s; the process was ended."),
    ("The process ended by signal SIGKILL.\n", "The process ended by signal SIGKILL."),
    ("\n", ""),
])
def test_the_reason_of_a_failed_case_is_the_line_that_says_it(log: str, reason: str) -> None:
    failed = sample.failed(sample.candidate("linear", "1/2"), Status.ERROR, log)
    assert failed.reason == reason
    page = render(build(sample.RUN, [sample.full(), failed]))
    assert page.count(reason) >= 3, "in the verdict, in the tab of what is missing and with its case"


def test_a_search_for_the_largest_batch_lacks_nothing_that_it_does_not_measure() -> None:
    view = build(sample.RUN, [searched(), searched("linear", "candidate")])
    assert view.missing == ()


def test_a_cell_without_latencies_has_no_history() -> None:
    nights = [HistoryNight(replace(sample.RUN, id=number), [searched(), searched("linear", "candidate")]) for number in (1, 2)]
    assert run_history(case_groups(nights[-1].outcomes)[0], nights) is None


def test_cells_that_differ_in_one_setting_of_the_sampling_are_named_by_it() -> None:
    hot = [replace(o, case=replace(o.case, sampling=Sampling(cfg_scale=1.5, top_k=0, temperature=0.7))) for o in sample.outcomes()]
    view = build(sample.RUN, [*sample.outcomes(), *hot, searched()])
    assert [chapter.heading for chapter in view.chapters] == [
        "tiny-llamagen, temperature 1.0", "tiny-llamagen, temperature 0.7", "tiny-llamagen, temperature 1.0, largest batch"]


@pytest.mark.parametrize(("saved", "age"), [
    ("2026-03-05T00:10:00+00:00", "same day as this run"), ("2026-03-04T23:50:00+00:00", "1 day before this run"),
    ("2026-03-03T23:50:00+00:00", "2 days before this run"), ("2026-03-05T23:00:00+00:00", "after the start of this run"),
])
def test_the_age_of_a_baseline_is_counted_in_dates(saved: str, age: str) -> None:
    from cachemark.analysis.baseline_comparison import conclusion

    result = conclusion(sample.comparison(), {"name": "demo", "saved": saved}, sample.RUN.started)
    assert result is not None
    assert f"({age})" in result.against


@pytest.mark.parametrize(("row", "sentence"), [
    (Verdict("k", "linear 1/2", "ssim", "changed", "3 of 64 values differ, their mean does not", 0.98, 0.98, 1.0),
     "LineAR 1/2: SSIM changed (3 of 64 values differ, their mean does not)."),
    (Verdict("k", "linear 1/4", "psnr", "improved", "", 17.5201, 17.5203, 1.0001),
     "LineAR 1/4: PSNR improved, by less than the printed digits show: 17.5 dB, 0.0 % more."),
])
def test_a_change_below_the_digits_shown_is_not_told_as_none(row: Verdict, sentence: str) -> None:
    assert BaselineComparison(row).sentence == sentence


def test_a_case_that_is_missing_is_no_link() -> None:
    gone = Verdict("0123456789abcdef", "linear 1/8", "status", "missing", "in the baseline, not in this run")
    page = render(build(sample.RUN, sample.outcomes(), sample.compared(gone)))
    assert "LineAR 1/8: status missing" in page
    assert "#c-0123456789abcdef" not in page
