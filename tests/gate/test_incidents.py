"""Incidents: one cause is one of them, night after night, and it notify once."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from gate_examples import ENVIRONMENT, case

from cachemark.core.errors import BadBaseline, UnknownName
from cachemark.core.spec import Case
from cachemark.core.wording import percent
from cachemark.gate import incidents
from cachemark.gate.baseline_check import Comparison
from cachemark.gate.comparison import SAME_TOKENS
from cachemark.gate.incidents import Finding, Incident, fold, merge
from cachemark.gate.judgement import RunJudgement
from cachemark.gate.nights import Night
from cachemark.store.rows import RunRecord, Verdict
from cachemark.workflows.check import CheckResult

DAY = date(2026, 1, 1)
METHODS, MODELS = ("full", "linear", "h2o", "window", "rkv"), ("a", "b", "c", "d")
ALL = [case(m, model=model, batch=b) for m in METHODS for model in MODELS for b in range(1, 11)]


def worse(configs: list[Case], change: float = 1.2, metric: str = "latency") -> list[Finding]:
    return [Finding(c, metric, change, "why") for c in configs]


def of(**fields: str) -> list[Case]:
    return [c for c in ALL if all(getattr(c, name) == value for name, value in fields.items())]


def names(configs: list[Case]) -> list[str]:
    return [c.full_title for c in configs]


def figures(configs: list[Case]) -> dict[tuple[str, str], list[Verdict]]:
    return {(c.full_title, "baseline"): [Verdict(c.key, c.label, name, "equivalent") for name in ("latency", "psnr")] for c in configs}


# ------------------------------------------------------------------------------------------------ one cause

@pytest.mark.parametrize(("factor", "value", "count"), [("method", "linear", 40), ("model", "b", 50), ("engine", "eager", 200)])
def test_a_cause_is_what_its_configs_share(factor: str, value: str, count: int) -> None:
    (found,) = fold(worse(of(**{factor: value})), ALL, "abc")
    assert (found.factor, found.value, found.metric, found.onset) == (factor, value, "latency", "abc")
    assert len(of(**{factor: value})) == count
    assert set(found.configurations) == set(names(of(**{factor: value})))
    assert found.change == 1.2


def test_two_causes_are_two_incidents_and_a_lone_config_one_of_its_own() -> None:
    lone = of(method="rkv", model="d")[:1]
    found = fold(worse(of(method="linear")) + worse(of(method="h2o"), 1.5) + worse(lone), ALL)
    assert [(i.factor, i.value) for i in found] == [("method", "linear"), ("method", "h2o"), ("configuration", "d rkv 1/4, batch 1")]
    assert [i.change for i in found] == [1.2, 1.5, 1.2]


def test_what_few_of_its_configs_share_is_no_cause() -> None:
    few = of(method="linear", model="a")[:2]
    assert [i.factor for i in fold(worse(few), ALL)] == ["configuration", "configuration"]
    assert [i.factor for i in fold(worse(few), few)] == ["method"], "all that were judged are worse"


def test_other_metrics_are_other_incidents() -> None:
    configs = of(method="linear")
    assert len(fold(worse(configs) + worse(configs, metric="kv_allocated"), ALL)) == 2


@pytest.mark.parametrize(("alike", "hashes"), [("same", ["output_hash", "images_hash"]), ("numerics", [])])
def test_findings_are_the_rows_that_fail_the_gate(alike: str, hashes: list[str]) -> None:
    """Tokens that changed fail where both sides owe the same ones; against a baseline they are stated and fail nothing."""
    said = [("regressed", "latency"), ("improved", "latency"), ("equivalent", "latency"), ("inconclusive", "latency"),
            ("not_compared", "kl"), ("changed", "output_hash"), ("changed", "images_hash")]
    rows = tuple(Verdict(ALL[0].key, "l", metric, verdict) for verdict, metric in said)
    run = RunRecord(1, "compare/p", {"configurations": 1, "alike": alike}, "", "", "finished", ENVIRONMENT, {})
    pairs = RunJudgement(night=Night(run, rows))
    plain = RunJudgement(Comparison(rows, 0.15, 0.0))
    for judged, judge, failing in ((pairs, "pairs", ["latency", *hashes]), (plain, "baseline", ["latency"])):
        found = judged.findings({c.key: c for c in ALL})
        assert [(f.metric, f.found_by) for f in found] == [(metric, judge) for metric in failing]
        assert bool(found) == (judged.exit_code == 1)
        assert not judged.findings({}), "a case that is not known"


@pytest.mark.parametrize(("stated", "wanted"), [
    ({"sides": ["HEAD~1", "HEAD"], "alike": "same", "code": [{"commit": "a" * 40}, {"commit": "b" * 40}]},
     f"compare demo --commits {'a' * 12} {'b' * 12} --only 'a linear 1/4, batch 1'"),
    ({"sides": ["old/python", "new/python"], "alike": "numerics", "code": [{"commit": "a" * 40}, {"commit": "a" * 40}]},
     "compare demo --env old/python new/python --only 'a linear 1/4, batch 1'"),
    ({"sides": ["full", "linear 1/4"], "alike": "methods"}, "compare demo --cases full 'linear 1/4'"),
])
def test_what_pairs_have_found_is_measured_again_in_pairs(stated: dict[str, Any], wanted: str, tmp_path: Path) -> None:
    """Whether the comparison was judged alone or beside the run of the night."""
    config = next(c for c in ALL if c.full_title == "a linear 1/4, batch 1")
    rows = (Verdict(config.key, "l", "latency", "regressed", change=1.3),)
    comparison, run = (RunRecord(1, plan, {"configurations": 1, **stated}, "", "", "finished", ENVIRONMENT, {})
                       for plan in ("compare/demo", "demo"))
    equal = Comparison((Verdict(config.key, "l", "latency", "equivalent"),), 0.15, 0.0)
    for judged_run, baseline in ((comparison, None), (run, equal)):
        judged = RunJudgement(baseline, Night(comparison, rows))
        told = merge([], fold(judged.findings({config.key: config}), [config]), DAY, 0.1, {})
        assert CheckResult(judged_run, judged, told).notifications()[-1] == f"  again: cachemark {wanted}"


@pytest.mark.parametrize(("plan", "wanted"), [
    ("demo", "run demo --fresh"), ("mine", "run PLAN --fresh  (PLAN: the file of plan mine)"),
])
def test_what_the_baseline_has_found_is_run_again_from_a_plan_that_can_be_found(plan: str, wanted: str, tmp_path: Path) -> None:
    rows = (Verdict(ALL[0].key, "l", "latency", "regressed", change=1.3),)
    run = RunRecord(1, plan, {}, "", "", "finished", ENVIRONMENT, {})
    night = Night(replace(run, plan_json={"sides": ["A", "B"], "configurations": 1}), ())
    judged = RunJudgement(Comparison(rows, 0.15, 0.0), night)
    told = merge([], fold(judged.findings({ALL[0].key: ALL[0]}), ALL[:1]), DAY, 0.1, {})
    assert CheckResult(run, judged, told).notifications()[-1] == f"  again: cachemark {wanted}"


# ------------------------------------------------------------------------------------------------ night after night

def nights(changes: list[list[Finding]], register: tuple[Incident, ...] = (), first: date = DAY) -> list[incidents.IncidentNight]:
    found = []
    for number, night in enumerate(changes):
        told = merge(register, fold(night, ALL, "abc"), first + timedelta(days=number), 0.1, figures(ALL))
        found.append(told)
        register = told.register
    return found


LINEAR = of(method="linear")


@pytest.mark.parametrize(("changes", "notified"), [
    ([worse(LINEAR, 1.2 + n / 1000) for n in range(10)], [1, *[0] * 9]),
    ([worse(LINEAR), worse(LINEAR[:30]), worse(LINEAR[5:])], [1, 0, 0]),
    ([worse(LINEAR, change) for change in (1.2, 1.31, 1.33, 1.4)], [1, 0, 1, 0]),  # 1.2 × 1.1 is 1.32; then 1.33 is what people know
])  # fmt: skip
def test_a_cause_notifies_once_until_it_grows(changes: list[list[Finding]], notified: list[int]) -> None:
    found = nights(changes)
    assert [len(night.notify) for night in found] == notified
    assert [len(night.failing) for night in found] == [1] * len(changes), "it fails every night"
    (last,) = found[-1].register
    assert (last.since, last.change) == (DAY.isoformat(), changes[-1][0].change)


def test_what_is_gone_is_fixed_and_what_comes_back_is_new() -> None:
    found = nights([worse(LINEAR), [], worse(LINEAR)])
    assert [i.key for i in found[1].fixed] == [found[0].notify[0].key]
    assert (found[1].register, [len(night.notify) for night in found]) == ((), [1, 0, 1])
    assert found[2].notify[0].key != found[0].notify[0].key
    assert found[2].register[0].since == (DAY + timedelta(days=2)).isoformat()


def test_what_was_not_judged_is_not_fixed() -> None:
    (first,) = nights([worse(of(method="linear"))])
    again = merge(first.register, [], DAY, 0.1, figures(of(method="h2o")))
    assert not again.fixed
    assert again.register == first.register


SAID = [  # metric and judge of an incident; what the baseline says of its configuration tonight, then the pairs; whether it is fixed
    ("latency", "baseline", [("latency", "equivalent")], [], True),
    ("latency", "baseline", [("latency", "not_compared"), ("kv_allocated", "equivalent")], [], False),
    ("latency", "baseline", [("status", "regressed")], [], False),
    ("latency", "baseline", [("latency", "not_compared")], [("latency", "equivalent")], False),
    ("latency", "pairs", [("latency", "equivalent")], [], False),
    ("latency", "pairs", [("latency", "equivalent")], [("latency", "inconclusive"), ("kv_allocated", "equivalent")], False),
    ("latency", "pairs", [("latency", "not_compared")], [("latency", "equivalent")], True),
    ("status", "baseline", [("latency", "not_compared")], [], True),
    ("status", "baseline", [("status", "not_compared")], [], False),
    ("status", "pairs", [], [("latency", "inconclusive"), ("status", "not_compared")], False),
    ("psnr", "pairs", [("psnr", "equivalent")], [("latency", "equivalent")], False),
    ("psnr", "pairs", [], [("output_hash", "equivalent")], True),
    ("images_hash", "pairs", [], [("output_hash", "equivalent")], True),
    ("kv_allocated", "pairs", [], [("output_hash", "equivalent")], False),
]


@pytest.mark.parametrize(("metric", "found_by", "baseline", "pairs", "fixed"), SAID)
def test_an_incident_is_fixed_where_the_judge_that_found_it_judged_its_metric(
    metric: str, found_by: str, baseline: list[tuple[str, str]], pairs: list[tuple[str, str]], fixed: bool,
) -> None:
    config = ALL[0]
    old = Incident("k", metric, "configuration", config.full_title, (config.full_title,), 1.05, state="acknowledged", found_by=found_by)
    rows = {judge: [*(Verdict(config.key, "l", name, verdict, SAME_TOKENS if name == "output_hash" else "") for name, verdict in verdicts),
                    Verdict("", "l", metric, "equivalent")] for judge, verdicts in (("baseline", baseline), ("pairs", pairs))}
    night = merge([old], [], DAY, 0.1, incidents.rows_by_config(rows, {config.key: config}))
    assert [i.key for i in night.fixed] == ["k"] * fixed
    assert night.register == (() if fixed else (old,))


def test_what_pairs_have_found_stays_theirs() -> None:
    """A night whose comparison broke off finds it by the baseline, and does not make it the baseline's."""
    configs = of(method="linear")
    in_pairs = [replace(f, found_by="pairs") for f in worse(configs)]
    found = nights([worse(configs), [*in_pairs, *worse(configs[:1])], worse(configs)])
    assert [night.register[0].found_by for night in found] == ["baseline", "pairs", "pairs"]


