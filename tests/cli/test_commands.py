"""What commands print, write and exit with, on one stored run: list, show, report, export, ingest, doctor and calibrate."""

from __future__ import annotations

import json
import re
import sqlite3
import xml.etree.ElementTree as ET
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from cachemark.analysis import report_view
from cachemark.cache.layout import scale_steps
from cachemark.core.errors import BadPlan, NothingMeasured
from cachemark.core.facts import PairFacts
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Sampling
from cachemark.core.units import METRICS
from cachemark.methods.ams_kv import AMSKV
from cachemark.methods.base import calibrations
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS
from cachemark.plans.schema import GROUPS
from cachemark.plugins import loading as plugins
from cachemark.report.page import site
from cachemark.store.db import Store
from cachemark.trial.child import profiles
from cachemark.workflows import report as report_workflow
from cachemark.workflows.results import open_run
from support import stages
from support.stages import Stage, call

LABELS = ["full", "full (other seeds)", "full (other batch)", "streaming 1/2", "calm 1/2"]


@pytest.fixture(autouse=True)
def _no_child(measured: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stages.no_child(monkeypatch)


def good(result: Result) -> str:
    """Return standard output of a command that succeeded."""
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    return result.stdout


def data(result: Result) -> Any:
    return json.loads(good(result))


# -- list -------------------------------------------------------------------------------------------------------------
def test_list_methods_and_plug_ins_side_by_side(stage: Stage) -> None:
    rows = {row["name"]: row for row in data(call("list", "methods", "--json", "--plugin", stage.plugin))}
    assert {"full", "window", "streaming", "random", "h2o", "rkv", "linear", "calm"} <= set(rows)
    assert rows["calm"].pop("unstated").keys() == {"keep_condition"}
    assert rows["calm"] == {"name": "calm", "summary": "A window under another name.", "source": "the tests", "builtin": False,
                            "parameters": {"B": 0, "keep_condition": True}, "paradigms": ["next-token", "next-scale"],
                            "origin": str(stage.plugin), "version": plugins.read(stage.plugin).digest}  # fmt: skip
    lines = good(call("list", "methods", "--plugin", stage.plugin))
    assert re.search(r"^calm +A window under another name\.  \[.*\.py [0-9a-f]{12}\]$", lines, re.M)
    assert "calm" not in good(call("list", "methods")), "nothing stays loaded"


@pytest.mark.parametrize(("kind", "names"), [
    ("models", {"tiny-llamagen", "llamagen-b", "llamagen-3b"}), ("plans", {"demo"}), ("metrics", set(METRICS)),
])  # fmt: skip
def test_list_names_and_describes_everything(kind: str, names: set[str]) -> None:
    rows = data(call("list", kind, "--json"))
    assert names <= {row["name"] for row in rows}
    assert all(row["summary"] for row in rows)


def test_plans_are_listed_in_groups_with_their_needs_and_time() -> None:
    lines = good(call("list", "plans")).splitlines()
    assert [line.partition(":")[0] for line in lines if not line.startswith(" ")] [:-1] == [*GROUPS]
    assert max(len(row["summary"]) for row in data(call("list", "plans", "--json"))) <= 100
    (line,) = [line for line in lines if "LineAR, Table 4" in line]
    assert re.match(r"  linear-table4 +\d+ min  GPU \d+ GB  +LineAR, Table 4: ", line)
    assert re.search(r"^  nightly .*GPU .* GB, weights \d+ GB", "\n".join(lines), re.M)


# -- show -------------------------------------------------------------------------------------------------------------
def test_show_prints_a_run_and_every_raw_sample_of_a_case(measured: Stage) -> None:
    head, *lines = good(call("show", "--store", measured.store)).splitlines()
    assert re.match(r"Run 1: dots, finished, 20\d\d-", head)
    assert [re.match(r"  [0-9a-f]{16}  dot  (.{24})  ok", line)[1].rstrip() for line in lines] == LABELS  # type: ignore[index]
    outcome = measured.outcomes()["calm 1/2"]
    for given in ("calm 1/2", outcome.case.key, outcome.case.key[:12]):
        assert data(call("show", given, "--store", measured.store, "--json")) == [json.loads(json.dumps(outcome.to_json()))]
    text = good(call("show", "calm 1/2", "--store", measured.store))
    for name, values in outcome.samples.items():
        assert f"n = {len(values)}\n{' ' * 20}{' '.join(f'{v:.6g}' for v in values)}\n" in text, name
    for name, value in outcome.case.to_json().items():
        assert re.search(rf"^ *{name}  {re.escape(str(value))}$", text, re.M)
    assert "Did you mean 'calm 1/2'?" in call("show", "clam 1/2", "--store", measured.store).stderr


def stored(stage: Stage, *changes: dict[str, Any], plan: str = "dots") -> tuple[Any, ...]:
    """Store a run with changed copies of the full cache's outcome; return the options that name it."""
    with Store.open(stage.store) as store:
        run, (full, *_) = store.run(1), store.outcomes(1)
        number = store.begin_run(plan, {}, run.environment, run.code)
        for index, change in enumerate(changes):
            store.save(number, replace(full, **change), trial=f"trial {index}")
        store.finish_run(number, "finished")
    return "--run", number, "--store", stage.store


def test_show_prints_failures_sides_of_pairs_and_the_statistic_of_each_value(stage: Stage) -> None:
    full = stage.outcomes()["full"]
    where = stored(stage, {"samples": {**full.samples, "latency": [1.0, 1.0, 4.0]}})
    assert "latency 1 s (median)" in (text := good(call("show", *where)))
    assert "kl 0 nat/token (mean)" in text
    pairs = (PairFacts(run=3, configuration="full", number=number, side="before", what="times") for number in (1, 2))
    where = stored(stage, *({"facts": replace(full.facts, pair=pair)} for pair in pairs), plan="compare/dots")
    pairs = [line for line in good(call("show", "full", *where)).splitlines() if line.strip().startswith("pair ")]
    assert [f"'number': {number}" in line for number, line in enumerate(pairs, 1)] == [True, True]
    with Store.open(stage.store) as store:
        run = store.begin_run("dots", {}, store.run(1).environment, {})
        store.save(run, Outcome(full.case, Status.OOM, log="line one\nand line two"))
    assert good(call("show", "full", "--store", stage.store)).endswith("line one\nand line two\n")
    assert "oom" in good(call("show", "--store", stage.store))


def test_a_label_of_several_cases_lists_their_differences(stage: Stage) -> None:
    full = stage.outcomes()["full"].case
    cases = [full, replace(full, batch=4, dtype="float16"), replace(full, batch=4, sampling=Sampling(top_k=3))]
    where = stored(stage, *({"case": case} for case in cases))
    result = call("show", "full", *where)
    assert (result.exit_code, "'full' names 3 cases of this run. Use a key: " in result.stderr) == (2, True)
    assert f"{cases[0].key} (dot full, batch 2, dtype float32, cfg_scale {full.sampling.cfg_scale}, top_k 0" in result.stderr
    assert f"{cases[2].key} (dot full, batch 4, dtype float32, cfg_scale 1.0, top_k 3" in result.stderr
    assert re.search(r"^ *batch  2$", good(call("show", "dot full, batch 2", *where)), re.M), "a title with its batch"
    where = stored(stage, *({"case": replace(full, model=model)} for model in ("dot", "dash")))
    assert re.search(r"key: \w{16} \(dot\), \w{16} \(dash\)\.", call("show", "full", *where).stderr)
    assert re.search(r"^ *model  dash$", good(call("show", "dash full", *where)), re.M)


# -- report -----------------------------------------------------------------------------------------------------------
def test_report_is_one_page_with_the_plug_in_and_the_built_in(measured: Stage, tmp_path: Path) -> None:
    page = tmp_path / "new" / "page.html"
    assert good(call("report", page, "--store", measured.store)) == f"Report: {page}\n"
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "calm" in text
    assert "streaming" in text


def test_a_baseline_that_does_not_fit_is_left_out_unless_it_is_given(stage: Stage) -> None:
    """After an edit of the plan, results are still shown; so is a plan that no baseline can be named after."""
    good(call("baseline", "save", "--store", stage.store))
    (accepted,) = Path("baselines/accepted").rglob("*.json")
    accepted.write_text(accepted.read_text(encoding="utf-8").replace('"repeats": 3', '"repeats": 7'), encoding="utf-8")
    assert call("check", "--store", stage.store).exit_code == NothingMeasured.exit_code
    for command in (("report", "other.html"), ("export", "github"), ("export", "junit")):
        refused = call(*command, "--baseline", accepted, "--store", stage.store)
        assert (refused.exit_code, "share no case" in refused.output) == (NothingMeasured.exit_code, True)
    assert not Path("other.html").exists()
    for plan in ("dots", "größe"):
        with closing(sqlite3.connect(stage.store)) as connection, connection:
            connection.execute("UPDATE run SET plan = ?", (plan,))
        good(call("report", "report.html", "--store", stage.store))
        good(call("export", "github", "--comment", "comment.md", "--store", stage.store))
        assert "Not compared with a baseline." in Path("comment.md").read_text(encoding="utf-8")
    assert "letter or digit" in call("check", "--store", stage.store).stderr


def test_a_site_builds_the_pages_of_its_newest_runs_and_missing_ones(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    real = report_view.build
    monkeypatch.setattr(report_view, "build", lambda run, *rest, **more: (built.append(run.plan), real(run, *rest, **more))[1])

    def rebuilt(*more: object) -> list[str]:
        built.clear()
        good(call("report", "--site", "site", "--store", stage.store, *more))
        return sorted(built)

    assert rebuilt() == ["dots"]
    with Store.open(stage.store) as store:
        run = store.run(1)
        store.finish_run(store.begin_run("compare/dots", {}, run.environment, run.code), "finished")
    good(call("baseline", "save", "--run", 1, "--store", stage.store))
    monkeypatch.setattr(report_workflow, "LIVE", 1)
    assert rebuilt() == ["compare/dots"], "the older run has a page"
    Path("site/runs/run-1.html").unlink()
    assert rebuilt() == ["compare/dots", "dots"]
    assert "Passed" in Path("site/index.html").read_text(encoding="utf-8")
    Path("site/site.json").write_text("{}")
    assert len(rebuilt()) == 2, "a site of an earlier version"
    monkeypatch.setattr(report_workflow, "LIVE", 10)
    (path,) = Path("baselines").glob("accepted/*/*.json")
    stored(stage, {}, plan="another plan")
    assert "another plan" in rebuilt("--baseline", path)
    assert "no baseline" in Path("site/index.html").read_text(encoding="utf-8"), "it does not fit that run"
    monkeypatch.setattr(site, "too_old", lambda started, now, days: days < 30)
    assert "3 removed" in good(call("report", "--site", "site", "--days", "7", "--store", stage.store))
    assert list(Path("site/runs").iterdir()) == []


# -- export -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("verb", "part"), [
    (["markdown"], "| StreamingLLM | 1/2"), (["latex"], r"\toprule"), (["csv"], "run,commit,machine_class,case,"),
    (["csv", "--samples"], "run,commit,machine_class,case,"),
])  # fmt: skip
def test_a_text_is_printed_or_written(verb: list[str], part: str, measured: Stage) -> None:
    printed = good(call("export", *verb, "--store", measured.store))
    assert part in printed
    done = call("export", *verb, "out.txt", "--store", measured.store)
    assert (good(done), done.stderr) == ("", "Written: out.txt\n")
    assert Path("out.txt").read_text(encoding="utf-8") == printed


