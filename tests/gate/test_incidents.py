"""Incidents: one cause is one incident, night after night, and it is reported once."""

from datetime import date, timedelta
from typing import Any

import pytest
from gate_examples import ENVIRONMENT, case

from cachemark.core.errors import UnknownName
from cachemark.core.spec import Case
from cachemark.gate.baseline_check import Comparison
from cachemark.gate.incidents import GateRow, Incident, IncidentNight, acknowledge, decisions, fold, merge
from cachemark.gate.judgement import RunJudgement
from cachemark.gate.nights import Night
from cachemark.store.rows import RunRecord, Verdict
from cachemark.workflows.check import incident_lines

DAY = date(2026, 1, 1)
METHODS, MODELS = ("full", "linear", "h2o", "window", "rkv"), ("a", "b", "c", "d")
ALL = [case(m, model=model, batch=b) for m in METHODS for model in MODELS for b in range(1, 11)]


def row(case: Case, metric: str, verdict: str, change: float | None = None, reason: str = "why") -> Verdict:
    return Verdict(case.key, case.label, metric, verdict, reason, change=change)


def worse(configs: list[Case], change: float = 1.2, metric: str = "latency", judge: str = "baseline") -> list[GateRow]:
    return [GateRow(c, row(c, metric, "regressed", change), judge, fails=True) for c in configs]


def of(**fields: str) -> list[Case]:
    return [c for c in ALL if all(getattr(c, name) == value for name, value in fields.items())]


LINEAR = of(method="linear")


def decided(configs: list[Case]) -> list[GateRow]:
    """Rows of a night that decide on the configurations, none of which is worse."""
    return [GateRow(c, row(c, name, "equivalent")) for c in configs for name in ("latency", "psnr")]


def test_a_cause_is_what_its_configs_share_and_two_are_two_incidents() -> None:
    for factor, value in (("method", "linear"), ("model", "b"), ("engine", "eager")):
        (incident,) = fold(worse(of(**{factor: value})), ALL, DAY, "abc")
        assert (incident.factor, incident.value, incident.metric, incident.onset, incident.change) == (factor, value, "latency", "abc", 1.2)
        assert set(incident.configurations) == {c.full_title for c in of(**{factor: value})}
    folded = fold(worse(of(method="linear")) + worse(of(method="h2o"), 1.5) + worse(of(method="rkv", model="d")[:1]), ALL, DAY)
    assert [(i.factor, i.value) for i in folded] == [("method", "linear"), ("method", "h2o"), ("configuration", "d rkv 1/4, batch 1")]
    assert [i.change for i in folded] == [1.2, 1.5, 1.2]


@pytest.mark.parametrize(("alike", "hashes"), [("same", ["output_hash", "images_hash"]), ("numerics", [])])
def test_rows_that_fail_the_gate_are_folded(alike: str, hashes: list[str]) -> None:
    """Tokens that changed fail where both sides owe the same ones; against a baseline they are stated and fail nothing."""
    stated = [("regressed", "latency"), ("improved", "latency"), ("equivalent", "latency"), ("inconclusive", "latency"),
              ("not_compared", "kl"), ("changed", "output_hash"), ("changed", "images_hash")]
    rows = tuple(row(ALL[0], metric, verdict) for verdict, metric in stated)
    run = RunRecord(1, "compare/p", {"configurations": 1, "alike": alike}, "", "", "finished", ENVIRONMENT, {})
    pairs = RunJudgement(night=Night(run, rows))
    plain = RunJudgement(Comparison(rows, 0.15, 0.0))
    for judgement, judge, failing in ((pairs, "pairs", ["latency", *hashes]), (plain, "baseline", ["latency"])):
        gate_rows = judgement.gate_rows({c.key: c for c in ALL})
        assert [(r.row, r.judge) for r in gate_rows] == [(row, judge) for row in rows]
        assert ([r.row.metric for r in gate_rows if r.fails], bool(failing)) == (failing, judgement.exit_code == 1)
        assert not judgement.gate_rows({}), "a case that is not known"


def test_what_pairs_found_is_measured_again_in_pairs() -> None:
    """Whether the comparison was judged alone or with the run of the night."""
    config = next(c for c in ALL if c.full_title == "a linear 1/4, batch 1")
    stated = {"configurations": 1, "sides": ["HEAD~1", "HEAD"], "alike": "same", "code": [{"commit": "a" * 40}, {"commit": "b" * 40}]}
    comparison, run = (RunRecord(1, plan, stated, "", "", "finished", ENVIRONMENT, {}) for plan in ("compare/demo", "demo"))
    night = Night(comparison, (row(config, "latency", "regressed", 1.3),))
    for judged_run, baseline in ((comparison, None), (run, Comparison((row(config, "latency", "equivalent"),), 0.15, 0.0))):
        judgement = RunJudgement(baseline, night, store="n.sqlite")
        (incident,) = merge([], judgement.gate_rows({config.key: config}), DAY, 0.1, "abc").notify
        *_, last = incident_lines(incident, judged_run, judgement)
        assert last == f"  again: cachemark compare demo --commits {'a' * 12} {'b' * 12} --only 'a linear 1/4, batch 1' --store n.sqlite"


def nights(changes: list[list[GateRow]], register: tuple[Incident, ...] = (), first: date = DAY) -> list[IncidentNight]:
    """The nights with these failing rows, in which every other configuration is decided and not worse."""
    made = list[IncidentNight]()
    for number, failing in enumerate(changes):
        well = decided([c for c in ALL if c not in [f.case for f in failing]])
        made.append(merge(made[-1].register if made else register, [*failing, *well], first + timedelta(days=number), 0.1, "abc"))
    return made


