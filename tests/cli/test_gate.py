"""``cachemark check``, ``baseline`` and ``incident``: exit codes, rows and the first nights of a plan."""

import json
import re
import shlex
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachemark.core.facts import Facts
from cachemark.gate.baseline_check import STATED
from cachemark.plans.schema import PLUGIN_FILES
from cachemark.store.db import Store
from cachemark.trial.executors import local as executor
from cachemark.workflows.check import judge
from support.stages import Stage, call, data, good

from .quick_machine import HERE, SIDES, Machine, compare, number

Patch = pytest.MonkeyPatch
Edit = Callable[[dict[str, Any]], object]
COMMITS = {"commit": "a" * 40, "dirty": False}


@pytest.fixture
def accepted(stage: Stage) -> Path:
    return Path(good(call("baseline", "save", "--store", stage.store, "--reason", "the tests")).removeprefix("Baseline: ").strip())


def edited(path: Path, edit: Edit) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def of(content: dict[str, Any], *methods: str) -> list[dict[str, Any]]:
    return [outcome for outcome in content["outcomes"] if outcome["case"]["method"] in (methods or ("calm",))]


def fewer_bytes(content: dict[str, Any], *methods: str) -> None:
    for outcome in of(content, *methods):
        outcome["samples"]["kv_allocated"] = [value - 100 for value in outcome["samples"]["kv_allocated"]]


def faster(content: dict[str, Any], factor: float = 2, *methods: str) -> None:
    for outcome in of(content, *methods):
        outcome["samples"]["latency"] = [value / factor for value in outcome["samples"]["latency"]]


def failed(content: dict[str, Any]) -> None:
    of(content)[0].update(status="oom", samples={}, judgement="", log="it was so", output_hash="")


def another_case(content: dict[str, Any]) -> None:
    content["outcomes"].append(json.loads(json.dumps(of(content)[0])))
    content["outcomes"][-1]["case"]["batch"] = 64


@pytest.mark.parametrize(("edit", "more", "code", "words"), [
    (fewer_bytes, [], 1, "regressed: dot calm 1/2, kv_allocated"),
    (faster, ["--threshold", "0.999"], 1, "regressed: dot calm 1/2, latency"),  # twice as slow is above any share
    (failed, [], 0, "1 improved"),
    (another_case, [], 4, "missing: dot calm 1/2"),
    (another_case, ["--min-coverage", "0.5"], 0, "5 of the baseline's 6 cases"),
])  # fmt: skip
def test_check_exits_with_its_verdict(edit: Edit, more: list[str], code: int, words: str, accepted: Path, stage: Stage) -> None:
    edited(accepted, edit)
    result = call("check", "--store", stage.store, *more)
    assert result.exit_code == code, result.output
    assert words in result.stdout
    assert result.stdout.endswith(f"Baseline: {accepted}\n")
    machine = call("check", "--store", stage.store, "--json", *more)
    assert (machine.exit_code, json.loads(machine.stdout)["exit_code"]) == (code, code)
    assert {"regressed"} & {row["verdict"] for row in json.loads(machine.stdout)["rows"]} == ({"regressed"} if code == 1 else set())


def test_check_report_and_pairs_take_a_baseline_and_list_shows_it(accepted: Path, stage: Stage, tmp_path: Path) -> None:
    [row] = data(call("baseline", "list", "--json"))
    assert (row["path"], row["name"], row["plan"], row["outcomes"], row["reason"]) == (str(accepted), "dots", "dots", 5, "the tests")
    for dirty, code, text in ((False, 0, "c" * 40 + "\n"), (True, 4, "")):
        edited(accepted, lambda content, dirty=dirty: content["code"].update(commit="c" * 40, dirty=dirty))
        result = call("baseline", "commit", "--store", stage.store)
        assert (result.exit_code, result.stdout) == (code, text)
    other = accepted.rename(tmp_path / "other.json")
    assert call("baseline", "commit", "--store", stage.store).exit_code == 2
    edited(other, fewer_bytes)
    assert call("check", "--store", stage.store, "--baseline", other).exit_code == 1
    good(call("report", "page.html", "--store", stage.store, "--baseline", other))
    assert "regressed" in Path("page.html").read_text().lower()


def test_the_first_night_proposes_a_baseline_and_passes(stage: Stage, tmp_path: Path) -> None:
    check = ("check", "--store", stage.store, "--incidents", tmp_path / "incidents.json")
    assert call(*check).exit_code == 2, "unless it is asked to propose one"
    result = call(*check, "--propose", tmp_path / "proposed")
    assert result.exit_code == 0
    (proposed,) = (tmp_path / "proposed").glob("*/dots.json")
    assert f"Proposed: {proposed}. To accept it: cachemark baseline save --store {stage.store} --run 1" in result.stdout
    assert call("check", "--store", stage.store, "--baseline", proposed).exit_code == 0
    assert not list(Path("baselines/accepted").glob("*/dots.json")), "only people accept one"
    proposed.unlink()
    assert call("baseline", "save", "--store", stage.store).exit_code == 0
    second = call(*check, "--propose", tmp_path / "proposed")
    assert (second.exit_code, "Proposed" in second.stdout, proposed.exists()) == (0, False, False)


