"""The answer of a report: a method that is shown to be as good and faster, or the full cache; and that nobody else is called anything."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import report_sample as sample

from cachemark.analysis.answers import Answer
from cachemark.analysis.image_albums import strip
from cachemark.analysis.quality_claims import standing
from cachemark.analysis.report_view import ReportView, build
from cachemark.core.limits import Limit
from cachemark.core.result import Outcome
from cachemark.report.charts.chart import signs_of
from cachemark.report.charts.svg import XYPlot
from cachemark.report.charts.tradeoffs import against_speed
from cachemark.report.page.render import render

SEEDS, MARGIN = 256, "5 points of color consistency"


def scored(outcome: Outcome, score: float, seconds: float | None = None, seeds: int = SEEDS) -> Outcome:
    """The outcome with this mean color consistency and this latency."""
    stream = random.Random(f"{outcome.case.label} {score}")
    times = {} if seconds is None else {"latency": [seconds * (1 + 0.001 * k) for k in range(9)]}
    legend = [sum(stream.random() < score for _ in range(4)) / 4 for _ in range(seeds)]
    samples = {name: values[:seeds] if len(values) == sample.SEEDS else values for name, values in outcome.samples.items()}
    return replace(outcome, samples={**samples, "color_consistency": legend, **times})


def view(*outcomes: Outcome) -> ReportView:
    return build(sample.RUN, outcomes)


def told(*outcomes: Outcome) -> Answer:
    (chapter,) = view(*outcomes).chapters
    return chapter.answer


FULL = scored(sample.full(), 1.0, 2.0)
GOOD = scored(sample.candidate("linear", "1/2"), 1.0, 1.5)
LEAN = scored(sample.candidate("linear", "1/4"), 1.0, 2.2)
COLLAPSED = scored(sample.candidate("streaming", "1/4"), 0.4, 0.5)


def test_the_fastest_qualified_method_is_recommended_and_not_the_fastest() -> None:
    recommendation = told(FULL, COLLAPSED, GOOD, LEAN)
    assert recommendation.row is not None
    assert (recommendation.row.case.label, recommendation.lean.case.label if recommendation.lean else "") == ("linear 1/2", "linear 1/4")
    assert recommendation.text == f"Use LineAR at 1/2. 1.33× speedup (1.25–1.42), 48.2 % less KV memory, quality loss below {MARGIN}."
    assert recommendation.ruined is not None
    assert recommendation.ruined.case.label == "streaming 1/4"
    assert [name for name, *_ in recommendation.numbers] == ["Speedup, LineAR at 1/2", "KV memory saved", "Color consistency"]


def test_few_seeds_decide_nothing_and_say_how_many_would() -> None:
    recommendation = told(scored(FULL, 1.0, 2.0, 32), scored(GOOD, 1.0, 1.5, 32))
    assert recommendation.row is None
    assert recommendation.needed is not None
    assert 32 < recommendation.needed < 100
    assert f"About {recommendation.needed} seeds" in recommendation.text


def test_a_speedup_beyond_what_is_saved_is_not_recommended() -> None:
    limits = [replace(o, facts={**o.facts, "limit": Limit(floor, floor, 1, 1, 1.0, 1.0, {}).to_json()})
              for o, floor in ((FULL, 1.0), (GOOD, 0.9))]
    recommendation = told(*limits)
    assert recommendation.row is None, "1.33 times where 1.11 are allowed"
    assert "1.33× exceeds the 1.11×" in recommendation.text


def test_a_speed_that_says_little_is_flagged_on_the_first_screen() -> None:
    """A full cache that uses a twentieth of what its device can copy and multiply, and the candidate that is recommended beside it."""
    limits = [replace(o, facts={**o.facts, "limit": Limit(0.1, 0.1, 1, 1, 20.0, 20.0, {}).to_json()}) for o in (FULL, GOOD)]
    assert [mark.text for mark in told(*limits).flags] == ["implausible speedup", "low utilization"]
    first = render(view(*limits)).split('id="leaderboard"')[0]
    assert all(f">{flag}</span>" in first for flag in ("implausible speedup", "low utilization"))
    assert told(FULL, GOOD).flags == ()


@pytest.mark.parametrize(("outcomes", "lean"), [([FULL, COLLAPSED], None), ([FULL, LEAN], "linear 1/4")])
def test_without_a_faster_method_of_equal_quality_the_full_cache_is_kept(outcomes: list[Outcome], lean: str | None) -> None:
    recommendation = told(*outcomes)
    assert (recommendation.row, recommendation.lean and recommendation.lean.case.label) == (None, lean)
    assert recommendation.verdict == "Keep the full cache."
    assert ("73.2 % less KV memory" in recommendation.text) == bool(lean)


UNJUDGED = [replace(o, samples={"latency": o.samples["latency"]}, judgement="in another run") for o in (FULL, GOOD)]


@pytest.mark.parametrize("outcomes", [sample.random_weights(), UNJUDGED])
def test_without_quality_the_full_cache_is_kept_and_nothing_is_ranked(outcomes: list[Outcome]) -> None:
    (group,), _ = standing(outcomes)
    assert told(*outcomes).verdict == "Keep the full cache."
    assert {row.place for row in group.candidates} == {None}


def test_a_run_without_a_full_cache_has_no_answer() -> None:
    assert told(GOOD).verdict == "No recommendation."


def places(outcomes: Sequence[Outcome]) -> dict[str, int | None]:
    (group,), _ = standing(outcomes)
    return {row.case.label: row.place for row in group.candidates}


def test_only_qualified_methods_have_a_place() -> None:
    assert places([FULL, COLLAPSED, GOOD, LEAN]) == {"linear 1/2": 1, "linear 1/4": 1, "streaming 1/4": None}


def test_images_stand_at_the_same_fixed_seeds() -> None:
    (chapter,) = build(sample.RUN, [FULL, COLLAPSED, GOOD], artifact=sample.sprite).chapters
    assert chapter.strip is not None
    assert chapter.strip.names == ("full cache", "LineAR 1/2", "StreamingLLM 1/4")
    assert (chapter.strip.columns, chapter.strip.tile) == (4, 64)
    assert strip(chapter.albums, []) is None


def test_a_front_is_drawn_through_ranked_cases_only() -> None:
    """The collapsed candidate is the fastest, and everything would be dominated by less."""
    (group,), _ = standing([FULL, scored(COLLAPSED, 0.4, 0.5), GOOD])
    plot = against_speed(group, signs_of(group)).plot
    assert isinstance(plot, XYPlot)
    (front,) = plot.lines
    fast = max(point.x for point in plot.points)
    assert fast > 2
    assert max(x for x, _ in front.places) < fast


def test_a_run_that_was_looked_at_is_judged_by_the_test_that_allows_it() -> None:
    """70 seeds without a loss are enough where the number was fixed, and too few where every seed was a look."""
    outcomes = [scored(sample.full(), 1.0, 2.0, seeds=70), scored(sample.candidate("linear", "1/2"), 1.0, 1.5, seeds=70)]
    looked = replace(sample.RUN, plan_json={"fidelity": {"sequential": True}})
    assert build(sample.RUN, outcomes).chapters[0].group.candidates[0].unranked == ""
    assert "70; at least 88 " in build(looked, outcomes).chapters[0].group.candidates[0].unranked
