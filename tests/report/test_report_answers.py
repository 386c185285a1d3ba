"""The answer of a report: a method that is shown to be as good and faster, or the full cache; and that nobody else is called anything."""

import random
from dataclasses import replace

import pytest
import report_sample as sample

from cachemark.analysis.answers import Answer, Recommendation, recommendations
from cachemark.analysis.case_group import case_groups
from cachemark.analysis.method_placings import method_placings, placing_lines
from cachemark.analysis.quality_claims import margin_sentence, quality_claims, standing
from cachemark.analysis.report_view import build
from cachemark.core.facts import Facts, PluginSource
from cachemark.core.limits import Limit
from cachemark.core.result import Outcome
from cachemark.export.frames import frame
from cachemark.report.charts.chart import signs_of
from cachemark.report.charts.svg import XYPlot
from cachemark.report.charts.tradeoffs import against_speed
from cachemark.report.page.render import render

SEEDS, MARGIN = 256, "5 points of color consistency"
COUNT = 200


def scored(outcome: Outcome, score: float, seconds: float | None = None, seeds: int = SEEDS) -> Outcome:
    """The outcome with this mean color consistency and this latency."""
    stream = random.Random(f"{outcome.case.label} {score}")
    times = {} if seconds is None else {"latency": [seconds * (1 + 0.001 * k) for k in range(9)]}
    legend = [sum(stream.random() < score for _ in range(4)) / 4 for _ in range(seeds)]
    samples = {name: values[:seeds] if len(values) == sample.SEEDS else values for name, values in outcome.samples.items()}
    return sample.measured(outcome, **{**samples, "color_consistency": legend, **times})


def told(*outcomes: Outcome) -> Answer:
    (chapter,) = build(sample.RUN, outcomes).chapters
    return chapter.answer


FULL = scored(sample.full(), 1.0, 2.0)
GOOD = scored(sample.candidate("linear", "1/2"), 1.0, 1.5)
LEAN = scored(sample.candidate("linear", "1/4"), 1.0, 2.2)
COLLAPSED = scored(sample.candidate("streaming", "1/4"), 0.4, 0.5)
UNJUDGED = [replace(o, samples={"latency": o.samples["latency"]}, unjudged="in another run") for o in (FULL, GOOD)]


def test_the_fastest_qualified_method_is_recommended_and_none_beyond_what_is_saved() -> None:
    recommendation = told(FULL, COLLAPSED, GOOD, LEAN)
    labels = [row.case.label for row in (recommendation.row, recommendation.lean, recommendation.ruined)]
    assert labels == ["linear 1/2", "linear 1/4", "streaming 1/4"]
    assert recommendation.text == f"Use LineAR at 1/2. 1.33× speedup (1.25–1.42), 48.2 % less KV memory, quality loss below {MARGIN}."
    assert [name for name, *_ in recommendation.numbers] == ["Speedup, LineAR at 1/2", "KV memory saved", "Color consistency"]
    (group,), _ = standing([FULL, COLLAPSED, GOOD, LEAN])
    assert {row.case.label: row.place for row in group.candidates} == {"linear 1/2": 1, "linear 1/4": 1, "streaming 1/4": None}
    limited = (replace(o, facts=o.facts | Facts(limit=Limit(floor, floor, 1, 1, 1.0, 1.0, {}))) for o, floor in ((FULL, 1.0), (GOOD, 0.9)))
    assert told(*limited).row is None, "1.33 times where 1.11 are allowed"


def test_without_a_faster_method_or_quality_the_full_cache_is_kept_and_nothing_ranked() -> None:
    for outcomes, lean in (([FULL, COLLAPSED], None), ([FULL, LEAN], "linear 1/4")):
        answer = told(*outcomes)
        assert (answer.row, answer.verdict, answer.lean and answer.lean.case.label) == (None, "Keep the full cache.", lean)
        assert ("73.2 % less KV memory" in answer.text) == bool(lean)
    for outcomes, verdict in (
        (sample.random_weights(), "Speed only. Fastest: "), (UNJUDGED, "Keep the full cache. Image quality was not measured.")):
        (group,), _ = standing(outcomes)
        assert told(*outcomes).text.startswith(verdict)
        assert {row.place for row in group.candidates} == {None}