@pytest.mark.parametrize(("then", "now", "stated"), [
    (COMMITS, {"commit": "b" * 40, "dirty": False}, f"test them in pairs with: cachemark compare FILE --commits {'a' * 12} {'b' * 12}"),
    (COMMITS, COMMITS, f"the run and the baseline are of one commit, {'a' * 12}"), (COMMITS, {"commit": "b" * 40, "dirty": True}, ""),
    ({"commit": "", "dirty": None}, COMMITS, "")])
def test_times_are_judged_without_pairs(then: Any, now: Any, stated: str, accepted: Path, stage: Stage, monkeypatch: Patch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    edited(accepted, lambda content: faster(content, 10, "streaming", "calm"))
    edited(accepted, lambda content: content["code"].update(then))
    with Store.open(stage.store, create=False, read_only=True) as store:
        run = store.run()
        stated = stated.replace("FILE", shlex.quote(run.stored_plan["file"]))
        judged = judge(store, replace(run, code={**run.code, **now}), accepted)
        asked = judge(store, replace(run, code={**run.code, **now}), accepted, threshold=0.15)
    times = {row.label: row for row in judged.rows if row.metric == "latency" and row.label != "dot full"}
    assert {row.verdict for row in times.values()} == {"not_compared" if stated else "regressed"}
    assert (judged.exit_code, asked.exit_code) == (0 if stated else 1, 1), "a given threshold is applied"
    if stated:
        (row, *_) = times.values()
        assert (row.reason, row.change) == (f"{STATED}: {stated}", pytest.approx(10, rel=1e-6))
        assert f"Times: {row.reason}{'' if 'cachemark' in stated else '.'}" in judged.summary()


@pytest.mark.parametrize(("committed", "verdict", "reason"), [
    ({}, "regressed", ""),
    ({"edited": False}, "not_compared", f"--plugin '/my repo/calm.py' --versions {'c' * 12} {'d' * 12} --threads 1")])
def test_times_of_a_changed_plugin_have_a_verdict_or_pairs(
    committed: dict[str, Any], verdict: str, reason: str, accepted: Path, stage: Stage, monkeypatch: Patch) -> None:
    """The package is of one commit in both: only the repository of the plug-in can hold two versions to pair."""
    then, now = ({"plugin": {"file": "calm.py", "digest": letter * 16, **({"commit": letter * 40} if committed else {}), **committed}}
                 for letter in "cd")

    def changed(content: dict[str, Any]) -> None:
        faster(content, 10)
        content["code"].update(COMMITS)
        of(content)[0]["facts"].update(then)

    edited(accepted, changed)
    with Store.open(stage.store, create=False, read_only=True) as store:
        run = store.run()
        outcomes = [replace(each, facts=each.facts | Facts.from_json(now)) if each.case.method == "calm" else each
                    for each in store.outcomes(run.id)]
        monkeypatch.setattr(store, "outcomes", lambda run_id: outcomes)
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
        files = {PLUGIN_FILES: {"/my repo/calm.py": "d" * 16}}
        judged = judge(store, replace(run, code={**run.code, **COMMITS}, plan_json={**run.plan_json, **files}), accepted)
    (row,) = [row for row in judged.rows if row.metric == "latency" and "calm" in row.label]
    assert (row.verdict, reason in row.reason) == (verdict, True)


def test_an_incident_fails_until_it_is_acknowledged_and_is_in_every_output(accepted: Path, stage: Stage, tmp_path: Path) -> None:
    edited(accepted, lambda content: fewer_bytes(content, "streaming"))
    register = tmp_path / "incidents.json"
    known = ("--store", stage.store, "--incidents", register)
    first, second = call("check", *known), call("check", *known)
    assert (first.exit_code, second.exit_code) == (1, 1), "a second try changes nothing"
    assert ("owner: nobody" in first.stdout, "Known: " in second.stdout) == (True, True)
    assert re.search(r"kv_allocated: [\d.]+ [KM]?i?B", first.stdout), "as tables print it"

    def outputs() -> tuple[ET.Element, str, str, str]:
        annotations = call("export", "github", *known, "--comment", tmp_path / "comment.md").stdout
        good(call("report", tmp_path / "page.html", *known))
        return ET.fromstring(call("export", "junit", *known).stdout), annotations, *(
            (tmp_path / name).read_text() for name in ("comment.md", "page.html"))

    junit, annotations, comment, page = outputs()
    assert (len([*junit.iter("failure")]), "::error" in annotations) == (2, True), "the row and the verdict"
    for output in (comment, page):
        assert output.index("Regressed") < output.index("owner: nobody") < output.index("again: cachemark")
    (incident,) = json.loads(register.read_text())["incidents"]
    assert f"cachemark incident acknowledge {incident['key']} --register {register} --who NAME" in comment.replace("\\", "")
    key, decision, decide = incident["key"], "acknowledged by ada until 2999-01-01", ("--register", register, "--who", "ada")
    assert call("incident", "acknowledge", key, *decide, "--until", "2999-01-01").exit_code == 0
    decided = call("check", *known)
    assert (decided.exit_code, f"{key} (acknowledged)" in decided.stdout) == (0, True)
    junit, annotations, comment, page = outputs()
    assert ([*junit.iter("failure")], "::error" in annotations, decision in comment) == ([], False, True)
    assert f"Known incident {key}, configuration dot streaming 1/2, batch 2: {decision} (1 row)." in page
    assert len([each for each in junit.iter("skipped") if f"incident {key}, {decision}" in (each.get("message") or "")]) == 1
    good(call("report", tmp_path / "page.html", "--public", *known))
    assert "ada" not in (tmp_path / "page.html").read_text().split("Every regression")[1][:400], "names of people stay here"
    assert call("incident", "acknowledge", key, *decide, "--link", "l").exit_code == 0
    assert call("check", *known, "--json").exit_code == 0
    wrong = call("incident", "acknowledge", "nothing", *decide)
    assert (wrong.exit_code, f"Known: {key}" in wrong.stderr) == (2, True)


def test_a_comparison_is_judged_and_joined(machine: Machine, stage: Stage, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(stage.store, create=False, read_only=True) as store:
        code = store.run(1).code["hash"]
    monkeypatch.setattr(executor, "identify", lambda options, device: (HERE, {"hash": code, "commit": "abc"}))
    assert call("baseline", "save", "--store", stage.store).exit_code == 0
    commits = ("--commits", "HEAD~16", "HEAD", "--repository", repository, "--only", "calm 1/2", "--no-aa")

    def page_of_run_1() -> str:
        assert call("report", "--site", stage.folder / "site", "--store", stage.store).exit_code == 0
        return (stage.folder / "site" / "runs" / "run-1.html").read_text()

    assert "1 regressed, 0 not resolved" not in page_of_run_1()
    machine.speed = lambda planned, options: 1.3 if number(options) else 1.0
    assert compare(stage, *commits).exit_code == 1
    for more in ((), ("--run", 2)):
        result = call("check", "--store", stage.store, *more)
        assert result.exit_code == 1
        assert "1 regressed, 0 not resolved" in result.stdout
        assert result.stdout.startswith("Regressed: ")
    page = stage.folder / "page.html"
    assert call("report", page, "--store", stage.store).exit_code == 0
    assert "1 regressed, 0 not resolved" in page.read_text()
    assert "1 regressed, 0 not resolved" in page_of_run_1()
    machine.speed = lambda planned, options: 1.0
    assert compare(stage, *commits).exit_code == 0
    assert call("check", "--store", stage.store).exit_code == 0, "the newest comparison counts"
    assert call("check", "--store", stage.store, "--run", 2).exit_code == 1
    machine.speed = lambda planned, options: 1.3 if planned.case.method == "calm" else 1.0
    assert compare(stage, *SIDES, "--no-aa").exit_code == 1
    assert call("check", "--store", stage.store).exit_code == 0, "that one method is slower than another is no change"


def test_a_gate_that_alarms_on_equal_sides_fails_nothing(machine: Machine, stage: Stage) -> None:
    machine.speed = lambda planned, options: 1.3 if planned.case.method == "calm" else 1.0
    for _ in range(3):
        assert compare(stage, *SIDES).exit_code == 1
    assert call("check", "--store", stage.store, "--run", 4).exit_code == 1
    with Store.open(stage.store) as store:
        for run in (2, 3, 4):
            store.save_verdicts(run, [replace(v, verdict="regressed") if v.label.startswith("A/A") and v.metric == "latency" else v
                                      for v in store.verdicts(run)])
    result = call("check", "--store", stage.store, "--run", 4)
    assert result.exit_code == 0
    assert "the gate is advisory and fails nothing by times" in result.stdout
    assert compare(stage, *SIDES).exit_code == 0
    machine.changed = lambda o, options: replace(o, samples={**o.samples, "kv_allocated": [1.0 + (options.python == "new")]})
    assert compare(stage, "--env", "old", "new").exit_code == 1, "bytes are not noisy"
