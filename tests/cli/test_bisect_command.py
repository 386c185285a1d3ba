"""Bisecting with sides that answer at once: which commit is named, and when none is."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

from cachemark.core.result import Outcome, Status
from support.stages import Stage, call

from .quick_machine import Machine, number


def bisect(stage: Stage, repository: Path, *more: object) -> Any:
    return call("bisect", "calm 1/2", "--plan", stage.plan, "--plugin", stage.plugin, "--repository", repository, "--threads", 1,
                "--good", "HEAD~16", "--bad", "HEAD", *more)


def subject(repository: Path, commit: str) -> str:
    return subprocess.run(["git", "-C", str(repository), "log", "-1", "--format=%s", commit], capture_output=True, text=True,
                          check=True).stdout.strip()


def test_a_slow_down_is_found_among_sixteen_commits(machine: Machine, stage: Stage, repository: Path) -> None:
    machine.speed = lambda planned, options: 1.25 if number(options) >= 11 else 1.0
    result = bisect(stage, repository, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert subject(repository, found["commit"]) == "commit 11"
    assert found["effect"].startswith("latency: +25 %")
    assert machine.trials == 2 * found["pairs"]
    printed = bisect(stage, repository)
    assert printed.stdout.startswith("First bad commit: ")
    assert "minutes." in printed.stdout


def test_ctrl_c_is_no_verdict(machine: Machine, stage: Stage, repository: Path) -> None:
    def interrupted(outcome: Outcome, options: Any) -> Outcome:
        raise KeyboardInterrupt

    machine.changed = interrupted
    result = bisect(stage, repository)
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.endswith("\nInterrupted.\n")


def test_bytes_tell_in_one_pair_a_commit(machine: Machine, stage: Stage, repository: Path) -> None:
    machine.changed = lambda o, options: replace(o, samples={**o.samples, "kv_allocated": [4096.0 * (1.1 if number(options) >= 3 else 1)]})
    found = json.loads(bisect(stage, repository, "--json").stdout)
    assert subject(repository, found["commit"]) == "commit 3"
    assert found["effect"] == "kv_allocated: must be equal"
    assert found["pairs"] <= 1 + 5


def test_commits_that_do_not_run_are_skipped(machine: Machine, stage: Stage, repository: Path) -> None:
    machine.speed = lambda planned, options: 1.25 if number(options) >= 11 else 1.0
    machine.changed = lambda o, options: Outcome(o.case, Status.ERROR, log="SyntaxError") if number(options) in (8, 12) else o
    assert subject(repository, json.loads(bisect(stage, repository, "--json").stdout)["commit"]) == "commit 11"
    machine.changed = lambda o, options: Outcome(o.case, Status.ERROR, log="SyntaxError") if 8 <= number(options) <= 12 else o
    result = bisect(stage, repository)
    assert result.exit_code == 3
    assert "Skipped commits leave 6" in result.stdout


def test_the_time_that_capturing_takes_is_followed_by_nobody(machine: Machine, stage: Stage, repository: Path) -> None:
    """Graph capture is a wall time measured once per process."""
    machine.changed = lambda o, options: replace(o, samples={**o.samples, "capture_seconds": [3.0 if number(options) == 16 else 1.0]})
    result = bisect(stage, repository)
    assert result.exit_code == 3
    assert "The ends do not differ" in result.stdout
    machine.speed = lambda planned, options: 1.25 if number(options) >= 11 else 1.0
    found = json.loads(bisect(stage, repository, "--json").stdout)
    assert subject(repository, found["commit"]) == "commit 11"


def test_a_commit_of_another_trial_protocol_is_skipped_and_an_end_refused(machine: Machine, stage: Stage, old_commits: Path) -> None:
    machine.speed = lambda planned, options: 1.25 if number(options) >= 11 else 1.0
    result = bisect(stage, old_commits, "--json")
    assert subject(old_commits, json.loads(result.stdout)["commit"]) == "commit 11"
    result = call("bisect", "calm 1/2", "--plan", stage.plan, "--plugin", stage.plugin, "--repository", old_commits, "--good", "HEAD~8",
                  "--bad", "HEAD")
    assert result.exit_code == 2
    assert "The commit HEAD~8 speaks" in result.stderr
    assert "protocol 1" in result.stderr


def test_a_crash_is_bisected_by_status(machine: Machine, stage: Stage, repository: Path) -> None:
    machine.changed = lambda o, options: Outcome(o.case, Status.ERROR, log="TypeError") if number(options) >= 5 else o
    assert subject(repository, json.loads(bisect(stage, repository, "--json").stdout)["commit"]) == "commit 5"


def test_a_good_end_that_does_not_run_is_said_and_not_called_equal(machine: Machine, stage: Stage, repository: Path) -> None:
    machine.changed = lambda o, options: Outcome(o.case, Status.ERROR, log="TypeError: clip") if number(options) == 0 else o
    result = bisect(stage, repository)
    assert result.exit_code == 3
    assert "The ends cannot be compared: the first side does not run, error then, ok now: TypeError: clip" in result.stdout
    assert "do not differ" not in result.stdout


def test_ends_that_do_not_differ_are_not_bisected(machine: Machine, stage: Stage, repository: Path) -> None:
    result = bisect(stage, repository)
    assert result.exit_code == 3
    assert "The ends do not differ: within 10 %" in result.stdout
    assert machine.trials == 2 * (1 + 6), "a pair for what is exact, then those of the test"
