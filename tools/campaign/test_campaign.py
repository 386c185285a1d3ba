"""A campaign on a borrowed GPU, in small: its budget, its folder and its stages."""

import json
import os
import sqlite3
import subprocess
import sys
import time
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from cachemark.plans.expand import expand
from cachemark.plans.schema import load
from cachemark.store.db import Store
from tools.campaign import runner
from tools.campaign.folder import ARTIFACTS, STORE, Folder
from tools.campaign.rehearsal import rehearsed
from tools.campaign.runner import Stage, call
from tools.campaign.works import HERE, blocks

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "tools.campaign"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserves of a call that takes a second instead of nine minutes."""
    for name, seconds in (("RESERVE", 1.0), ("GRACE", 0.3), ("LEAST", 0.2)):
        monkeypatch.setattr(runner, name, seconds)


def stage(name: str, code: str, price: float = 0.1, continued: bool = False) -> Stage:
    """A stage of a few lines of Python, which append a letter to a file named as the stage."""

    def command(seconds: float, work: Path) -> list[str]:
        return [sys.executable, "-S", "-c", f"open({name!r}, 'a').write('x')\n{code}"]

    return Stage(name, "a test", command, price, continued)


def test_a_call_ends_in_time_with_all_it_started_and_the_next_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    beat = "import time\nwhile True: open('alive', 'w').write(str(time.time())); time.sleep(0.05)"
    slow = f"import os, subprocess, sys, time\nif os.path.exists('go'): sys.exit()\nsubprocess.Popen([sys.executable, '-c', {beat!r}])\n"
    stages = [stage("torn", "raise SystemExit('torn')"), stage("first", ""), stage("slow", slow + "time.sleep(60)", 1.0, continued=True),
              stage("last", "", 1.0)]
    began = time.monotonic()
    call(stages, Folder.open(tmp_path / "out"), 4.0)
    assert time.monotonic() - began < 20, "of a stage that sleeps for a minute"
    records = Folder.open(tmp_path / "out").stages
    assert {name: record.state for name, record in records.items()} == {"torn": "failed", "first": "done", "slow": "cut", "last": "waiting"}
    assert records["torn"].said == "torn"
    alive = Path("alive").read_text()
    time.sleep(0.3)
    assert Path("alive").read_text() == alive, "what a stage has started ends with it"

    Path("go").touch()
    lines = call([stage("torn", ""), *stages[1:]], Folder.open(tmp_path / "out"), 12.0)
    assert [line.partition(":")[0] for line in lines] == ["slow", "last", "torn"], "what failed comes last"
    assert {record.state for record in Folder.open(tmp_path / "out").stages.values()} == {"done"}
    assert {name: len(Path(name).read_text()) for name in ("first", "slow", "last")} == {"first": 1, "slow": 2, "last": 1}


def test_a_store_is_taken_over_whole_while_it_is_written_to(tmp_path: Path) -> None:
    folder, live = Folder.open(tmp_path / "out"), tmp_path / "work" / STORE
    live.parent.mkdir()
    with Store.open(live) as store:
        name = store.artifacts.put("tokens.safetensors", b"tokens")
        folder.collect(live)
    assert sorted(file.name for file in folder.path.iterdir()) == [ARTIFACTS, STORE]
    with sqlite3.connect(folder.path / STORE) as copy:
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    (tmp_path / "home").mkdir()
    with Store.open(folder.unpack(tmp_path / "home"), create=False) as store:
        assert store.artifacts.read(name) == b"tokens"


def test_every_block_of_the_plan_belongs_to_a_stage_and_the_campaign_fits_half_an_hour() -> None:
    from tools.campaign import __main__ as program

    cells = tomllib.loads((HERE / "campaign.toml").read_text())["cells"]
    assert {block["priority"] // 10 for block in cells} == {1, 2, 3, 4, 5, 6, 7, 8}
    assert all(callable(program.work_of(name)) for name, *_ in program.ALL)
    assert program.estimate() <= 27 * 60, "with the reserve at the end of three calls"


BLOCKER = """
import json, os
from importlib.machinery import PathFinder