def test_a_front_is_drawn_through_ranked_cases_only() -> None:
    """The collapsed candidate is the fastest, and everything would be dominated by less."""
    (group,), _ = standing([FULL, scored(COLLAPSED, 0.4, 0.5), GOOD])
    plot = against_speed(group, signs_of(group)).plot
    assert isinstance(plot, XYPlot)
    (front,) = plot.lines
    fastest = max(point.x for point in plot.points)
    assert max(x for x, _ in front.places) < fastest > 2


def repeated(outcome: Outcome, *scores: float, seeds: int = COUNT) -> Outcome:
    """The same outcome with these values of color consistency, over and over."""
    return sample.measured(outcome, color_consistency=[scores[k % len(scores)] for k in range(seeds)])


def choices(*outcomes: Outcome) -> dict[str, Recommendation]:
    parts = case_groups(outcomes)
    return {choice.method: choice for choice in recommendations(parts[0], quality_claims(parts))}


def test_the_smallest_budget_that_is_non_inferior_and_may_be_ranked_is_chosen() -> None:
    values = {("linear", "1/2"): [1.0], ("linear", "1/4"): [1.0, 0.98], ("streaming", "1/2"): [0.99], ("streaming", "1/4"): [0.5],
              ("window", "1/2"): [0.6]}
    results = choices(repeated(sample.full(), 1.0), *(repeated(sample.candidate(*which), *scores) for which, scores in values.items()))
    chosen = {name: choice.row.case.budget if choice.row else None for name, choice in results.items()}
    assert chosen == {"full": "1", "linear": "1/4", "streaming": "1/2", "window": None}
    noise = sample.measured(repeated(sample.candidate("window", "1/2"), 1.0), token_agreement=[0.01] * COUNT)
    assert choices(repeated(sample.full(), 1.0), noise, sample.other_seeds())["window"].row is None


def test_what_loses_less_but_uncertainly_is_not_chosen_and_every_comparison_counts() -> None:
    few, many = ([repeated(sample.full(), 1.0, seeds=seeds), repeated(sample.candidate("linear", "1/2"), *[1.0] * 7, 0.75, seeds=seeds)]
                 for seeds in (64, COUNT))  # 3 points below
    unsure = choices(*few)["linear"]
    assert (unsure.row, unsure.reason.startswith("Inconclusive"), told(*few).row) == (None, True, None)
    assert 64 < int(unsure.reason.split("about ")[1].split(" seeds")[0]) == told(*few).needed <= COUNT
    assert choices(*many)["linear"].row is not None
    full, good = repeated(sample.full(), 1.0, seeds=70), repeated(sample.candidate("linear", "1/2"), 1.0, seeds=70)
    alternatives = [repeated(o, 0.5, seeds=70) for key, o in sample.candidates().items() if key != ("linear", "1/2")]
    alone, among = (quality_claims(case_groups(outcomes))[good.case.key] for outcomes in ([full, good], [full, good, *alternatives]))
    assert (alone.non_inferior, among.non_inferior) == (True, False)
    assert among.adjusted == pytest.approx(12 * alone.p)
    assert (alone.claims, among.claims) == (1, 12)


@pytest.mark.parametrize(("candidates", "least"), [(1, 59), (2, 72)])
def test_below_the_least_seeds_nothing_is_said_and_at_it_the_perfect_are(candidates: int, least: int) -> None:
    def at(seeds: int) -> list[Outcome]:
        methods = [sample.candidate(name, "1/2") for name in ("linear", "streaming")[:candidates]]
        return [repeated(outcome, 1.0, seeds=seeds) for outcome in (sample.full(), *methods)]

    assert choices(*at(least - 1))["linear"].reason == f"Too few seeds: {least - 1}; at least {least} are needed."
    assert choices(*at(least))["linear"].row is not None


def test_by_fid_where_it_was_measured() -> None:
    results = [sample.with_fid(sample.full(), 5.0), sample.with_fid(sample.candidate("linear", "1/2"), 5.3, to_full=(0.3, 0.2, 0.49)),
               sample.with_fid(sample.candidate("streaming", "1/2"), 5.4, to_full=(0.4, 0.2, 0.51))]
    rows = {name: choice.row is not None for name, choice in choices(*results).items()}
    assert rows == {"full": True, "linear": True, "streaming": False}
    parts = case_groups(results)
    assert "FID, scene, 2k images" in margin_sentence(parts[0], quality_claims(parts))
    bare = [replace(o, facts=o.facts | Facts.from_json({"intervals": {sample.FID: [None, None]}})) for o in results]
    assert choices(*bare)["linear"].row is None, "without an interval nothing is shown"


