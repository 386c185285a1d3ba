"""``cachemark bisect`` with stub measurements: which commit is named, and when none is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachemark.core.result import Outcome, Status
from support.repositories import git
from support.stages import Stage, call

from .quick_machine import Machine, number


def bisect(stage: Stage, repository: Path, *more: object, good: str = "HEAD~16") -> Any:
    return call("bisect", "calm 1/2", "--plan", stage.plan, "--plugin", stage.plugin, "--repository", repository, "--threads", 1,
                "--good", good, "--bad", "HEAD", *more)


def failing(*numbers: int) -> Callable[[Outcome, Any], Outcome]:
    return lambda o, options: Outcome(o.case, Status.ERROR, log="TypeError: clip") if number(options) in numbers else o


def worse(name: str, before: float, after: float, first: int) -> Callable[[Outcome, Any], Outcome]:
    return lambda o, options: replace(o, samples={**o.samples, name: [after if number(options) >= first else before]})


CAPTURE = worse("capture_seconds", 1.0, 3.0, 16)  # a wall time measured once per process, which is never followed


@pytest.mark.parametrize(("slow", "changed", "commit", "effect"), [
    (11, failing(), 11, "latency: +25 %"), (99, worse("kv_allocated", 4096.0, 4505.0, 3), 3, "kv_allocated: must be equal"),
    (11, failing(8, 12), 11, "latency: +2"), (11, CAPTURE, 11, "latency: +25 %"), (99, failing(*range(5, 17)), 5, ""),
])  # fmt: skip
def test_the_commit_that_made_a_case_worse_is_found(
    slow: int, changed: Callable[[Outcome, Any], Outcome], commit: int, effect: str, machine: Machine, stage: Stage, repository: Path,
) -> None:
    machine.speed = lambda planned, options: 1.25 if number(options) >= slow else 1.0
    machine.changed = changed
    result = bisect(stage, repository, "--json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert git(repository, "log", "-1", "--format=%s", data["commit"]) == f"commit {commit}"
    assert data["effect"].startswith(effect)
    assert machine.trials == 2 * data["pairs"]
    assert "kv_allocated" not in effect or data["pairs"] <= 1 + 5, "bytes need one pair per commit"


@pytest.mark.parametrize(("slow", "changed", "text"), [
    (11, failing(*range(8, 13)), "Skipped commits leave 6"), (99, CAPTURE, "The ends do not differ"),
    (99, failing(0), "The ends cannot be compared: the first side does not run, error then, ok now: TypeError: clip"),
    (99, failing(), "The ends do not differ: within 10 %"),
])  # fmt: skip
def test_no_commit_is_named(
    slow: int, changed: Callable[[Outcome, Any], Outcome], text: str, machine: Machine, stage: Stage, repository: Path,
) -> None:
    machine.speed = lambda planned, options: 1.25 if number(options) >= slow else 1.0
    machine.changed = changed
    result = bisect(stage, repository)
    assert result.exit_code == 3
    assert text in result.stdout
    assert ("do not differ" in result.stdout) == ("do not differ" in text)


def test_a_commit_of_another_trial_protocol_is_skipped_and_an_end_refused(machine: Machine, stage: Stage, old_commits: Path) -> None:
    machine.speed = lambda planned, options: 1.25 if number(options) >= 11 else 1.0
    result = bisect(stage, old_commits, "--json")
    assert git(old_commits, "log", "-1", "--format=%s", json.loads(result.stdout)["commit"]) == "commit 11"
    refused = bisect(stage, old_commits, good="HEAD~8")
    assert refused.exit_code == 2
    assert "protocol 1" in refused.stderr


def test_ctrl_c_is_not_a_verdict(machine: Machine, stage: Stage, repository: Path) -> None:
    def interrupt(outcome: Outcome, options: Any) -> Outcome:
        raise KeyboardInterrupt

    machine.changed = interrupt
    result = bisect(stage, repository)
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.endswith("\nInterrupted.\n")