def test_junit_and_github_compare_with_the_accepted_baseline(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert good(call("export", "github", "--store", stage.store, "--summary", "step.md")) == ""
    assert "Not compared with a baseline." in Path("step.md").read_text()
    assert "| StreamingLLM | 1/2" in Path("step.md").read_text()
    good(call("baseline", "save", "--store", stage.store))
    suite = ET.fromstring(good(call("export", "junit", "--store", stage.store)).encode())[0]
    assert suite.get("failures") == suite.get("errors") == "0"
    assert "dot streaming 1/2" in {str(case.get("classname")).rpartition(" ")[0] for case in suite}
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "step.md")
    Path("step.md").write_text("Before.\n")
    assert good(call("export", "github", "--store", stage.store, "--comment", "comment.md")) == "", "nothing regressed"
    assert Path("step.md").read_text().startswith("Before.\n## cachemark dots\n")
    assert "- Passed: " in Path("step.md").read_text()
    assert Path("comment.md").read_text().startswith("<!-- cachemark dots -->\n")


def test_the_newest_twenty_runs_are_listed(stage: Stage) -> None:
    with Store.open(stage.store) as store:
        record = store.run()
        for _ in range(24):
            store.finish_run(store.begin_run("dots", {}, record.environment, record.code), "finished")
    lines = good(call("list", "runs", "--store", stage.store)).splitlines()
    assert [line.split()[0] for line in lines] == [*map(str, range(25, 5, -1)), "5"]
    assert lines[-1].startswith("5 older runs: ")
    assert len(good(call("list", "runs", "--all", "--store", stage.store)).splitlines()) == 25
    assert len(json.loads(good(call("list", "runs", "--json", "--store", stage.store)))) == 25