def test_equal_memory_is_the_largest_batch_that_was_measured_or_searched_for() -> None:
    def at(outcome: Outcome, batch: int, times: float) -> Outcome:
        bytes_ = {name: [values[0] * batch / 16] for name, values in outcome.samples.items() if name.startswith("kv_")}
        return sample.measured(replace(outcome, case=replace(outcome.case, batch=batch)), **bytes_, latency=[times])

    full, candidate = repeated(sample.full(), 1.0), repeated(sample.candidate("linear", "1/4"), 1.0)
    contents = choices(at(full, 16, 2.0), at(candidate, 16, 2.0), at(full, 32, 3.0), at(candidate, 32, 2.5), at(full, 128, 9.0),
                 at(candidate, 128, 9.0))
    linear, own = contents["linear"].row, contents["full"].row
    assert (linear.images_per_second, linear.equal_memory, linear.equal_memory_batch) == (8.0, 32 / 2.5, 32)
    assert (own.equal_memory, own.equal_memory_batch) == (8.0, 16)
    values = frame([at(full, 16, 2.0), at(candidate, 16, 2.0), at(candidate, 32, 2.5)]).query("batch == 16").set_index("metric")["value"]
    assert values["images_per_s_equal_memory"] == 32 / 2.5

    def sought(outcome: Outcome, batch: int, rate: float, **other: object) -> Outcome:
        case = replace(outcome.case, evaluation={"max_batch": {"limit": 2**30}}, **other)
        return Outcome(case, outcome.status, {"max_batch": [batch], "throughput_max": [rate]}, "throughput only")

    def at_equal_memory(*outcomes: Outcome) -> dict[str, tuple[float | None, int, bool]]:
        rows = {name: choice.row for name, choice in choices(*outcomes).items()}
        return {name: (row.equal_memory, row.equal_memory_batch, row.batch_searched) for name, row in rows.items() if row}

    outcomes = [full, candidate, sought(full, 40, 9.5), sought(candidate, 150, 21.5)]
    assert at_equal_memory(*outcomes) == {"full": (9.5, 40, True), "linear": (21.5, 150, True)}
    assert not at_equal_memory(full, candidate, sought(candidate, 150, 21.5, dtype="float16"))["linear"][2]
    begun = sought(replace(candidate, case=replace(candidate.case, batch=64)), 150, 21.5)
    assert at_equal_memory(full, candidate, begun)["linear"][1] == 150, "wherever the search began"
    assert "21.50<small><bdi>batch 150</bdi></small>" in render(build(sample.RUN, outcomes))


def test_each_method_is_placed_in_words_and_a_budget_of_many_names_no_pairs() -> None:
    own = replace(scored(sample.candidate("window", "1/2"), 0.6), facts=COLLAPSED.facts | Facts(plugin=PluginSource("mine.py", "0a")))
    (chapter,) = build(sample.RUN, [FULL, GOOD, own, scored(sample.candidate("random", "1/2"), 0.995), LEAN]).chapters
    texts = {(each.row.case.method, each.metric): (each.place, each.text) for each in chapter.placings}
    assert texts["window", "color_consistency"] == ("3", "3rd of 3 at 1/2 in color consistency, behind LineAR and random")
    assert texts["linear", "color_consistency"] == (
        "1=", "1st of 3 at 1/2 in color consistency, not separable from random; ahead of window")
    assert not any(each.row.case.label == "linear 1/4" for each in chapter.placings), "the only method of its budget"
    ((name, line),) = chapter.plugins
    assert name == "window at 1/2"
    assert "Mean quality loss of 5 points of color consistency or more. 3rd of 3 at 1/2 in color consistency" in line
    assert "Paired placing at 1/2 in color consistency: LineAR 1=, random 1=, window 3." in placing_lines(chapter.placings)
    assert render(build(sample.RUN, [FULL, GOOD, own])).count("window at 1/2</bdi></b>: <bdi>") == 1
    assert method_placings(case_groups(sample.random_weights())) == ((),)
    full, good = (scored(outcome, 1.0, seconds, 16) for outcome, seconds in ((FULL, 2.0), (GOOD, 1.5)))
    (group,) = case_groups([full, *(replace(good, case=replace(good.case, variant=f"v{k}")) for k in range(70))])
    assert {row.rank for row in group.candidates} == {"1="}
    assert method_placings([group]) == ((),), "each row would name all others"
