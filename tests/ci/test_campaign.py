"""A campaign on a borrowed GPU: time limits, resumption, and the size of its folder."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cachemark.store.db import Store
from campaign import runner
from campaign.folder import ARTIFACTS, BYTES, STATE, STORE, Folder
from campaign.runner import CUT, Stage, call

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "ci" / "gpu_campaign.py"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserves of a call that takes a second instead of nine minutes."""
    for name, seconds in (("RESERVE", 1.0), ("GRACE", 0.3), ("LEAST", 0.2)):
        monkeypatch.setattr(runner, name, seconds)


def stage(name: str, code: str, price: float = 0.1, continued: bool = False) -> Stage:
    """A stage of a few lines of Python, which find ``seconds`` and ``work``."""

    def command(seconds: float, work: Path) -> list[str]:
        return [sys.executable, "-c", f"seconds, work = {seconds}, {str(work)!r}\n{code}"]

    return Stage(name, "a test", command, price, continued)


def counting(file: Path, code: str = "") -> str:
    """Code that leaves a letter in a file each time it runs."""
    return f"open({str(file)!r}, 'a').write('x')\n{code}"


# -- budget -----------------------------------------------------------------------------------------------------------
def test_a_call_ends_in_time_and_the_next_goes_on(tmp_path: Path) -> None:
    ran = {name: tmp_path / name for name in ("first", "slow", "last")}
    slow = f"import os, sys, time\nif os.path.exists({str(tmp_path / 'goes')!r}): sys.exit()\ntime.sleep(60)"
    stages = [stage("first", counting(ran["first"])), stage("slow", counting(ran["slow"], slow), 1.0, continued=True),
              stage("last", counting(ran["last"]), 5.0)]
    began = time.monotonic()
    call(stages, Folder.open(tmp_path / "out"), 4.0)
    assert time.monotonic() - began < 20, "of a stage that sleeps for a minute"
    records = Folder.open(tmp_path / "out").stages
    assert {name: record.state for name, record in records.items()} == {"first": "done", "slow": "cut", "last": "waiting"}

    (tmp_path / "goes").touch()
    call(stages, Folder.open(tmp_path / "out"), 12.0)
    assert {record.state for record in Folder.open(tmp_path / "out").stages.values()} == {"done"}
    assert {name: len(file.read_text()) for name, file in ran.items()} == {"first": 1, "slow": 2, "last": 1}


def test_a_stage_that_says_there_is_more_is_continued(tmp_path: Path) -> None:
    once = f"import os, sys\nif not os.path.exists({str(tmp_path / 'x')!r}):\n    open({str(tmp_path / 'x')!r}, 'w')\n    sys.exit({CUT})"
    for state in ("cut", "done"):
        call([stage("parts", once, continued=True)], Folder.open(tmp_path / "out"), 8.0)
        assert Folder.open(tmp_path / "out").of("parts").state == state


def test_what_failed_comes_last_in_the_next_call(tmp_path: Path) -> None:
    stages = [stage("broken", "raise SystemExit('torn')"), stage("sound", "", 100.0)]
    call(stages, Folder.open(tmp_path), 5.0)
    assert (Folder.open(tmp_path).of("broken").state, Folder.open(tmp_path).of("broken").said) == ("failed", "torn")
    lines = call([stages[0], stage("sound", "")], Folder.open(tmp_path), 8.0)
    assert [line.partition(":")[0] for line in lines] == ["sound", "broken"]


def test_what_a_stage_has_started_ends_with_it(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    child = f"import time\nwhile True: open({str(alive)!r}, 'w').write(str(time.time())); time.sleep(0.05)"
    code = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {child!r}])\ntime.sleep(60)"
    call([stage("leaves", code, continued=True)], Folder.open(tmp_path / "out"), 4.0)
    assert alive.exists()
    time.sleep(0.3)
    observed = alive.read_text()
    time.sleep(0.5)
    assert alive.read_text() == observed


