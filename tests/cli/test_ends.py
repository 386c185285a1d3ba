"""Exit codes of runs without results."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cachemark.core.result import Outcome, Status
from cachemark.store import database, faults
from cachemark.trial.executors import local
from cachemark.trial.measurement import Measurement, outcome_of
from cachemark.trial.supervisor import Finished
from support.stages import Stage, call, stage


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A stage whose trials are made up: full caches and methods time out, reference rows are measured."""

    def trials(planned: Any, *_: object, **__: object) -> Any:
        for one in planned:
            if one.case.role in ("other_seeds", "other_batch"):
                found = Outcome(one.case, Status.OK, {"token_agreement": [1.0]})
                yield Finished(found, {"tokens.bin": os.urandom(60_000)})
            else:
                yield Finished(outcome_of(one, Measurement(Status.TIMEOUT, log="No outcome within 30 s")), {})

    monkeypatch.setattr(local, "run_trials", trials)
    monkeypatch.setattr(local.Local, "rates", lambda *_: {})
    return stage(tmp_path / "stage")


def test_a_run_whose_full_cache_and_methods_timed_out_has_measured_nothing(made: Stage) -> None:
    result = made.run()
    assert result.stdout == "Run 1: 2 measured, 3 failed, 0 skipped.\n"
    assert result.exit_code == 4
    assert "No case of the plan produced results" in result.stderr
    assert "[nothing-measured; " in result.stderr
    assert made.run().exit_code == 4, "what was reused are reference rows"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 400 KB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = shutil.which("mount") and os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)], check=False, capture_output=True).returncode == 0
    if not mounted:
        pytest.skip("only root may mount a disk")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("left", [330_000, 120_000, 20_000, 0])
def test_a_disk_that_is_full(left: int, made: Stage, small_disk: Path) -> None:
    """At different moments: while outcomes are saved, while tables are made, at the first file."""
    (small_disk / "other").write_bytes(b"x" * (400 * 1024 - left))
    result = call(*[str(small_disk / "dots.sqlite") if str(a) == str(made.store) else a for a in made.run_arguments])
    assert result.exit_code == 5, result.output
    assert "[store-unavailable; " in result.stderr
    (small_disk / "other").unlink()
    assert call("list", "runs", "--store", small_disk / "dots.sqlite").exit_code in (0, 2)


def test_a_lock_that_is_held(made: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    made.run()
    for module in (database, faults):
        monkeypatch.setattr(module, "BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(made.store, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        result = made.run()
    assert result.exit_code == 5
    assert "kept" in result.stderr
    assert "[store-unavailable; " in result.stderr
