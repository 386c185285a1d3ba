"""What commands print, write, import and exit with, on one stored run: list, show, report, export, ingest, doctor and calibrate."""

import itertools
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from cachemark.analysis import report_view
from cachemark.cli import main
from cachemark.core.facts import PairFacts
from cachemark.core.result import Status
from cachemark.methods.base import calibrations
from cachemark.plans.schema import GROUPS
from cachemark.plugins import loading as plugins
from cachemark.report.page import site
from cachemark.store.db import Store
from cachemark.workflows import report as report_workflow
from support.stages import LABELS, Stage, call, data, good

pytestmark = pytest.mark.usefixtures("measured", "no_child")


def test_list_methods_and_plug_ins_side_by_side(stage: Stage) -> None:
    rows = {row["name"]: row for row in data(call("list", "methods", "--json", "--plugin", stage.plugin))}
    assert {"full", "window", "streaming", "random", "h2o", "rkv", "linear", "calm"} <= set(rows)
    assert rows["calm"].pop("unstated").keys() == {"keep_condition"}
    assert rows["calm"] == {"name": "calm", "summary": "A window under another name.", "source": "the tests", "builtin": False,
                            "authors_code": "", "code_seen": "",
                            "parameters": {"B": 0, "keep_condition": True}, "paradigms": ["next-token", "next-scale"],
                            "origin": str(stage.plugin), "version": plugins.read(stage.plugin).digest}  # fmt: skip
    lines = good(call("list", "methods", "--plugin", stage.plugin))
    assert re.search(r"^calm +– +A window under another name\.  \[.*\.py [0-9a-f]{12}\]$", lines, re.M)
    assert "calm" not in good(call("list", "methods")), "nothing stays loaded"
    on_scales = {line.split()[0]: line for line in good(call("list", "methods", "--model", "tiny-var")).splitlines()}
    assert "cannot run" not in on_scales["ams_kv"]
    assert "cannot run: rkv does not run on next-scale models. It runs on: next-token." in on_scales["rkv"]
    assert call("list", "models", "--model", "tiny-var").exit_code == 2


def test_plans_are_listed_in_groups_with_their_needs_and_time_and_weights_with_their_files() -> None:
    lines = good(call("list", "plans")).splitlines()
    assert [line.partition(":")[0] for line in lines if not line.startswith(" ")] [:-1] == [*GROUPS]
    assert max(len(row["summary"]) for row in data(call("list", "plans", "--json"))) <= 100
    (line,) = [line for line in lines if "LineAR, Table 4" in line]
    assert re.match(r"  linear-table4 +\d+( min)?–[\d.]+ (min|h)  GPU \d+ GB  +LineAR, Table 4: ", line)
    assert re.search(r"^  nightly .*GPU .* GB, weights \d+ GB", "\n".join(lines), re.M)
    lines = good(call("weights", "list")).splitlines()
    assert max(map(len, lines)) <= 100
    assert "llamagen-xl: in all about 3.2 GiB" in lines
    assert "    https://huggingface.co/FoundationVision/LlamaGen  c2i_XL_384.pt" in lines


def test_show_prints_a_run_every_raw_sample_failures_and_sides_of_pairs(measured: Stage, stage: Stage) -> None:
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
    full = stage.outcomes()["full"]
    where = stored(stage, {"samples": {**full.samples, "latency": [1.0, 1.0, 4.0]}})
    assert "latency 1 s (median)" in (text := good(call("show", *where)))
    assert "kl 0 nat/token (mean)" in text
    pairs = (PairFacts(run=3, configuration="full", number=number, side="before", what="times") for number in (1, 2))
    where = stored(stage, *({"facts": replace(full.facts, pair=pair)} for pair in pairs), plan="compare/dots")
    pairs = [line for line in good(call("show", "full", *where)).splitlines() if line.strip().startswith("pair ")]
    assert [f"'number': {number}" in line for number, line in enumerate(pairs, 1)] == [True, True]
    stored(stage, {"status": Status.OOM, "samples": {}, "output_hash": "", "log": "line one\nand line two"})
    assert good(call("show", "full", "--store", stage.store)).endswith("line one\nand line two\n")
    assert "oom" in good(call("show", "--store", stage.store))


def stored(stage: Stage, *changes: dict[str, Any], plan: str = "dots") -> tuple[Any, ...]:
    """Store a run with changed copies of the full cache's outcome; return the options that name it."""
    with Store.open(stage.store) as store:
        run, (full, *_) = store.run(1), store.outcomes(1)
        number = store.begin_run(plan, {}, run.environment, run.code)
        for index, change in enumerate(changes):
            store.save(number, replace(full, **change), trial=f"trial {index}")
        store.finish_run(number, "finished")
    return "--run", number, "--store", stage.store


