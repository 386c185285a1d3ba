"""What each command prints, writes and exits with, on one stored run."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from cachemark.core.result import Outcome, Status
from cachemark.core.units import METRICS
from cachemark.machine import noise
from cachemark.plugins import loading as plugins
from cachemark.store.db import Store
from support import stages
from support.stages import Stage, call

LABELS = ["full", "full (other seeds)", "full (other batch)", "streaming 1/2", "calm 1/2"]
@pytest.fixture(autouse=True)
def _no_child(measured: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stages.no_child(monkeypatch)


@pytest.fixture
def stage(measured: Stage, tmp_path: Path) -> Stage:
    return measured.copy(tmp_path / "copy")


def good(result: Result) -> str:
    """Standard output of a command that went well."""
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    return result.stdout


def data(result: Result) -> Any:
    return json.loads(good(result))


# ------------------------------------------------------------------------------------------------ list

def test_list_methods_and_plug_ins_side_by_side(stage: Stage) -> None:
    rows = {row["name"]: row for row in data(call("list", "methods", "--json", "--plugin", stage.plugin))}
    assert {"full", "window", "streaming", "random", "h2o", "rkv", "linear", "calm"} <= set(rows)
    assert rows["calm"] == {"name": "calm", "summary": "A window under another name.", "source": "the tests", "builtin": False,
                            "parameters": {"B": 0, "keep_condition": True}, "paradigms": ["next-token", "next-scale"],
                            "origin": str(stage.plugin), "version": plugins.digest(stage.plugin)}  # fmt: skip
    assert all(row["builtin"] for name, row in rows.items() if name != "calm")
    lines = good(call("list", "methods", "--plugin", stage.plugin)).splitlines()
    assert re.search(r"^calm +A window under another name\.  \[.*\.py [0-9a-f]{12}\]$", "\n".join(lines), re.M)
    assert "calm" not in good(call("list", "methods"))  # nothing stays loaded


@pytest.mark.parametrize(("kind", "names"), [
    ("models", {"tiny-llamagen", "llamagen-b", "llamagen-3b"}), ("plans", {"demo"}), ("metrics", set(METRICS)),
])  # fmt: skip
def test_list_names_and_says_what_everything_is(kind: str, names: set[str]) -> None:
    rows = data(call("list", kind, "--json"))
    assert names <= {row["name"] for row in rows}
    assert all(row["summary"] for row in rows)
    assert [line.split()[0] for line in good(call("list", kind)).splitlines()] == [row["name"] for row in rows]


# ------------------------------------------------------------------------------------------------ show

def test_show_prints_a_run_case_by_case(measured: Stage) -> None:
    head, *lines = good(call("show", "--store", measured.store)).splitlines()
    assert re.match(r"Run 1: dots, finished, 20\d\d-", head)
    assert [re.match(r"  [0-9a-f]{16}  dot  (.{24})  ok", line)[1].rstrip() for line in lines] == LABELS  # type: ignore[index]
    assert all("latency" in line for line in (lines[0], *lines[3:]))


@pytest.mark.parametrize("length", [None, 16, 8, 4])
def test_show_finds_a_case_by_label_or_the_beginning_of_its_key(length: int | None, measured: Stage) -> None:
    wanted = measured.outcomes()["calm 1/2"]
    keys = [o.case.key for o in measured.outcomes().values()]
    while length and sum(k.startswith(wanted.case.key[:length]) for k in keys) > 1:
        length += 1
    given = wanted.case.key[:length] if length else "calm 1/2"
    assert data(call("show", given, "--store", measured.store, "--json")) == [json.loads(json.dumps(wanted.to_json()))]


def test_show_prints_every_raw_sample(measured: Stage) -> None:
    outcome = measured.outcomes()["calm 1/2"]
    text = good(call("show", "calm 1/2", "--store", measured.store))
    for name, values in outcome.samples.items():
        assert f"n = {len(values)}\n{' ' * 20}{' '.join(f'{v:.6g}' for v in values)}\n" in text, name
    for name, value in outcome.case.to_json().items():
        assert re.search(rf"^ *{name}  {re.escape(str(value))}$", text, re.M)


def test_show_answers_a_wrong_name_with_the_nearest(measured: Stage) -> None:
    result = call("show", "clam 1/2", "--store", measured.store)
    assert result.exit_code == 2
    assert "Did you mean 'calm 1/2'?" in result.stderr


def test_show_says_why_a_case_failed(stage: Stage) -> None:
    with Store.open(stage.store) as store:
        outcome = store.outcomes(1)[-1]
        run = store.begin_run("dots", {}, store.run(1).environment, {})
        store.save(run, Outcome(outcome.case, Status.OOM, log="line one\nand line two"))
    assert good(call("show", "calm 1/2", "--store", stage.store)).endswith("line one\nand line two\n")
    assert "oom" in good(call("show", "--store", stage.store))
    assert data(call("show", "calm 1/2", "--store", stage.store, "--run", 1, "--json"))[0]["status"] == "ok"


# ------------------------------------------------------------------------------------------------ report

def test_report_is_one_page_that_names_the_plug_in_beside_the_built_in(measured: Stage, tmp_path: Path) -> None:
    page = tmp_path / "new" / "page.html"
    assert good(call("report", page, "--store", measured.store)) == f"Report: {page}\n"
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "calm" in text
    assert "streaming" in text


@pytest.mark.parametrize(("path", "code", "words"), [
    ("a-file/page.html", 5, "cannot be written"), ("a-file/new/page.html", 5, "cannot be written"), ("a-folder", 2, "is a directory"),
])  # fmt: skip
def test_report_to_an_impossible_place(path: str, code: int, words: str, measured: Stage) -> None:
    Path("a-file").touch()
    Path("a-folder").mkdir()
    result = call("report", path, "--store", measured.store)
    assert result.exit_code == code
    assert words in result.stderr
    assert result.stdout == ""


# ------------------------------------------------------------------------------------------------ baseline and check

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture
def accepted(stage: Stage) -> Path:
    """The run, saved as the accepted baseline below the working directory."""
    said = good(call("baseline", "save", "--store", stage.store, "--reason", "the tests"))
    path = Path(said.removeprefix("Baseline: ").strip())
    assert path.is_file()
    return path


def edited(path: Path, edit: Edit) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def of(content: dict[str, Any], method: str) -> dict[str, Any]:
    return next(o for o in content["outcomes"] if o["case"]["method"] == method)


def fewer_bytes(content: dict[str, Any]) -> None:
    of(content, "calm")["samples"]["kv_allocated"][0] -= 1


def more_bytes(content: dict[str, Any]) -> None:
    of(content, "calm")["samples"]["kv_allocated"][0] += 1


def faster(content: dict[str, Any]) -> None:
    samples = of(content, "calm")["samples"]
    samples["latency"] = [value / 2 for value in samples["latency"]]


def failed(content: dict[str, Any]) -> None:
    of(content, "calm").update(status="oom", samples={}, judgement="", log="it was so", output_hash="")


def another_case(content: dict[str, Any]) -> None:
    extra = json.loads(json.dumps(of(content, "calm")))
    extra["case"]["batch"] = 64
    content["outcomes"].append(extra)


@pytest.mark.parametrize(("edit", "more", "code", "words"), [
    (lambda _: None, [], 0, "Passed: "),
    (fewer_bytes, [], 1, "regressed: dot calm 1/2, kv_allocated"),
    (more_bytes, [], 0, "1 improved"),
    (faster, ["--threshold", "0.15"], 1, "regressed: dot calm 1/2, latency"),
    (faster, ["--threshold", "0.999"], 1, "latency"),  # twice as slow is above any share
    (failed, [], 0, "1 improved"),
    (another_case, [], 4, "missing: dot calm 1/2"),
    (another_case, ["--min-coverage", "0.5"], 0, "Judged 5 of the baseline's 6 cases; 50% are needed."),
])  # fmt: skip
def test_check_exits_as_it_judges(edit: Edit, more: list[str], code: int, words: str, accepted: Path, stage: Stage) -> None:
    edited(accepted, edit)
    result = call("check", "--store", stage.store, *more)
    assert result.exit_code == code, result.output
    assert words in result.stdout
    assert result.stdout.endswith(f"Baseline: {accepted}\n")
    machine = call("check", "--store", stage.store, "--json", *more)
    assert machine.exit_code == code
    assert json.loads(machine.stdout)["exit_code"] == code
    assert {"regressed"} & {row["verdict"] for row in json.loads(machine.stdout)["rows"]} == ({"regressed"} if code == 1 else set())


def test_check_needs_a_baseline(stage: Stage) -> None:
    result = call("check", "--store", stage.store)
    assert result.exit_code == 2
    assert "There is no baseline baselines/accepted/" in result.stderr
    assert "cachemark baseline save" in result.stderr


def test_check_of_a_run_that_shares_no_case_measures_nothing(accepted: Path, stage: Stage) -> None:
    def other(content: dict[str, Any]) -> None:
        for outcome in content["outcomes"]:
            outcome["case"]["warmup"] = 99

    edited(accepted, other)
    result = call("check", "--store", stage.store)
    assert result.exit_code == 4
    assert "share no case" in result.stderr


@pytest.mark.parametrize(("edit", "code", "words"), [
    (lambda text: text[: len(text) // 2], 2, "is cut off"),
    (lambda text: text.replace('"plan": "dots"', '"plan": "nightly"'), 4, "is of plan 'nightly', this run of plan 'dots'. Check against"),
])  # fmt: skip
def test_check_of_the_wrong_baseline(edit: Callable[[str], str], code: int, words: str, accepted: Path, stage: Stage) -> None:
    accepted.write_text(edit(accepted.read_text()))
    result = call("check", "--store", stage.store)
    assert (result.exit_code, result.stdout) == (code, "")
    assert f"{accepted} {words}" in result.stderr


def test_check_of_metrics_defined_otherwise_judges_none_of_them(accepted: Path, stage: Stage) -> None:
    edited(accepted, fewer_bytes)
    edited(accepted, lambda content: content["metrics"].update(kv_allocated=99))
    assert call("check", "--store", stage.store).exit_code == 0, "bytes that are counted otherwise are no regression"
    edited(accepted, lambda content: content["metrics"].update(dict.fromkeys(content["metrics"], 99)))
    edited(accepted, lambda content: [outcome.update(output_hash="", facts={}) for outcome in content["outcomes"]])
    rows = json.loads(call("check", "--store", stage.store, "--json").stdout)["rows"]
    assert {row["verdict"] for row in rows if row["metric"] != "output_hash"} == {"not_compared"}
    assert "the metric's definition is version 99 then, 1 now" in {row["reason"] for row in rows}


def test_check_and_report_take_a_named_baseline(accepted: Path, stage: Stage, tmp_path: Path) -> None:
    other = accepted.rename(tmp_path / "other.json")
    edited(other, fewer_bytes)
    assert call("check", "--store", stage.store, "--baseline", other).exit_code == 1
    good(call("report", "page.html", "--store", stage.store, "--baseline", other))
    assert "regressed" in Path("page.html").read_text().lower()


def test_baseline_list(accepted: Path) -> None:
    [row] = data(call("baseline", "list", "--json"))
    assert (row["path"], row["name"], row["plan"], row["outcomes"], row["reason"]) == (str(accepted), "dots", "dots", 5, "the tests")
    assert "dots, 5 outcomes, saved 20" in good(call("baseline", "list"))


def test_an_interrupted_run_is_no_baseline(stage: Stage) -> None:
    with Store.open(stage.store) as store:
        store.begin_run("dots", {}, store.run(1).environment, {})
    result = call("baseline", "save", "--store", stage.store)
    assert result.exit_code == 2
    assert "Run 2 is running" in result.stderr
    assert not Path("baselines").exists()


# ------------------------------------------------------------------------------------------------ doctor, environment variable

def test_doctor_names_the_machine_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "noise", functools.cache(noise.noise))  # it takes seconds
    facts = data(call("doctor", "--json"))
    assert facts["cpu"]["fingerprint"]
    assert (set(facts["weights"]), type(facts["advice"])) == ({"tiny-llamagen.safetensors", "tiny-vq.safetensors"}, list)
    assert all(line.endswith(":") or line.startswith("  ") for line in good(call("doctor")).splitlines())


def test_the_store_may_come_from_the_environment(measured: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEMARK_STORE", str(measured.store))
    assert "dots, finished" in good(call("show"))