# -- ingest, doctor, calibrate ----------------------------------------------------------------------------------------
def test_a_file_of_pytest_benchmark_is_read_once() -> None:
    Path("micro.json").write_text(json.dumps({
        "machine_info": {"cpu": {"brand_raw": "Example CPU", "count": 8}}, "version": "5.2.3",
        "commit_info": {"id": "3f9a61c0", "dirty": False},
        "benchmarks": [{"fullname": "a.py::test_a", "stats": {"data": [0.1, 0.2]}}, {"fullname": "a.py::test_b", "stats": {}}]}))
    result = call("ingest", "pytest-benchmark", "micro.json", "--store", "s.sqlite")
    assert good(result) == "micro.json is run 1, 1 case.\n"
    assert result.stderr.startswith("Skipped: a.py::test_b")
    assert "was imported before as run 1" in good(call("ingest", "pytest-benchmark", "micro.json", "--store", "s.sqlite"))
    assert "a.py::test_a" in good(call("show", "--store", "s.sqlite"))
    good(call("report", "page.html", "--store", "s.sqlite"))
    with pytest.raises(BadPlan, match=r"Run 1 \(pytest-benchmark\) is stored without a plan.*cachemark.plan"):
        _ = open_run("s.sqlite").plan
    Path("other.json").write_text("{}")
    result = call("ingest", "pytest-benchmark", "other.json", "--store", "s.sqlite")
    assert (result.exit_code, "bad-results" in result.stderr) == (2, True)