def test_a_site_builds_the_pages_of_its_newest_runs_and_missing_ones(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    real = report_view.build
    monkeypatch.setattr(report_view, "build", lambda run, *rest, **more: (built.append(run.plan), real(run, *rest, **more))[1])

    def rebuilt(*more: object) -> list[str]:
        built.clear()
        good(call("report", "--site", "site", "--store", stage.store, *more))
        return sorted(built)

    assert rebuilt() == ["dots"]
    stored(stage, plan="compare/dots")
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


@pytest.mark.parametrize(("verb", "part"), [
    (["markdown"], "| StreamingLLM | 1/2"), (["latex"], r"\toprule"), (["csv", "--samples"], "run,commit,machine_class,case,")])
def test_a_text_is_printed_or_written(verb: list[str], part: str, measured: Stage) -> None:
    printed = good(call("export", *verb, "--store", measured.store))
    assert part in printed
    done = call("export", *verb, "out.txt", "--store", measured.store)
    assert (good(done), done.stderr) == ("", "Written: out.txt\n")
    assert Path("out.txt").read_text(encoding="utf-8") == printed


def test_calibrating_writes_what_a_run_in_that_folder_finds() -> None:
    facts = data(call("calibrate", "heatkv", "tiny-var", "--samples", "2", "--json"))
    assert (facts["seeds"], facts["samples"], facts["scales"]) == ("tune64", 2, [1, 2, 3, 4, 6, 8, 12, 16])
    stored_facts = calibrations.measured("heatkv", facts["weights"])
    assert (calibrations.fingerprint(stored_facts), stored_facts["scas"]) == (facts["calibration"], facts["scas"])
    packaged = calibrations.packaged("heatkv")[facts["weights"].partition("/")[0]]
    far = [abs(a - b) for mine, its in zip(stored_facts["scas"], packaged["scas"], strict=True) for x, y in zip(mine, its, strict=True)
           for a, b in zip(x, y, strict=True)]  # fmt: skip
    assert 0 < max(far) < 0.1, "of two samples instead of ten"


def test_commands_write_over_files_of_their_own_kind_alone(stage: Stage, tmp_path: Path) -> None:
    def called(command: tuple[Any, ...], target: Path) -> Result:
        more = ("--plugin", stage.plugin) if command[0] == "run" else ()
        return call(*command, target, "--store", stage.store, *more)

    writing: list[tuple[Any, ...]] = [("report",), *(("export", verb) for verb in ("csv", "markdown", "latex", "grid")),
        ("export", "github", "--comment"), ("export", "github", "--summary"), ("run", stage.plan, "--report")]  # fmt: skip
    for command, target in itertools.product(writing, (stage.store, stage.plan)):
        before, result = target.read_bytes(), called(command, target)
        assert (result.exit_code, str(target.name) in result.output, target.read_bytes() == before) == (2, True, True), command
    for number, command in enumerate(writing[:-1]):
        target = tmp_path / f"output{number}"
        target.touch()
        good(called(command, target))
        first = target.read_bytes()
        good(called(command, target))
        assert first
        assert target.read_bytes() == first * (2 if "--summary" in command else 1), command
    target = tmp_path / "figures"
    for _ in range(2):
        good(call("export", "figures", target, "--store", stage.store))
    figure = min(target.iterdir())
    figure.write_text("mine")
    assert (call("export", "figures", target, "--store", stage.store).exit_code, figure.read_text()) == (2, "mine")
    for name, text in (("index.html", "<!DOCTYPE html><title>my home page</title>"), ("site.json", '{"title": "my home page"}')):
        (file := tmp_path / name).write_text(text)
        assert call("report", "--site", tmp_path, "--store", stage.store).exit_code == 2
        assert file.read_text() == text
        file.unlink()
    (link := Path("link")).symlink_to("page.html")
    good(call("report", link, "--store", stage.store))
    assert (link.is_symlink(), Path("page.html").read_text().startswith("<!DOCTYPE html>")) == (True, True)


PROBE = """
import json, sys
class Absent:
    # Importing these fails, as where they are not installed; None in sys.modules is taken for the module by SciPy.

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent())
import click.testing
from cachemark.cli import main
for arguments in json.loads(sys.argv[1]):
    result = click.testing.CliRunner().invoke(main, arguments)
    wrong = result.exception if not isinstance(result.exception, SystemExit) else None
    print(json.dumps([result.exit_code, repr(wrong) if wrong else "", sorted(m for m in sys.modules if "." not in m)]))
"""
HEAVY = {"torch", "numpy", "sqlalchemy", "pydantic", "pandas", "scipy", "altair", "jinja2", "PIL", "rich"}


def probe(commands: list[list[str]], folder: Path, *absent: str) -> list[tuple[int, str, list[str]]]:
    """Run commands in a fresh process; return exit code, unexpected exception and loaded modules of each."""
    command = [sys.executable, "-c", PROBE, json.dumps(commands), *absent]
    return [*map(json.loads, subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=folder, check=True).stdout.splitlines())]


def test_help_loads_nothing_heavy_and_what_reads_and_judges_works_without_torch(tmp_path: Path, measured: Stage) -> None:
    helps = [["--help"], ["--version"], *([name, "--help"] for name in main.commands),
             ["baseline", "save", "--help"], ["export", "csv", "--help"], ["weights", "fetch", "--help"]]
    wrong = [["rnu"], ["run"], ["run", "demo", "--bogus"], ["list", "model"], ["show", "--run", "0"]]
    for arguments, (code, exception, modules) in zip(helps + wrong, probe(helps + wrong, tmp_path), strict=True):
        assert (code, exception) == (0 if arguments in helps else 2, ""), arguments
        assert not {*modules} & HEAVY, arguments
    shutil.copytree(measured.folder, tmp_path / "copy")
    store = ["--store", str(tmp_path / "copy" / measured.store.name)]
    commands = [["list", "metrics"], ["list", "runs", *store], ["weights", "list"], ["weights", "list", "var-d16", "--json"],
                ["show", *store], ["show", "full", *store, "--json"], ["baseline", "save", *store], ["baseline", "list"], ["check", *store],
                ["check", *store, "--json"], ["report", "page.html", *store],
                *(["export", verb, *store] for verb in ("markdown", "latex", "csv", "junit", "github"))]
    endings = probe(commands, tmp_path, "torch")
    assert [(code, exception) for code, exception, _ in endings] == [(0, "")] * len(commands)
    assert (tmp_path / "page.html").stat().st_size > 1000
