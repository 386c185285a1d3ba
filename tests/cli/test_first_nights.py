"""The first nights of a plan: proposed baseline, untested times, and incidents."""

from __future__ import annotations

import json
import shlex
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachemark.core.units import metric
from cachemark.gate import baselines
from cachemark.gate.baseline_check import STATED
from cachemark.gate.incidents import OF_IMAGES
from cachemark.store.db import Store
from cachemark.workflows.check import judge
from support.stages import Stage, call


def changed(stage: Stage, change: Callable[[dict[str, Any]], None]) -> Path:
    """The accepted baseline of a stage's run, with every outcome changed so."""
    assert call("baseline", "save", "--store", stage.store).exit_code == 0
    (path,) = Path("baselines/accepted").glob("*/dots.json")
    held = json.loads(path.read_text())
    for outcome in held["outcomes"]:
        change(outcome)
    path.write_text(json.dumps(held))
    return path


def test_the_first_night_proposes_a_baseline_and_passes(stage: Stage, tmp_path: Path) -> None:
    judging = ("check", "--store", stage.store, "--incidents", tmp_path / "incidents.json")
    assert call(*judging).exit_code == 2, "unless it is asked to propose one"
    found = call(*judging, "--propose", tmp_path / "proposed")
    assert found.exit_code == 0
    (proposed,) = (tmp_path / "proposed").glob("*/dots.json")
    accept = f"cachemark baseline save --store {stage.store} --run 1"
    assert f"No baseline yet. Proposed: {proposed}. To accept it: {accept}" in found.stdout
    assert call("check", "--store", stage.store, "--baseline", proposed).exit_code == 0
    assert not list(Path("baselines/accepted").glob("*/dots.json")), "only people accept one"
    proposed.unlink()
    assert call("baseline", "save", "--store", stage.store).exit_code == 0
    second = call(*judging, "--propose", tmp_path / "proposed")
    assert (second.exit_code, "Proposed" in second.stdout, proposed.exists()) == (0, False, False)


COMMITS = {"commit": "a" * 40, "dirty": False}


@pytest.mark.parametrize(("then", "now", "stated"), [
    (COMMITS, {"commit": "b" * 40, "dirty": False}, f"test them in pairs with: cachemark compare FILE --commits {'a' * 12} {'b' * 12}"),
    (COMMITS, COMMITS, f"the run and the baseline are of one commit, {'a' * 12}"),
    (COMMITS, {"commit": "b" * 40, "dirty": True}, ""), ({"commit": "", "dirty": None}, COMMITS, ""),
])  # fmt: skip
def test_unpaired_times_are_judged_only_where_no_pairs_can_be_had(
    then: dict[str, Any], now: dict[str, Any], stated: str, stage: Stage,
) -> None:
    def quick(outcome: dict[str, Any]) -> None:
        if outcome["case"]["method"] in ("streaming", "calm"):
            outcome["samples"]["latency"] = [value / 10 for value in outcome["samples"]["latency"]]

    path = changed(stage, quick)
    held = json.loads(path.read_text())
    held["code"] |= then
    path.write_text(json.dumps(held))
    with Store.open(stage.store, create=False, read_only=True) as store:
        run = store.run()
        stated = stated.replace("FILE", shlex.quote(run.stored_plan["file"]))
        found = judge(store, replace(run, code={**run.code, **now}), path)
        asked = judge(store, replace(run, code={**run.code, **now}), path, threshold=0.15)
    times = {row.label: row for row in found.rows if row.metric == "latency" and row.label != "dot full"}
    assert {row.verdict for row in times.values()} == {"not_compared" if stated else "regressed"}
    assert found.exit_code == (0 if stated else 1)
    assert asked.exit_code == 1, "who gives a threshold wants it"
    if stated:
        (row, *_) = times.values()
        assert row.reason == f"{STATED}: {stated}"
        assert row.change == pytest.approx(10, rel=1e-6)
        assert any(line == f"Times: {row.reason}." for line in found.summary())


