"""Children that break the talk with their parent: cut short in a line, or deaf. Each ends its case and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cachemark.core.result import Status
from cachemark.core.spec import Case, Sampling
from cachemark.models.protocol import Request
from cachemark.plans.expand import Planned
from cachemark.trial import supervisor
from cachemark.trial.request import TrialRequest
from cachemark.trial.supervisor import run_trials

CASE = Case("dot", "random:0", (4, 4), "10 classes, balanced", Sampling(), "streaming", budget="1/2")


def cases(count: int) -> list[Planned]:
    return [Planned(replace(CASE, batch=n + 1), Request("cpu")) for n in range(count)]


def interpreter(folder: Path, script: str) -> str:
    """A program that stands in for the child."""
    file = folder / "python"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize("end", ["kill -9 $$", "echo; sleep 1000"])
def test_a_line_that_was_cut_short_ends_the_case_alone(end: str, tmp_path: Path) -> None:
    python = interpreter(tmp_path, f"""read line; echo '{{"start": 0}}'; printf '{{"done": 0, "outc'; {end}""")
    found = list(run_trials(cases(2), TrialRequest(60.0, 1, python=python), lambda planned: None))
    assert [f.outcome.status for f in found] == [Status.ERROR, Status.ERROR]
    assert all("SIGKILL" in f.outcome.log for f in found)
    assert found[0].process != found[1].process


@pytest.mark.timeout(60)
def test_a_child_that_does_not_read_has_the_time_of_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is longer than a pipe holds."""
    monkeypatch.setattr(supervisor, "STARTUP", 0.5)
    python = interpreter(tmp_path, "exec sleep 1000")
    many = [replace(planned, unsupported_reason="x" * 100_000) for planned in cases(2)]
    found = next(iter(run_trials(many, TrialRequest(0.5, 1, python=python), lambda planned: None)))
    assert found.outcome.status is Status.TIMEOUT