def test_acknowledged_until_a_day_and_accepted_for_good() -> None:
    configs = of(method="linear")
    (first,) = nights([worse(configs)])
    key = first.notify[0].key
    acknowledged = incidents.acknowledge(first.register, key, "ada", DAY + timedelta(days=2), "https://example.org/1")
    assert (acknowledged[0].state, acknowledged[0].who, acknowledged[0].link) == ("acknowledged", "ada", "https://example.org/1")
    found = nights([worse(configs)] * 4, tuple(acknowledged), DAY + timedelta(days=1))
    assert [len(night.notify) for night in found] == [0, 0, 1, 0], "until the day itself it is known"
    assert found[2].notify[0].state == "new"
    accepted = incidents.acknowledge(first.register, key, "ada", None)
    assert not any(night.notify or night.failing for night in nights([worse(configs)] * 40, tuple(accepted)))
    assert nights([worse(configs, 1.4)], tuple(accepted))[0].notify
    with pytest.raises(UnknownName, match=f"Known: {key}"):
        incidents.acknowledge(first.register, "nothing", "ada", None)


def test_a_register_is_a_file_that_stays_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "baselines" / "incidents.json"
    assert incidents.load(path) == []
    register = nights([worse(of(method="linear"))])[0].register
    incidents.save(path, register)
    assert tuple(incidents.load(path)) == register
    stored = asdict(register[0])
    for text, words in (("{", "cannot be read: .*EOF"), ("[]", "cannot be read"), ('{"format": 3, "incidents": []}', "has format = 3"),
                        ('{"format": 2, "incidents": [{}]}', r"lacks incidents\.0\.key"), ("\udcff", "is not text"),
                        *((json.dumps({"format": 2, "incidents": [{**stored, **change}]}), rf"has incidents\.0\.{next(iter(change))}")
                          for change in ({"until": "soon"}, {"state": "old"}, {"change": -1}, {"metric": "a\nb"}, {"owner": "ada"}))):
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(BadBaseline, match=words):
            incidents.load(path)