def test_a_cause_is_reported_once_until_it_grows_or_is_fixed_by_the_judge_that_found_it() -> None:
    for changes, notified in (
        ([worse(LINEAR, 1.2 + n / 1000) for n in range(10)], [1, *[0] * 9]),
        ([worse(LINEAR), worse(LINEAR[:3]), worse(LINEAR[35:])], [1, 0, 0]),
        ([worse(LINEAR[:30]), worse(LINEAR)], [1, 0]),
        ([worse(LINEAR, change) for change in (1.2, 1.31, 1.33, 1.4)], [1, 0, 1, 0]),  # 1.2 × 1.1 is 1.32; then 1.33 is what people know
        ([worse(LINEAR), worse(LINEAR, metric="tokens_per_s_last", change=1 / 1.5)], [1, 0]),  # another metric of the family
    ):
        history_nights = nights(changes)
        assert [len(night.notify) for night in history_nights] == notified
        assert [len(night.register) for night in history_nights] == [1] * len(changes), "it stays open"
        (last,) = history_nights[-1].register
        reported = max(number for number, night in enumerate(history_nights) if night.notify)
        assert (last.since, last.change) == (DAY, changes[reported][0].cost)
        assert set(last.configurations) == {f.case.full_title for night in changes for f in night}
    history_nights = nights([worse(LINEAR), [], worse(LINEAR)])
    assert [i.key for i in history_nights[1].fixed] == [history_nights[0].notify[0].key]
    assert (history_nights[1].register, [len(night.notify) for night in history_nights]) == ((), [1, 0, 1])
    assert history_nights[2].notify[0].key != history_nights[0].notify[0].key
    assert history_nights[2].register[0].since == DAY + timedelta(days=2)
    history_nights = nights([[*worse(LINEAR, judge="pairs"), *worse(LINEAR[:1])], worse(LINEAR), []])
    assert [[i.found_by for i in night.register] for night in history_nights] == [["pairs"]] * 3
    assert not history_nights[2].fixed


@pytest.mark.parametrize(("metric", "found_by", "baseline", "pairs", "fixed"), [  # what they say of its configuration tonight
    ("latency", "baseline", [("latency", "equivalent")], [], True),
    ("latency", "baseline", [("latency", "not_compared"), ("kv_allocated", "equivalent")], [], False),
    ("latency", "baseline", [("status", "regressed")], [], False), ("latency", "baseline", [], [], False),
    ("latency", "baseline", [("latency", "not_compared")], [("latency", "equivalent")], False),
    ("latency", "pairs", [("latency", "equivalent")], [], False),
    ("latency", "pairs", [("latency", "equivalent")], [("latency", "inconclusive"), ("kv_allocated", "equivalent")], False),
    ("latency", "pairs", [("latency", "not_compared")], [("latency", "equivalent")], True),
    ("status", "baseline", [("latency", "not_compared")], [], True), ("status", "baseline", [("status", "not_compared")], [], False),
    ("status", "pairs", [], [("latency", "inconclusive"), ("status", "not_compared")], False),
    ("psnr", "pairs", [("psnr", "equivalent")], [("latency", "equivalent")], False),
    ("psnr", "pairs", [], [("output_hash", "equivalent")], True), ("images_hash", "pairs", [], [("output_hash", "equivalent")], True),
    ("kv_allocated", "pairs", [], [("output_hash", "equivalent")], False)])
def test_the_judge_that_found_an_incident_finds_it_fixed(metric: str, found_by: str, baseline: Any, pairs: Any, fixed: bool) -> None:
    config = ALL[0]
    old = Incident("k", metric, "configuration", config.full_title, (config.full_title,), 1.05, DAY, state="acknowledged",
                   found_by=found_by)
    rows = [GateRow(config, row(config, name, verdict), judge)
            for judge, verdicts in (("baseline", baseline), ("pairs", pairs)) for name, verdict in verdicts]
    night = merge([old], rows, DAY, 0.1)
    assert ([i.key for i in night.fixed], night.register) == (["k"] * fixed, () if fixed else (old,))


def test_acknowledged_until_a_day_or_accepted_for_good_for_each_failing_row() -> None:
    (first,) = nights([worse(LINEAR)])
    key = first.notify[0].key
    acknowledged = acknowledge(first.register, key, "ada", DAY + timedelta(days=2), "https://example.org/1")
    assert (acknowledged[0].state, acknowledged[0].who, acknowledged[0].link) == ("acknowledged", "ada", "https://example.org/1")
    history_nights = nights([worse(LINEAR)] * 4, tuple(acknowledged), DAY + timedelta(days=1))
    assert [len(night.notify) for night in history_nights] == [0, 0, 1, 0], "until the day itself it is known"
    last = history_nights[2].notify[0]
    assert (last.state, last.who, last.until) == ("new", "ada", None), "she still owns it"
    accepted = acknowledge(first.register, key, "ada", None)
    assert not any(night.notify for night in nights([worse(LINEAR)] * 40, tuple(accepted)))
    assert nights([worse(LINEAR, 1.4)], tuple(accepted))[0].notify
    with pytest.raises(UnknownName, match=f"Known: {key}"):
        acknowledge(first.register, "nothing", "ada", None)
    rows = [*worse(LINEAR), *worse(of(method="h2o")), *decided(of(method="rkv"))]
    assert not decisions(rows, first.register, DAY)
    until = acknowledge(first.register, key, "ada", DAY)
    assert decisions(rows, until, DAY).keys() == {(c.key, "latency") for c in LINEAR}
    assert not decisions(rows, until, DAY + timedelta(days=1))
    other = Incident("k", "latency", "configuration", LINEAR[0].full_title, (LINEAR[0].full_title,), 1.2, DAY)
    assert len(decisions(rows, [*until, other], DAY)) == len(LINEAR) - 1, "an open incident of one of them"