# -- the folder -------------------------------------------------------------------------------------------------------
def test_a_folder_that_came_back_begins_another_one(tmp_path: Path) -> None:
    first = Folder.open(tmp_path / "a")
    first.of("x").state = "done"
    first.facts["commit"] = "1a2b"
    first.save()
    (tmp_path / "a" / STATE).chmod(stat.S_IRUSR)
    second = Folder.open(tmp_path / "b", tmp_path / "a")
    second.of("y").state = "cut"
    second.save()
    again = Folder.open(tmp_path / "b", tmp_path / "a")
    assert ({name: record.state for name, record in again.stages.items()}, again.facts) == ({"x": "done", "y": "cut"}, {"commit": "1a2b"})


def test_a_store_is_taken_over_whole_while_it_is_written_to(tmp_path: Path) -> None:
    stored, live = Folder.open(tmp_path / "out"), tmp_path / "work" / STORE
    live.parent.mkdir()
    with Store.open(live) as store:
        name = store.artifacts.put("tokens.safetensors", b"tokens")
        (store.artifacts.parts / "half").mkdir(parents=True)
        (store.artifacts.parts / "half" / "done").write_bytes(b"not yet")
        stored.collect(live)
    assert sorted(file.name for file in stored.path.iterdir()) == [ARTIFACTS, STORE]
    with sqlite3.connect(stored.path / STORE) as result:
        assert result.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    (tmp_path / "home").mkdir()
    with Store.open(stored.unpack(tmp_path / "home"), create=False) as store:
        assert store.artifacts.read(name) == b"tokens"
        assert not store.artifacts.parts.exists()


@pytest.mark.parametrize("name", ["too large", "too many"])
def test_a_folder_that_cannot_travel_is_an_error(name: str, tmp_path: Path) -> None:
    code = {"too large": f"open({str(tmp_path / 'large')!r}, 'wb').truncate({BYTES + 1})",
            "too many": f"[open({str(tmp_path)!r} + f'/{{n}}', 'w') for n in range(9)]"}[name]
    with pytest.raises(RuntimeError, match="large" if name == "too large" else "may travel"):
        call([stage("writes", code)], Folder.open(tmp_path), 8.0)


def test_every_block_of_the_plan_belongs_to_a_stage(gpu_campaign: Any) -> None:
    blocks = tomllib.loads((ROOT / "ci" / "campaign" / "campaign.toml").read_text())["cells"]
    named = {name for name, *_ in gpu_campaign.STAGES}
    tens: dict[str, int] = {"ladder": 1, "scales": 2, "masked": 3, "regimes": 4, "bundled": 5, "decoders": 6}
    assert tens.keys() < named
    assert {block["priority"] // 10 for block in blocks} == set(tens.values())
    assert all(callable(gpu_campaign.work_of(name)) for name in named)


@pytest.fixture
def gpu_campaign() -> Any:
    import gpu_campaign

    return gpu_campaign


# -- what travels -----------------------------------------------------------------------------------------------------
def test_the_wheels_are_those_that_tests_run_with() -> None:
    def pins(name: str) -> dict[str, str]:
        lines = (line.partition("==") for line in (ROOT / name).read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
        return {name.lower().replace("_", "-"): version for name, _, version in lines if version}

    carried, pinned = pins("ci/gpu_requirements.txt"), pins("constraints.txt")
    assert {"sqlalchemy", "pydantic-core"} < carried.keys()
    assert carried == {name: pinned[name] for name in carried}


def imported(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_stages_import_only_what_travels_or_is_there(bare: Callable[[], dict[str, str]]) -> None:
    environment = bare()
    refused = imported("import playwright", environment)
    assert "No module named 'playwright'" in refused.stderr
    stages = imported("import campaign.works, campaign.kernels, cachemark.trial.child.main, cachemark.cli, gpu_campaign\n"
                      "gpu_campaign.work_of('device')", environment)
    assert stages.returncode == 0, stages.stderr