def row(of: Case, metric: str, then: float, now: float) -> Verdict:
    return Verdict(of.key, of.label, metric, "regressed", "why", then, now, now / then)


@pytest.mark.parametrize(("metric", "then", "now", "cost"), [
    ("latency", 1.0, 1.25, 1.25), ("tokens_per_s_last", 50.0, 40.0, 1.25), ("psnr", 30.0, 24.0, 1.25), ("color_consistency", 0.5, 0.0, 1e6),
])
def test_a_loss_is_a_cost_whatever_the_direction_of_the_metric(metric: str, then: float, now: float, cost: float) -> None:
    configs = of(method="linear")
    found = fold(incidents.findings([row(c, metric, then, now) for c in configs], {c.key: c for c in configs}), ALL)
    assert [i.change for i in found] == [pytest.approx(cost)]
    assert f"{percent(cost - 1, '+')} cost" in incidents.described(found[0], "demo")[1]



def test_five_lines_name_the_cause_cost_onset_owner_and_command() -> None:
    (incident,) = nights([worse(of(method="linear"))])[0].notify
    incident = replace(incident, who="bob", until="2026-02-01")
    lines = incidents.described(incident, "demo", ("--commits", "good", "bad"))
    words = ("method linear, 40 configurations", "+20 %", "seen at commit abc", "owner: bob until 2026-02-01",
             "--commits good bad --only 'a linear 1/4, batch 1'")
    for line, word in zip(lines, words, strict=True):
        assert word in line


