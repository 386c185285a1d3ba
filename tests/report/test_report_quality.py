"""Quality of whole sets in a report: columns, places, collapsed methods, curves, and what is missing."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import report_sample as sample

from cachemark.analysis.columns import cells, column_groups, columns_of
from cachemark.analysis.missing import TOO_FEW
from cachemark.analysis.report_view import build
from cachemark.core.facts import Facts
from cachemark.core.result import Outcome
from cachemark.report.page.render import render

FID, PRECISION = sample.FID, "precision_scene_2k"


def seen(outcome: Outcome, fid: float, precision: float = 0.8, reach: float = 0.5, to_full: float | None = None) -> Outcome:
    outcome = sample.with_fid(outcome, fid, reach, () if to_full is None else (to_full, to_full - 0.1, to_full + 0.1))
    ends = {**outcome.facts.intervals, PRECISION: [precision - 0.02, precision + 0.02]}
    outcome = replace(outcome, facts=outcome.facts | Facts(intervals=ends))
    return sample.measured(outcome, **{PRECISION: [precision], "class_accuracy": [1.0, 1.0, 1.0, 0.0] * 500})


def outcomes() -> list[Outcome]:
    return [seen(sample.full(), 5.0), seen(sample.candidate("linear", "1/2"), 5.4, to_full=0.4),
            seen(sample.candidate("streaming", "1/2"), 6.2, to_full=1.2), seen(sample.candidate("random", "1/2"), 30.0, to_full=25.0),
            seen(sample.candidate("h2o", "1/2"), 5.7, to_full=0.7),
            seen(sample.candidate("rkv", "1/2"), 400.0, precision=0.04, to_full=395.0), sample.other_seeds(), sample.other_batch()]


def test_places_are_by_fid_and_what_has_collapsed_has_none() -> None:
    values = sample.group(*outcomes())
    assert values.ranked_by == FID
    assert [row.method for row in values.candidates if row.place] == ["linear", "h2o", "streaming", "random"]
    assert [row.rank for row in values.candidates] == ["1", "2=", "2=", "4", ""], "LineAR is closer to the full cache than H2O"
    assert next(row for row in values.candidates if row.method == "h2o").speedup is None, "it has a place without a speedup"
    alive = [seen(o, 400.0, precision=0.12) if o.case.method == "rkv" else o for o in outcomes()]
    assert next(row for row in sample.group(*alive).candidates if row.method == "rkv").place == 5


def test_a_fid_of_too_few_images_is_not_shown_though_an_older_version_stored_it() -> None:
    def few(outcome: Outcome, count: int) -> Outcome:
        named = {name: name.replace("2k", str(count)) for name in (FID, PRECISION)}
        stored = outcome.facts.to_json()
        facts = {fact: {named[n]: ends for n, ends in stored[fact].items()} for fact in stored if fact in ("intervals", "to_full")}
        evaluation = {"quality": {**outcome.case.evaluation["quality"], "samples": count}}
        return replace(outcome, case=replace(outcome.case, evaluation=evaluation), facts=outcome.facts | Facts.from_json(facts),
                       samples={named.get(name, name): values for name, values in outcome.samples.items()})

    evaluated = [outcome for outcome in outcomes() if FID in outcome.samples]
    for count, printed in ((383, False), (384, True)):
        results, name = [few(outcome, count) for outcome in evaluated], f"fid_scene_{count}"
        contents = sample.group(*results)
        assert (contents.ranked_by == name, f"precision_scene_{count}" in contents.candidates[0].quality) == (printed, True)
        assert (name in contents.candidates[0].to_full) == printed
        assert missing(results).get(name) == (None if printed else TOO_FEW.format(least=384))
        assert (f"FID, scene, {count} images" in render(build(sample.RUN, results)).split('id="cases"')[0]) == printed


PAIR = (sample.full(), sample.candidate("linear", "1/2"))


def asked(metrics: dict[str, dict[str, str]], **samples: list[float]) -> list[Outcome]:
    """The full cache and a method, of a plan that asks for these metrics, with these values."""
    return [sample.measured(replace(o, case=replace(o.case, evaluation={"metrics": metrics})), **samples) for o in PAIR]


def keys(results: list[Outcome], kind: str) -> list[str]:
    return [column.key for part in column_groups(sample.group(*results)) if part.title == kind for column in part.columns]


def missing(results: Sequence[Outcome]) -> dict[str, str]:
    return {gap.what.partition(": ")[2]: gap.reason for gap in build(sample.RUN, results).missing}


def test_metrics_and_benchmarks_on_demand_have_columns_or_a_reason() -> None:
    for name, title, kind, values in (("clip_score", "CLIP score", "Quality", [20.0, 30.0]), ("lpips", "LPIPS", "Fidelity", [0.1, 0.2])):
        assert name in keys(asked({name: {"weights": "a/b"}}, **{name: values}), kind)
        assert missing(asked({name: {"missing": "not measured: needs vgg16"}}))[title] == "not measured: needs vgg16"
        assert title not in missing(PAIR)
    metrics = {"geneval": {"detector": "a"}, "dpg": {"weights": "b"}, "hpsv2": {"missing": "not measured: needs hpsv2"}}
    scores = {"geneval": [1.0, 0.0], "geneval_counting": [1.0], "dpg": [0.5, 0.75]}
    measured = asked(metrics, **scores)
    assert set(keys(measured, "Quality")) == {*scores}
    gaps = missing(measured)
    assert gaps["HPSv2"] == "not measured: needs hpsv2"
    assert [what for what in gaps if what.startswith(("GenEval", "DPG"))] == ["GenEval, overall"]
    assert "GenEval, object; GenEval, two objects; GenEval, color" in gaps["GenEval, overall"]


def test_the_overall_score_of_geneval_is_the_mean_of_its_tasks_or_is_not_there() -> None:
    """Tasks of different numbers of images count alike, in the score and in its difference to the full cache."""
    right = {"single_object": [1.0] * 8, "two_object": [1.0, 0.0], "counting": [0.0] * 6, "colors": [1.0] * 3 + [0.0],
             "position": [1.0, 1.0], "color_attr": [0.0, 1.0, 1.0]}  # fmt: skip
    scores = {f"geneval_{tag}": values for tag, values in right.items()}
    pair = [sample.measured(o, **scores) for o in PAIR]
    pair[1] = sample.measured(pair[1], geneval_counting=[1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    full, candidate = sample.group(*pair).full, sample.group(*pair).candidates[0]
    assert full.quality["geneval_overall"].value == pytest.approx((1 + 1 / 2 + 0 + 3 / 4 + 1 + 2 / 3) / 6)
    assert candidate.to_full["geneval_overall"].value == pytest.approx(0.5 / 6)
    ends = full.quality["geneval_overall"]
    assert (0 < ends.low < ends.value < ends.high < 1, ends.n) == (True, 25)
    assert not [what for what in missing(pair) if "GenEval" in what]
    five = [replace(o, samples={name: o.samples[name] for name in o.samples if name != "geneval_position"}) for o in pair]
    assert not [row for row in sample.group(*five).rows if "geneval_overall" in {**row.quality, **row.to_full}]


def masked(outcome: Outcome, flops: float, far: float, **bytes_: float) -> Outcome:
    samples = {k: v for k, v in outcome.samples.items() if k not in ("token_agreement", "kl")}
    if outcome.case.role in ("candidate", "baseline"):
        samples |= {"flops": [flops], **{name: [value] for name, value in bytes_.items()}}
    if "psnr" in samples:
        samples |= {"token_distance": [far, far * 1.1, far * 0.9], "forced_distance": [far / 2, far / 2.1, far / 1.9]}
    return replace(outcome, samples=samples, facts=outcome.facts | Facts(paradigm="masked"))


def masked_outcomes() -> list[Outcome]:
    nothing = {"kv_logical": 0.0, "kv_allocated": 0.0, "kv_workspace": 0.0, "kv_state": 0.0}
    some = {"kv_logical": 2.0**20, "kv_allocated": 2.0**20, "kv_workspace": 0.0, "kv_state": 2.0**20}
    return [masked(sample.full(), 15.5e12, 0.0, **nothing), masked(sample.candidate("linear", "1/2"), 6.2e12, 0.2, **some),
            masked(sample.candidate("window", "1/2"), 7.75e12, 0.99, **some),
            masked(sample.other_seeds(), 0, 1.0), masked(sample.other_batch(), 0, 1e-6)]


def test_saving_is_of_computation_and_bytes_are_added() -> None:
    by_method = {row.method: row for row in sample.group(*masked_outcomes()).candidates}
    assert (bool(by_method["window"].unranked), by_method["linear"].place) == (True, 1), "as far as other seeds"
    row = by_method["linear"]
    assert row.saving == 1 - 6.2 / 15.5
    assert not row.marks, "there is no KV saving to be eaten, and none that is fake"
    columns = column_groups(sample.group(*masked_outcomes()))
    assert [cell.key for cell in cells(row, columns)] == [column.key for column in columns_of(columns)]
    (added,) = (cell for cell in cells(row, columns) if cell.key == "added")
    assert (added.text, added.under) == ("2.00 MiB", "KV 1.00 MiB")
