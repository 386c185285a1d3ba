"""The charts: what is drawn, what stands in their tables, and how few points they bear."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import report_sample as sample

from cachemark.analysis.case_group import case_groups
from cachemark.analysis.report_view import build
from cachemark.analysis.run_history import HistoryNight, run_history
from cachemark.core.facts import Facts
from cachemark.core.result import Outcome, Status
from cachemark.report.charts.chart import Chart, signs_of
from cachemark.report.charts.lines import history
from cachemark.report.page.render import chart_set, render


def test_bytes_throughput_and_memory_stand_at_their_places_and_equal_figures_are_no_chart() -> None:
    """A scale's tokens come all at once: what is held at 274 of 530 tokens is not what is held after a quarter."""
    recorded = {"live_bytes": {"tokens": [105, 274, 530], "live": [1024.0 * 105, 1024.0 * 274, 1024.0 * 530]}}
    full = replace(sample.full(), facts=sample.full().facts | Facts.from_json(recorded))
    chart = next(chart for chart in chart_set(*case_groups([full])).charts if chart.title == "Keys and values over an image")
    assert chart.rows[0][1:5] == ("132 KiB", "265 KiB", "398 KiB", "530 KiB")
    full, candidate = sample.full(), sample.candidate("linear", "1/4")
    dead = sample.failed(at(full, 64, 1.0, 1.0), Status.OOM, "no room")
    parts = case_groups([at(full, 4, 2.0, 2.0**20), at(candidate, 4, 1.0, 2.0**19), at(full, 16, 4.0, 2.0**22),
                         at(candidate, 16, 2.0, 2.0**21), dead, at(candidate, 64, 4.0, 2.0**23)])
    first, *others = ({c.title: c for c in chart_set(part, parts).charts if "against batch" in c.title} for part in parts)
    assert others == [{}, {}]
    speed, memory = first["Images per second against batch"], first["Peak memory against batch"]
    assert speed.columns == ("Case", "Batch 4", "Batch 16", "Batch 64")
    assert speed.rows == (("full", "2", "4", "oom"), ("LineAR 1/4", "4", "8", "16"))
    assert memory.rows[1] == ("LineAR 1/4", "512 KiB", "2.00 MiB", "8.00 MiB")
    assert (speed.tab, memory.tab) == ("speed", "memory")
    full, one, two = sample.full(), *list(sample.candidates().values())[:2]
    score = full.samples["color_consistency"]
    few = [*(value - 0.5 * (seed < 3) for seed, value in enumerate(score))]
    for last, where in ((score, "in any image"), (few, f"in at least {100 * (1 - 3 / len(score)):.1f} % of the images of each method")):
        changed = [replace(each, samples={**each.samples, "color_consistency": own}) for each, own in ((one, score), (two, last))]
        (chart,) = (chart for chart in chart_set(*case_groups([full, *changed])).charts if "paired difference" in chart.title)
        assert (chart.plot, chart.empty) == (None, f"No difference {where}.")


def at(outcome: Outcome, batch: int, seconds: float, peak: float) -> Outcome:
    return sample.measured(replace(outcome, case=replace(outcome.case, batch=batch)), latency=[seconds], peak_memory=[peak])


def night(number: int, day: float = 1.0, method: float = 1.0, fingerprint: str = "a") -> HistoryNight:
    """A run in which the machine was ``day`` times and the method ``method`` times as slow."""
    run = replace(sample.RUN, id=number, environment=replace(sample.ENVIRONMENT, fingerprint=fingerprint))
    both = ((sample.full(), day), (sample.candidate("linear", "1/4"), day * method))
    return HistoryNight(run, [sample.measured(o, latency=[factor * value for value in o.samples["latency"]]) for o, factor in both])


def drawn(*nights: HistoryNight) -> list[Chart]:
    group = case_groups(nights[-1].outcomes)[0]
    return list(history(run_history(group, nights), signs_of(group)))


def test_a_history_cancels_slower_days_and_marks_new_environments() -> None:
    relative, own = drawn(night(1), night(2, day=1.4), night(3, method=1.5))
    ((label, first, second, third),) = relative.rows
    assert (label, first) == ("LineAR 1/4", second)
    assert float(third[:-1]) > 1.4 * float(first[:-1])
    assert own.rows[0][1] != own.rows[0][2]
    runs = [night(1), night(2)], [night(1), night(2, fingerprint="b"), night(3, fingerprint="b"), night(4)]
    assert [drawn(*nights)[0].svg.count('stroke-dasharray="2 3"') for nights in runs] == [0, 2]
    broken = HistoryNight(sample.RUN, [sample.full(), sample.failed(sample.candidate("linear", "1/4"), Status.OOM, "too large")])
    relative, _ = drawn(night(1), broken, night(3))
    assert (relative.rows[0][2], relative.svg.count("data-series")) == ("–", 2)


def followed(*costs: float, fingerprints: str = "a" * 100) -> list[str]:
    """What is told to have changed of a method that was so many times as slow, night by night."""
    nights = [night(k + 1, method=cost, fingerprint=mark) for k, (cost, mark) in enumerate(zip(costs, fingerprints, strict=False))]
    chart = drawn(*nights)[0]
    marks = [e for e in ET.fromstring(chart.svg).iter() if e.get("stroke-width") == "1.7"]
    notes = [note for note in chart.notes if "may not show" not in note]
    assert len(marks) == len(notes)
    return notes


WOBBLE = [1 + 0.01 * ((7 * k) % 5 - 2) for k in range(40)]  # neighbours do not resemble each other


def test_a_step_is_told_at_its_night_a_ramp_by_its_name_and_what_cannot_show() -> None:
    stepped = [w * (1.3 if k >= 20 else 1.0) for k, w in enumerate(WOBBLE)]
    (step,) = followed(*stepped)
    assert step.startswith("LineAR 1/4: latency relative to the full cache rose by 30.0 % at run 21 ·")
    assert followed(*WOBBLE) == []
    assert followed(*stepped, fingerprints="a" * 20 + "b" * 20) == [], "a change of the environment is none of the method"
    (ramp,) = followed(*(w * (1 + 0.4 * min(max(k - 10, 0), 20) / 20) for k, w in enumerate(WOBBLE)))
    assert " from run 1" in ramp
    wild = [night(k + 1, method=1 + 10 * (w - 1)) for k, w in enumerate(WOBBLE)]
    (text,) = drawn(*wild)[0].notes
    assert text.startswith("LineAR 1/4: its nights vary so much, or are so alike (correlation ")
    assert "may not show within 14 nights" in render(build(sample.RUN, wild[-1].outcomes, nights=wild))
