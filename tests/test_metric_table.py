"""Every metric at every consumer: direction, unit and transform, and the verdict on a better, an equal and a worse value.

A metric that is added needs a row here. ``then`` is a value; half as much and half as much again are its rivals, so that every threshold
and every minimum effect is passed.
"""

from __future__ import annotations

from datetime import date
from typing import NamedTuple

import pytest

from cachemark.analysis.baseline_comparison import changes
from cachemark.core import formatting
from cachemark.core.result import Environment, Outcome, Status
from cachemark.core.spec import Case, Sampling
from cachemark.core.units import FAMILIES, METRICS, metric
from cachemark.export.asv import cost_of
from cachemark.gate import incidents
from cachemark.gate.baseline_check import compare
from cachemark.gate.comparison import ConfigPairs, PairOfOutcomes, verdicts
from cachemark.gate.incidents import GateRow
from cachemark.gate.seedwise import seedwise
from cachemark.stats.paired_test import Rule
from cachemark.store.exchange import dump, load
from cachemark.store.rows import Verdict

ENVIRONMENT = Environment("Xeon", "ci-cpu", "torch 2.6 / 4 threads", {})
RULE = Rule(0.1, 1)
SEEDS = 24  # values of a value that is known seed by seed, and pairs of a comparison


class Row(NamedTuple):
    """What each consumer has to make of a metric. ``check`` and ``compare``: True where the value is judged, False where it is stated and
    not judged, None where there is no row of it. ``cost``: name, unit and value for asv. ``text``: in the report."""

    name: str
    unit: str
    better: str
    then: float
    check: bool
    compare: bool | None
    cost: tuple[str, str, float]
    text: str


