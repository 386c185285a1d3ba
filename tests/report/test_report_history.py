"""Runs over time: each case against the full cache of its own run, and where the environment changed."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import report_sample as sample

from cachemark.analysis.case_group import case_groups
from cachemark.analysis.report_view import build
from cachemark.analysis.run_history import HistoryNight, Trend, run_history
from cachemark.core.result import Outcome
from cachemark.report.charts.bars import MOST as CASES
from cachemark.report.charts.chart import Chart, signs_of
from cachemark.report.charts.lines import history
from cachemark.report.page.render import render
from cachemark.workflows.report import changes_over_nights


def slower(outcome: Outcome, factor: float) -> Outcome:
    return replace(outcome, samples={**outcome.samples, "latency": [factor * value for value in outcome.samples["latency"]]})


def night(number: int, day: float = 1.0, method: float = 1.0, fingerprint: str = "a") -> HistoryNight:
    """A run in which the machine was ``day`` times and the method ``method`` times as slow."""
    run = replace(sample.RUN, id=number, environment=replace(sample.ENVIRONMENT, fingerprint=fingerprint))
    return HistoryNight(run, [slower(sample.full(), day), slower(sample.candidate("linear", "1/4"), day * method)])


def drawn(nights: Sequence[HistoryNight], trend: Trend | None = None) -> list[Chart]:
    group = case_groups(nights[-1].outcomes)[0]
    return list(history(run_history(group, nights, trend), signs_of(group)))


def charts(*nights: HistoryNight) -> list[tuple[str, tuple[tuple[str, ...], ...], str]]:
    return [(chart.title, chart.rows, chart.svg) for chart in drawn(nights)]


def test_a_slower_day_cancels_and_a_slower_method_does_not() -> None:
    (_, relative, _), (_, own, _) = charts(night(1), night(2, day=1.4), night(3, method=1.5))
    ((label, first, second, third),) = relative
    assert label == "LineAR 1/4"
    assert first == second
    assert float(third[:-1]) > 1.4 * float(first[:-1])
    assert own[0][1] != own[0][2]


def test_one_run_is_no_history() -> None:
    assert charts(night(1)) == []


def test_a_new_environment_is_marked() -> None:
    def marked(*nights: HistoryNight) -> int:
        return charts(*nights)[0][2].count('stroke-dasharray="2 3"')

    assert marked(night(1), night(2)) == 0
    assert marked(night(1), night(2, fingerprint="b"), night(3, fingerprint="b"), night(4)) == 2


def test_of_many_cases_the_first_are_drawn_and_all_are_told() -> None:
    item = sample.candidate("linear", "1/4")
    candidates = [replace(item, case=replace(item.case, budget=f"1/{k}")) for k in range(4, CASES + 9)]
    nights = [HistoryNight(replace(sample.RUN, id=k), [sample.full(), *candidates]) for k in (1, 2)]
    relative = drawn(nights)[0]
    assert len(relative.rows) == CASES + 5
    assert relative.svg.count("<title>") <= 2 * CASES + 1
    assert f"The first {CASES} of {CASES + 5} cases are drawn" in relative.caption


def test_a_failed_run_is_a_gap() -> None:
    from cachemark.core.result import Status

    broken = HistoryNight(sample.RUN, [sample.full(), sample.failed(sample.candidate("linear", "1/4"), Status.OOM, "too large")])
    (_, relative, svg), _ = charts(night(1), broken, night(3))
    assert relative[0][2] == "–"
    assert len([e for e in ET.fromstring(svg).iter() if e.get("data-series")]) == 2


def followed(*costs: float, fingerprints: str = "a" * 100) -> list[str]:
    """What is told to have changed of a method that was so many times as slow, night by night."""
    nights = [night(k + 1, method=cost, fingerprint=mark) for k, (cost, mark) in enumerate(zip(costs, fingerprints, strict=False))]
    chart = drawn(nights, changes_over_nights)[0]
    marks = [e for e in ET.fromstring(chart.svg).iter() if e.get("stroke-width") == "1.7"]
    notes = [note for note in chart.notes if "may not show" not in note]
    assert len(marks) == len(notes)
    return notes


WOBBLE = [1 + 0.01 * ((7 * k) % 5 - 2) for k in range(40)]  # neighbours do not resemble each other


def test_a_step_is_marked_at_its_night_and_told() -> None:
    (texts,) = followed(*(w * (1.3 if k >= 20 else 1.0) for k, w in enumerate(WOBBLE)))
    assert texts.startswith("LineAR 1/4: latency relative to the full cache rose by 30.0 % at run 21 ·")
    assert followed(*WOBBLE) == []


def test_a_ramp_and_a_change_of_variance_have_their_names() -> None:
    (ramp,) = followed(*(w * (1 + 0.4 * min(max(k - 10, 0), 20) / 20) for k, w in enumerate(WOBBLE)))
    assert "rose by" in ramp
    assert " from run 1" in ramp
    (spread,) = followed(*(1 + (w - 1) * (6 if k >= 20 else 1) for k, w in enumerate(WOBBLE)))
    assert "variance changed at run 2" in spread
    assert spread.endswith("Reported only.")


def test_a_change_of_the_environment_is_no_change_of_the_method() -> None:
    stepped = [w * (1.3 if k >= 20 else 1.0) for k, w in enumerate(WOBBLE)]
    assert followed(*stepped, fingerprints="a" * 20 + "b" * 20) == []


def test_runs_that_cannot_show_a_change_say_which_they_can() -> None:
    wild = [night(k + 1, method=1 + 10 * (w - 1)) for k, w in enumerate(WOBBLE)]
    (text,) = drawn(wild, changes_over_nights)[0].notes
    assert text.startswith("LineAR 1/4: its nights vary so much, or are so alike (correlation ")
    assert text.endswith(" % may not show within 14 nights.")
    assert "may not show within 14 nights" in render(build(sample.RUN, wild[-1].outcomes, nights=wild, trend=changes_over_nights))


def test_a_step_beside_a_weekly_cycle_is_told() -> None:
    def dated(number: int) -> HistoryNight:
        weekend = number % 7 >= 5
        result = night(number + 1, method=WOBBLE[number % 40] * (1.05 if weekend else 0.98) * (1.2 if number >= 35 else 1.0))
        started = (datetime(2026, 1, 5, tzinfo=UTC) + timedelta(days=number)).isoformat()
        return replace(result, run=replace(result.run, started=started))

    (notes,) = drawn([dated(k) for k in range(49)], changes_over_nights)[0].notes
    assert " at run 36 · 2026-02-09 " in notes
    assert not notes.endswith("Reported only.")
