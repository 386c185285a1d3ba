"""The charts: what is drawn, what stands in their tables, and how few points they bear."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
import report_sample as sample

from cachemark.analysis import formatting as fmt
from cachemark.analysis.case_group import case_groups
from cachemark.core.result import Outcome
from cachemark.report.charts.chart import Chart
from cachemark.report.charts.chart_set import ChartSet, chart_set
from cachemark.report.charts.tradeoffs import front

SVG = "{http://www.w3.org/2000/svg}"


def drawing(*outcomes: Outcome) -> ChartSet:
    (group,) = case_groups(outcomes)
    return chart_set(group)


def tips(chart: Chart) -> list[str]:
    root = ET.fromstring(chart.svg)
    return [e.findtext(f"{SVG}title") or "" for e in root.iter() if e.get("data-series") is not None]


@pytest.fixture(scope="module")
def whole() -> ChartSet:
    return drawing(*sample.outcomes())


def test_every_timed_case_is_drawn_once_and_tabled(whole: ChartSet) -> None:
    by_bytes, by_speed, phases, memory, *_ = whole.charts
    assert len(tips(by_bytes)) == len(by_bytes.rows) == 13  # twelve arms and the full cache
    assert len(tips(by_speed)) == len(by_speed.rows) == 9  # h2o and rkv have no speed-up
    assert len(tips(phases)) == 2 * len(phases.rows) == 26
    assert len(memory.rows) == 13
    assert all(len(chart.keys) == len(chart.rows) for chart in whole.charts)
    assert ("full", "3.78 MiB", "0.000") in by_bytes.rows
    assert any(tip.startswith("LineAR 1/4 · KV allocated (MiB): 1.01 MiB · KL") for tip in tips(by_bytes))


def test_the_front_is_what_no_other_case_beats() -> None:
    points = [(1.0, 0.4), (1.0, 0.9), (2.0, 0.1), (2.0, 0.5), (4.0, 0.0)]
    assert front(points, less=True) == [(1.0, 0.4), (2.0, 0.1), (4.0, 0.0)]
    assert front(points, less=False) == [(4.0, 0.0)]


def test_each_tab_has_charts_of_its_own(whole: ChartSet) -> None:
    titles = {tab: [chart.title for chart in whole.on_tab(tab)] for tab in ("leaderboard", "speed", "memory", "quality")}
    assert titles == {
        "leaderboard": ["Fidelity against memory", "Fidelity against speed"],
        "speed": ["Time per batch, by part"],
        "memory": ["Memory by part", "Keys and values over an image"],
        "quality": ["KL over seeds", "PSNR over seeds", "Color consistency, paired difference from the full cache"],
    }


def test_time_and_bytes_are_split_into_parts_that_add_up(whole: ChartSet) -> None:
    phases, memory = whole.on_tab("speed")[0], whole.on_tab("memory")[0]
    seconds = {line[0]: line[1:] for line in phases.rows}
    outcome = sample.candidate("linear", "1/4")
    whole_, tokens = outcome.median("latency"), outcome.median("latency_tokens")
    assert whole_ is not None
    assert tokens is not None
    assert seconds["LineAR 1/4"] == (fmt.seconds(tokens), fmt.seconds(whole_ - tokens), fmt.percent(1 - tokens / whole_))
    values = {line[0]: line[1:] for line in memory.rows}
    assert values["LineAR 1/4"][:4] == ("1.00 MiB", "15.1 KiB", "8.00 KiB", "1.02 MiB")


def test_live_bytes_are_drawn_over_the_image(whole: ChartSet) -> None:
    chart = whole.on_tab("memory")[1]
    quarters = [fmt.size(sample.FULL_BYTES * part) for part in (0.25, 0.5, 0.75, 1.0)]
    rows = {line[0]: list(line[1:]) for line in chart.rows}
    assert rows["full"] == [*quarters, quarters[3]]
    assert rows["LineAR 1/2"] == [quarters[0], quarters[1], quarters[1], quarters[1], quarters[1]]
    assert len(tips(chart)) == len(chart.rows) == 13


def test_a_spread_shows_quantiles_and_a_pair_its_differences(whole: ChartSet) -> None:
    spread, _, paired = whole.on_tab("quality")
    kl = sorted(sample.candidate("linear", "1/4").samples["kl"])
    row = next(line for line in spread.rows if line[0] == "LineAR 1/4")
    half = sample.SEEDS // 2
    assert row[3] == fmt.metric_value((kl[half - 1] + kl[half]) / 2, "kl")
    assert row[-1] == str(sample.SEEDS)
    pairs = zip(sample.candidate("streaming", "1/4").samples["color_consistency"], sample.full().samples["color_consistency"], strict=True)
    middle = sorted(a - b for a, b in pairs)[half - 1 : half + 1]
    assert next(line for line in paired.rows if line[0] == "StreamingLLM 1/4")[3] == fmt.metric_value(sum(middle) / 2, "color_consistency")


def test_one_method_is_enough_and_none_is_said() -> None:
    item = drawing(sample.full(), sample.candidate("linear", "1/4"))
    assert [len(tips(chart)) for chart in item.charts] == [2, 2, 4, 5, 2, 3, 3, 3]
    none = drawing(sample.full())
    assert [bool(chart.svg) for chart in none.charts] == [False, False, True, True, True]
    assert none.charts[0].empty == "No method has both values."


def test_random_weights_draw_speed_only() -> None:
    charts = drawing(*sample.random_weights()).charts
    assert [bool(chart.svg) for chart in charts] == [False, False, True, True, True]
    assert "random" in charts[0].empty


def test_a_method_has_one_color_in_all_sections() -> None:
    def named(model: str, *methods: str) -> list[Outcome]:
        candidate = sample.candidate("linear", "1/4")
        complete = (sample.full(), *(replace(candidate, case=replace(candidate.case, method=method)) for method in methods))
        return [replace(outcome, case=replace(outcome.case, model=model)) for outcome in complete]

    parts = case_groups([*named("one", "streaming", "window"), *named("two", "arrows", "window")])
    drawn = [chart_set(part, parts) for part in parts]
    signs = [{key.name: key.sign for key in item.methods} for item in drawn]
    assert signs[0]["window"] == signs[1]["window"]
    assert len({sign for part in signs for sign in part.values()}) == 3


def test_bytes_after_a_part_of_an_image_lie_between_the_recorded_places() -> None:
    """A scale's tokens come all at once: what is held at 274 of 530 tokens is not what is held after a quarter."""
    recorded = {"live_bytes": {"tokens": [105, 274, 530], "live": [1024.0 * 105, 1024.0 * 274, 1024.0 * 530]}}
    full = replace(sample.full(), facts={**sample.full().facts, **recorded})
    chart = next(chart for chart in drawing(full).charts if chart.title == "Keys and values over an image")
    assert chart.rows[0][1:5] == ("132 KiB", "265 KiB", "398 KiB", "530 KiB")