ROWS = (
    Row("latency", "s", "lower", 2.0, True, True, ("latency", "seconds", 2.0), "2.00 s"),
    Row("latency_tokens", "s", "lower", 2.0, True, None, ("latency_tokens", "seconds", 2.0), "2.00 s"),
    Row("tokens_per_s_first", "token/s", "higher", 50.0, True, None, ("seconds_per_token_first", "seconds", 0.02), "50.0 token/s"),
    Row("tokens_per_s_last", "token/s", "higher", 50.0, True, None, ("seconds_per_token_last", "seconds", 0.02), "50.0 token/s"),
    Row("flops", "FLOP", "lower", 4e12, True, True, ("flops", "FLOP", 4e12), "4.00 TFLOP"),
    Row("passes", "pass", "lower", 80.0, True, True, ("passes", "pass", 80.0), "80.0"),
    Row("drafts_rejected", "token", "lower", 900.0, True, True, ("drafts_rejected", "token", 900.0), "900"),
    Row("capture_seconds", "s", "lower", 2.0, False, False, ("capture_seconds", "seconds", 2.0), "2.00 s"),
    Row("kv_logical", "B", "lower", 4096.0, True, True, ("kv_logical", "bytes", 4096.0), "4.00 KiB"),
    Row("kv_peak", "B", "lower", 4096.0, True, True, ("kv_peak", "bytes", 4096.0), "4.00 KiB"),
    Row("kv_allocated", "B", "lower", 4096.0, True, True, ("kv_allocated", "bytes", 4096.0), "4.00 KiB"),
    Row("kv_workspace", "B", "lower", 4096.0, True, True, ("kv_workspace", "bytes", 4096.0), "4.00 KiB"),
    Row("kv_state", "B", "lower", 4096.0, True, True, ("kv_state", "bytes", 4096.0), "4.00 KiB"),
    Row("graph_pool", "B", "lower", 4096.0, True, True, ("graph_pool", "bytes", 4096.0), "4.00 KiB"),
    Row("peak_memory", "B", "lower", 4096.0, True, True, ("peak_memory", "bytes", 4096.0), "4.00 KiB"),
    Row("energy_per_image", "J", "lower", 40.0, True, False, ("energy_per_image", "J", 40.0), "40.0 J"),
    Row("mean_power", "W", "lower", 400.0, False, False, ("mean_power", "W", 400.0), "400 W"),
    Row("cost_per_1000", "", "lower", 2.0, False, False, ("cost_per_1000", "", 2.0), "2.000"),
    Row("throughput", "image/s", "higher", 8.0, True, None, ("seconds_per_image", "seconds", 0.125), "8.00 image/s"),
    Row("throughput_max", "image/s", "higher", 8.0, True, None, ("seconds_per_image_max", "seconds", 0.125), "8.00 image/s"),
    Row("max_batch", "image", "higher", 8.0, True, True, ("max_batch_inverse", "1/image", 0.125), "8"),
    Row("token_agreement", "share", "higher", 0.5, True, True, ("token_agreement_lost", "share", 0.5), "50.0 %"),
    Row("kl", "nat/token", "lower", 0.5, True, True, ("kl", "nat/token", 0.5), "0.500 nat/token"),
    Row("token_distance", "", "lower", 0.5, True, True, ("token_distance", "", 0.5), "0.500"),
    Row("forced_distance", "", "lower", 0.5, True, True, ("forced_distance", "", 0.5), "0.500"),
    Row("psnr", "dB", "higher", 20.0, True, True, ("psnr_error", "", 0.1), "20.0 dB"),
    Row("ssim", "", "higher", 0.5, True, True, ("ssim_lost", "", 0.5), "0.500"),
    Row("lpips", "", "lower", 0.5, True, True, ("lpips", "", 0.5), "0.500"),
    Row("color_consistency", "share", "higher", 0.5, False, True, ("color_consistency_lost", "share", 0.5), "50.0 %"),
    Row("prompt_score", "share", "higher", 0.5, False, True, ("prompt_score_lost", "share", 0.5), "50.0 %"),
    Row("prompt_object", "share", "higher", 0.5, False, True, ("prompt_object_lost", "share", 0.5), "50.0 %"),
    Row("prompt_colour", "share", "higher", 0.5, False, True, ("prompt_colour_lost", "share", 0.5), "50.0 %"),
    Row("prompt_count", "share", "higher", 0.5, False, True, ("prompt_count_lost", "share", 0.5), "50.0 %"),
    Row("prompt_position", "share", "higher", 0.5, False, True, ("prompt_position_lost", "share", 0.5), "50.0 %"),
    Row("prompt_ground", "share", "higher", 0.5, False, True, ("prompt_ground_lost", "share", 0.5), "50.0 %"),
    Row("geneval", "share", "higher", 0.5, False, True, ("geneval_lost", "share", 0.5), "50.0 %"),
    Row("geneval_overall", "share", "higher", 0.5, False, True, ("geneval_overall_lost", "share", 0.5), "50.0 %"),
    *(Row(f"geneval_{tag}", "share", "higher", 0.5, False, True, (f"geneval_{tag}_lost", "share", 0.5), "50.0 %")
      for tag in ("single_object", "two_object", "counting", "colors", "position", "color_attr")),
    Row("dpg", "share", "higher", 0.5, False, True, ("dpg_lost", "share", 0.5), "50.0 %"),
    Row("image_reward", "", "higher", 1.0, False, True, ("image_reward_lost", "", 9.0), "1.000"),
    Row("hpsv2", "", "higher", 0.5, False, True, ("hpsv2_lost", "", 0.5), "0.500"),
    Row("clip_score", "", "higher", 20.0, False, True, ("clip_score_lost", "", 80.0), "20.0"),
    Row("class_accuracy", "share", "higher", 0.5, False, True, ("class_accuracy_lost", "share", 0.5), "50.0 %"),
    Row("fid_scene_2k", "", "lower", 40.0, False, None, ("fid_scene_2k", "", 40.0), "40.0"),
    Row("kid_scene_2k", "", "lower", 0.5, False, None, ("kid_scene_2k", "", 0.5), "0.500"),
    Row("isc_scene_2k", "", "higher", 4.0, False, None, ("isc_scene_2k_inverse", "", 0.25), "4.000"),
    Row("precision_scene_2k", "share", "higher", 0.5, False, None, ("precision_scene_2k_lost", "share", 0.5), "50.0 %"),
    Row("recall_scene_2k", "share", "higher", 0.5, False, None, ("recall_scene_2k_lost", "share", 0.5), "50.0 %"),
)
KINDS = ("worse", "equal", "better")
SAID = {"worse": "regressed", "equal": "equivalent", "better": "improved"}
by_metric = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