absent, find = frozenset(json.loads(os.environ["CACHEMARK_ABSENT"])), PathFinder.find_spec
present, installed = frozenset(json.loads(os.environ["CACHEMARK_PRESENT"])), PathFinder.find_distributions


def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in absent else find(name, path, target)


def find_distributions(cls, *context, **more):  # pytest loads the plug-ins of what is installed
    return (found for found in installed(*context, **more) if found.name.lower().replace("_", "-") in present)


PathFinder.find_spec, PathFinder.find_distributions = classmethod(find_spec), classmethod(find_distributions)
"""


def bare(folder: Path) -> dict[str, str]:
    """The environment of a process that can import only the packages of the GPU machine."""
    lines = (HERE / "requirements.txt").read_text(encoding="utf-8").splitlines()
    there = {name for line in lines if line.startswith("# there:") for name in line.removeprefix("# there:").split()}
    allowed = {name.lower().replace("_", "-") for name in there | {line.partition("==")[0] for line in lines if line[:1].isalnum()}}
    absent = [module for module, dists in packages_distributions().items()
              if not {dist.lower().replace("_", "-") for dist in dists} & allowed and not module.startswith(("_", "cachemark"))]
    (folder / "sitecustomize.py").write_text(BLOCKER)
    path = os.pathsep.join([str(folder), *(str(ROOT / name) for name in ("", "suite", "tests"))])
    return {**os.environ, "PYTHONPATH": path, "CACHEMARK_ABSENT": json.dumps(absent),
            "CACHEMARK_PRESENT": json.dumps(sorted(allowed | {"cachemark"}))}


@pytest.mark.slow
def test_stages_import_only_what_travels_or_is_there(tmp_path: Path) -> None:
    def pins(name: str) -> dict[str, str]:
        lines = (line.partition("==") for line in (ROOT / name).read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
        return {name.lower().replace("_", "-"): version for name, _, version in lines if version}

    assert pins("tools/campaign/requirements.txt").items() <= pins("constraints.txt").items(), "the wheels are those that tests run with"
    code = ("import importlib.util\nassert importlib.util.find_spec('playwright') is None\n"
            "import cachemark.trial.child.main, cachemark.cli\nfrom tools.campaign.__main__ import work_of\n"
            "work_of('device')")
    done = subprocess.run([sys.executable, "-c", code], env=bare(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("small", [pytest.param(False, id="real", marks=pytest.mark.slow), pytest.param(True, id="rehearsed")])
def test_the_blocks_of_every_stage_are_a_plan(small: bool) -> None:
    campaign = load(str(HERE / "campaign.toml"))
    plan = rehearsed(campaign) if small else campaign
    stages = {cells.priority // 10 for cells in plan.cells}
    assert stages == {cells.priority // 10 for cells in campaign.cells}
    assert all(expand(blocks(plan, stage), "cpu") for stage in stages)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_stage_runs_and_its_results_come_home(tmp_path: Path) -> None:
    """In as many calls as a slow machine takes: each goes on where the one before has ended."""
    folder, environment = tmp_path / "out", bare(tmp_path)
    command = [*PROGRAM, "run", str(folder), "--rehearse", "--budget", "900"]  # the older build is this one
    for _ in range(5):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 4), f"{done.stdout}\n{(folder / 'campaign.log').read_text()[-20000:]}"
        stages = subprocess.run([*PROGRAM, "list", str(folder)], env=environment, capture_output=True, text=True, check=True)
        states = {line.split()[1] for line in stages.stdout.splitlines()[:-1]}
        if states == {"done"}:
            break
    assert states == {"done"}, stages.stdout
    command = [*PROGRAM, "home", str(folder), "--report", str(tmp_path / "report.html"), "--reason", "first"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'suite'}"}
    came = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert came.returncode == 0, came.stderr
    assert "| over the build " in came.stdout
    assert (tmp_path / "report.html").stat().st_size > 100_000
    (baseline,) = (tmp_path / "baselines" / "accepted").rglob("*.json")
    assert f"baseline: {baseline.relative_to(tmp_path)}" in came.stdout