def test_doctor_names_the_machine_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = data(call("doctor", "--json"))
    assert facts["cpu"]["fingerprint"]
    assert (set(facts["weights"]), type(facts["advice"])) == ({"tiny-llamagen.safetensors", "tiny-vq.safetensors"}, list)
    assert all(line.endswith(":") or line.startswith("  ") for line in good(call("doctor")).splitlines())


@pytest.mark.parametrize(("samples", "near"), [(4, 0.35), pytest.param(64, 0.05, marks=pytest.mark.slow)])
def test_the_packaged_similarity_can_be_measured_again(samples: int, near: float) -> None:
    """Another machine rounds differently, and a token or two of 64 images may then differ."""
    entry = MODELS.get("tiny-var")
    layout = entry.shape(entry.presets["paper"], 1)
    facts = profiles.calibrated(AMSKV, "tiny-var", Request(), subset="s64", samples=samples, batch=16)
    assert [len(layer) for layer in facts["similarity"]] == [len(scale_steps(layout)) - 1] * layout.layers
    packaged = calibrations.measured("ams_kv", facts["weights"])["similarity"]
    assert len(packaged) == layout.layers
    for layer, expected in zip(facts["similarity"], packaged, strict=True):
        assert list(layer) == pytest.approx(list(expected), rel=near)
        assert all(value <= 0 for value in layer)


def test_calibrating_writes_what_a_run_in_that_folder_finds() -> None:
    assert "next-scale" in call("calibrate", "ams_kv", "tiny-llamagen").stderr
    facts = data(call("calibrate", "heatkv", "tiny-var", "--samples", "2", "--json"))
    assert (facts["seeds"], facts["samples"], facts["scales"]) == ("tune64", 2, [1, 2, 3, 4, 6, 8, 12, 16])
    stored_facts = calibrations.measured("heatkv", facts["weights"])
    assert calibrations.fingerprint(stored_facts) == facts["calibration"]
    assert stored_facts["scas"] == facts["scas"]
    packaged = calibrations.packaged("heatkv")[facts["weights"].partition("/")[0]]
    far = [abs(a - b) for mine, its in zip(stored_facts["scas"], packaged["scas"], strict=True) for x, y in zip(mine, its, strict=True)
           for a, b in zip(x, y, strict=True)]  # fmt: skip
    assert 0 < max(far) < 0.1, "of two samples instead of ten"