def figure(row: Row, kind: str) -> float:
    factor = {"equal": 1.0, "worse": 1.5 if row.better == "lower" else 0.5, "better": 0.5 if row.better == "lower" else 1.5}[kind]
    return row.then * factor


def case(method: str) -> Case:
    budget, role = ("1", "baseline") if method == "full" else ("1/2", "candidate")
    return Case("tiny", "3f9a", (8, 8), "labels", Sampling(), method, budget=budget, role=role, evaluation={"quality": {"samples": 2000}})


def outcome(row: Row, method: str, value: float) -> Outcome:
    """An outcome with this value, and beside it what makes it whole: a latency and a judgement."""
    many = SEEDS if metric(row.name).kind in ("fidelity", "quality") and row.name in METRICS else 1
    count = 5 if metric(row.name).relative else many
    facts = {} if row.name in METRICS else {"intervals": {row.name: (0.99 * value, 1.01 * value)}}
    samples = {"latency": [1.0] * 5, row.name: [value] * count}
    return Outcome(case(method), Status.OK, samples, "judged elsewhere", output_hash="cafe", facts=facts)


def test_every_metric_has_a_row() -> None:
    assert [row.name for row in ROWS] == [*METRICS, *(f"{family}_scene_2k" for family in FAMILIES)]


@by_metric
def test_its_unit_and_direction(row: Row) -> None:
    assert (metric(row.name).unit, metric(row.name).better) == (row.unit, row.better)


def checked(row: Row, kind: str) -> Verdict:
    then, now = (tuple(outcome(row, method, figure(row, k)) for method, k in (("full", "equal"), ("linear", of))) for of in ("equal", kind))
    baseline = load(dump(then, ENVIRONMENT, {"commit": "abc"}), "baseline.json")
    (result,) = (r for r in compare(baseline, now, ENVIRONMENT).rows if r.metric == row.name and r.case_key == case("linear").key)
    return result


@by_metric
def test_the_check_against_a_baseline(row: Row) -> None:
    verdicts_of = {kind: checked(row, kind).verdict for kind in KINDS}
    assert verdicts_of == {kind: SAID[kind] if row.check else "not_compared" for kind in KINDS}


@by_metric
def test_the_comparison_in_pairs(row: Row) -> None:
    for kind in KINDS:
        pair = PairOfOutcomes("cell", outcome(row, "linear", row.then), outcome(row, "linear", figure(row, kind)))
        cell = ConfigPairs()
        while cell.open(RULE):
            cell.add(pair, RULE)
        by_name = {r.metric: r.verdict for r in (*verdicts({"cell": cell}, RULE), *seedwise({"cell": pair}))}
        assert by_name.get(row.name) == (None if row.compare is None else SAID[kind] if row.compare else "not_compared"), kind


@by_metric
def test_an_incident(row: Row) -> None:
    """A loss is a cost above 1."""
    for kind in ("worse", "better"):
        now = figure(row, kind)
        failing = Verdict(case("linear").key, "linear 1/2", row.name, "regressed", "", row.then, now, now / row.then)
        (result,) = incidents.fold([GateRow(case("linear"), failing, fails=True)], [case("linear")], date(2026, 1, 1))
        assert result.change is not None
        assert (result.change > 1) == (kind == "worse")


@by_metric
def test_a_history_in_asv(row: Row) -> None:
    """asv wants values of which less is better, above zero, because it finds steps by ratios."""
    cost = cost_of(metric(row.name))
    assert (cost.name, cost.unit) == row.cost[:2]
    assert cost.value(row.then) == pytest.approx(row.cost[2])
    assert 0 < cost.value(figure(row, "better")) < cost.value(row.then) < cost.value(figure(row, "worse"))


@by_metric
def test_the_report(row: Row) -> None:
    assert formatting.with_unit(row.then, row.name) == row.text
    less, more = ("better", "worse") if row.better == "lower" else ("worse", "better")
    for kind in KINDS:
        (change,) = changes(type("Comparison", (), {"rows": (checked(row, kind),)})())
        assert change.tone == ({"worse": "bad", "equal": "calm", "better": "good"}[kind] if row.check else "calm"), kind
        assert change.title == metric(row.name).title
        if row.check:
            assert SAID[kind] in change.sentence
            assert {less: "50.0 % less", more: "50.0 % more"}.get(kind, ".") in change.sentence
