"""Every metric at every consumer, generated from its class: the verdict on a better, an equal and a worse value."""

import math
from datetime import date

import pytest

from cachemark.analysis.baseline_comparison import changes
from cachemark.core import formatting
from cachemark.core.facts import Facts
from cachemark.core.result import Environment, Outcome, Status
from cachemark.core.spec import Case, Sampling
from cachemark.core.units import FAMILIES, METRICS, TIME, Metric, metric
from cachemark.export.asv import cost_of
from cachemark.gate.baseline_check import compare
from cachemark.gate.comparison import ConfigPairs, PairOfOutcomes, verdicts
from cachemark.gate.incidents import GateRow, fold
from cachemark.gate.seedwise import seedwise
from cachemark.stats.paired_test import Rule
from cachemark.store.exchange import dump, load
from cachemark.store.rows import Verdict

ENVIRONMENT = Environment("Xeon", "ci-cpu", "torch 2.6 / 4 threads", {})
RULE = Rule(0.1, 1)
SEEDS = 24  # values of a metric that is known seed by seed, and pairs of a comparison
TABLE = [metric(name) for name in (*METRICS, *(f"{family}_scene_2k" for family in FAMILIES))]
KINDS = ("worse", "equal", "better")
SAID = {"worse": "regressed", "equal": "equivalent", "better": "improved"}
STATED = dict.fromkeys(KINDS, "not_compared")


def value(of: Metric, kind: str = "equal") -> float:
    """Half the highest value, or 4; half as much and half as much again pass every threshold and minimum effect."""
    highest = 1.0 if of.unit == "share" else min(of.within[1], of.ceiling or math.inf)
    then = highest / 2 if math.isfinite(highest) else 4.0
    return then * {"equal": 1.0, "worse": 1.5 if of.better == "lower" else 0.5, "better": 0.5 if of.better == "lower" else 1.5}[kind]


def only_stated(of: Metric) -> bool:
    """Whether no gate judges it: a price, a power, and a wall time that is no latency."""
    return of.stated or (of.timed and not of.relative)


def case(method: str) -> Case:
    budget, role = ("1", "baseline") if method == "full" else ("1/2", "candidate")
    return Case("tiny", "3f9a", (8, 8), "labels", Sampling(), method, budget=budget, role=role, evaluation={"quality": {"samples": 2000}})


def outcome(of: Metric, method: str, kind: str) -> Outcome:
    """An outcome with this value, and beside it what makes it whole: a latency and a judgement."""
    count = 5 if of.relative else SEEDS if of.kind in ("fidelity", "quality") and not of.family else 1
    facts = {"intervals": {of.name: (0.99 * value(of, kind), 1.01 * value(of, kind))}} if of.family else {}
    samples = {"latency": [1.0] * 5, of.name: [value(of, kind)] * count}
    return Outcome(case(method), Status.OK, samples, "judged elsewhere", output_hash="cafe", facts=Facts.from_json(facts))


def checked(of: Metric, kind: str) -> Verdict:
    """The row of the check against a baseline."""
    then, now = ((outcome(of, "full", "equal"), outcome(of, "linear", each)) for each in ("equal", kind))
    baseline = load(dump(then, ENVIRONMENT, {"commit": "abc"}), "baseline.json")
    (row,) = (row for row in compare(baseline, now, ENVIRONMENT).rows if row.metric == of.name and row.case_key == case("linear").key)
    return row


def paired(of: Metric, kind: str) -> str | None:
    """The verdict of the comparison in pairs."""
    pair, cell = PairOfOutcomes("cell", outcome(of, "linear", "equal"), outcome(of, "linear", kind)), ConfigPairs()
    while cell.open(RULE):
        cell.add(pair, RULE)
    return {row.metric: row.verdict for row in (*verdicts({"cell": cell}, RULE), *seedwise({"cell": pair}))}.get(of.name)


def test_the_check_against_a_baseline_and_its_sentence_in_the_report() -> None:
    """Quality and what is only stated are not judged against a baseline."""
    for of in TABLE:
        rows = {kind: checked(of, kind) for kind in KINDS}
        judged = of.kind != "quality" and not only_stated(of)
        assert {kind: row.verdict for kind, row in rows.items()} == (SAID if judged else STATED), of.name
        for kind, row in rows.items():
            (change,) = changes(type("Comparison", (), {"rows": (row,)})())
            assert change.tone == ({"worse": "bad", "equal": "calm", "better": "good"}[kind] if judged else "calm"), of.name
            assert change.title == of.title
            if judged:
                assert SAID[kind] in change.sentence, of.name
                less = (kind == "better") == (of.better == "lower")
                assert kind == "equal" or ("50.0 % less" if less else "50.0 % more") in change.sentence, of.name


def test_the_comparison_in_pairs() -> None:
    """Of speed only the latency is tested; whole sets of images are not compared in pairs."""
    for of in TABLE:
        absent = of.family or (of.kind == "speed" and of.name != TIME)
        expected = dict.fromkeys(KINDS) if absent else STATED if only_stated(of) or of.kind == "energy" else SAID
        assert {kind: paired(of, kind) for kind in KINDS} == expected, of.name


def test_an_incident_of_a_loss_has_a_cost_above_1_and_a_history_in_asv_one_above_0() -> None:
    """Less is better there, and asv finds steps by ratios."""
    for of in TABLE:
        for kind in ("worse", "better"):
            then, now = value(of), value(of, kind)
            failing = Verdict(case("linear").key, "linear 1/2", of.name, "regressed", "", then, now, now / then)
            (result,) = fold([GateRow(case("linear"), failing, fails=True)], [case("linear")], date(2026, 1, 1))
            assert (result.change > 1) == (kind == "worse"), of.name
        cost = cost_of(of)
        assert 0 < cost.value(value(of, "better")) < cost.value(value(of)) < cost.value(value(of, "worse")), of.name


def test_the_name_of_a_cost_and_a_value_with_its_unit() -> None:
    for name, cost, unit, of_half in (  # names under which histories were published
        ("latency", "latency", "seconds", 0.5), ("tokens_per_s_first", "seconds_per_token_first", "seconds", 2.0),
        ("throughput", "seconds_per_image", "seconds", 2.0), ("max_batch", "max_batch_inverse", "1/image", 2.0),
        ("kv_allocated", "kv_allocated", "bytes", 0.5), ("token_agreement", "token_agreement_lost", "share", 0.5),
        ("psnr", "psnr_error", "", 10**-0.025), ("ssim", "ssim_lost", "", 0.5), ("image_reward", "image_reward_lost", "", 9.5),
        ("isc_scene_2k", "isc_scene_2k_inverse", "", 2.0), ("recall_scene_2k", "recall_scene_2k_lost", "share", 0.5),
    ):
        result = cost_of(metric(name))
        assert (result.name, result.unit, result.value(0.5)) == (cost, unit, pytest.approx(of_half))
    for name, value, text in (("latency", 2.0, "2.00 s"), ("tokens_per_s_first", 50.0, "50.0 token/s"), ("flops", 4e12, "4.00 TFLOP"),
                              ("passes", 80.0, "80.0"), ("energy_per_image", 40.0, "40.0 J"), ("mean_power", 400.0, "400 W"),
                              ("throughput", 8.0, "8.00 image/s"), ("max_batch", 8.0, "8"), ("isc_scene_2k", 4.0, "4.000")):
        assert formatting.with_unit(value, name) == text