def test_the_commit_of_the_baseline_is_what_pairs_begin_with(stage: Stage) -> None:
    path = changed(stage, lambda outcome: None)
    for code, ended, said in (({"commit": "c" * 40, "dirty": False}, 0, "c" * 40 + "\n"), ({"commit": "c" * 40, "dirty": True}, 4, "")):
        held = json.loads(path.read_text())
        held["code"] |= code
        path.write_text(json.dumps(held))
        result = call("baseline", "commit", "--store", stage.store)
        assert (result.exit_code, result.stdout) == (ended, said)
    path.unlink()
    assert call("baseline", "commit", "--store", stage.store).exit_code == 2


def test_what_is_acknowledged_is_said_in_report_junit_comment_and_annotations(stage: Stage, tmp_path: Path) -> None:
    def smaller(outcome: dict[str, Any]) -> None:
        if outcome["case"]["method"] == "streaming":
            outcome["samples"]["kv_allocated"] = [value - 1 for value in outcome["samples"]["kv_allocated"]]

    changed(stage, smaller)
    register = tmp_path / "incidents.json"
    known, judging = ("--store", stage.store, "--incidents", register), ("check", "--store", stage.store, "--incidents", register)
    assert [call(*judging).exit_code for _ in range(3)] == [1, 1, 1], "a second try changes nothing"

    def told() -> tuple[list[str | None], str, str, str]:
        """Messages of failures in JUnit, annotations, the comment and the report."""
        whole = ET.fromstring(call("export", "junit", *known).stdout)
        annotations = call("export", "github", "--comment", tmp_path / "comment.md", *known).stdout
        assert call("report", tmp_path / "page.html", *known).exit_code == 0
        return [failure.get("message") for failure in whole.iter("failure")], annotations, (tmp_path / "comment.md").read_text(), (
            tmp_path / "page.html").read_text()

    failures, annotations, comment, page = told()
    assert (len(failures), "::error" in annotations) == (1, True)
    (held,) = json.loads(register.read_text())["incidents"]
    assert call("incident", "acknowledge", held["key"], "--register", register, "--who", "ada", "--until", "2999-01-01").exit_code == 0
    assert call(*judging).exit_code == 0
    failures, annotations, comment, page = told()
    assert (failures, "::error" in annotations) == ([], False)
    settled = f"Known incident {held['key']}, configuration dot streaming 1/2, batch 2: acknowledged by ada until 2999-01-01 (1 row)."
    assert settled in page
    assert "acknowledged by ada until 2999-01-01" in comment
    assert "every regression is acknowledged or accepted" in page
    skipped = [each.get("message") or "" for each in ET.fromstring(call("export", "junit", *known).stdout).iter("skipped")]
    assert len([message for message in skipped if f"incident {held['key']}, acknowledged by ada until 2999-01-01" in message]) == 1
    assert call("report", tmp_path / "page.html", "--public", *known).exit_code == 0
    assert "ada" not in (tmp_path / "page.html").read_text().split("every regression")[1][:400], "names of people stay here"


def test_one_cause_that_changes_tokens_pages_once(stage: Stage, tmp_path: Path) -> None:
    """KL, PSNR, SSIM, agreement and hashes change together: one incident."""
    def other(outcome: dict[str, Any]) -> None:
        if outcome["case"]["method"] == "streaming":
            for name in OF_IMAGES & outcome["samples"].keys():
                better = 1 if metric(name).better == "higher" else -1
                outcome["samples"][name] = [value + better for value in outcome["samples"][name]]
            outcome["output_hash"] = "cafe"

    path = changed(stage, other)
    register = tmp_path / "incidents.json"
    found = call("check", "--store", stage.store, "--incidents", register)
    assert found.exit_code == 1
    (held,) = json.loads(register.read_text())["incidents"]
    assert {"psnr", "kl"} <= set(held["metrics"])
    assert found.stdout.count("  again: ") == 1
    assert call("incident", "acknowledge", held["key"], "--register", register, "--who", "ada", "--until", "2999-01-01").exit_code == 0
    assert call("check", "--store", stage.store, "--incidents", register).exit_code == 0
    baselines.load(path)
    path.unlink()
    assert call("baseline", "save", "--store", stage.store).exit_code == 0
    fixed = call("check", "--store", stage.store, "--incidents", register)
    assert f"Fixed: {held['key']}" in fixed.stdout
