"""Progress of a run: a table on a terminal, lines in a log, and how far a long case is."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import replace

import pytest

from cachemark.cli import progress
from cachemark.cli.progress import Follower
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Case, Sampling
from cachemark.models.protocol import Request
from cachemark.plans.expand import Planned
from cachemark.workflows.explain import Decision
from cachemark.workflows.time_left import TimeLeft


class Terminal(io.StringIO):
    """A standard error that is a terminal, or is not."""

    def __init__(self, is_one: bool) -> None:
        super().__init__()
        self._is_one = is_one

    def isatty(self) -> bool:
        return self._is_one


@pytest.mark.parametrize("is_one", [True, False], ids=["terminal", "file"])
def test_progress_names_cases_and_failures_whatever_they_are_called(is_one: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Square brackets are markup to rich."""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal(is_one))
    monkeypatch.setenv("TERM", "xterm")
    case = Case("m", "random:0", (4, 4), "c", Sampling(), "[/x]", {"B": 8}, budget="1/2")
    decision = Decision(Planned(case, Request()), "key", {}, stored=False)
    with Follower() as follower:
        follower.planned([decision, decision], TimeLeft())
        follower.started(case)
        follower.ended(Outcome(case, Status.ERROR, log="[/bold] first\nlast"))
        follower.ended(Outcome(case, Status.OK, {"latency": [1.0]}, judgement="none", seconds=2.0))
    text = terminal.getvalue()
    assert "2 cases: 0 already measured, 2 to run." in text
    assert "[1/2] m [/x] 1/2: error, 0.0 s" in text
    assert "[/bold] first" in text
    assert ("\x1b[" in text) == is_one
    assert ("[2/2] m [/x] 1/2: ok, 2.0 s" in text) == (not is_one)  # a table says so in its configurations


def test_progress_of_nothing_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal(True))
    with Follower() as follower:
        planned = Planned(Case("m", "random:0", (4, 4), "c", Sampling(), "full"), Request())
        follower.planned([Decision(planned, "key", {}, stored=True)], TimeLeft())
    assert terminal.getvalue() == "1 case: 1 already measured, 0 to run.\n"


def test_a_table_fills_as_cases_end_and_lines_say_how_far_a_long_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Terminal and log print the same values, in the order of the plan."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(progress, "QUIET", 0.0)
    full = Case("m", "w", (4, 4), "c", Sampling(), "full", role="baseline")
    side = replace(full, method="rkv", budget="1/2", role="candidate")
    two = [Planned(case, Request()) for case in (full, side)]
    for is_one in (True, False):
        monkeypatch.setattr(sys, "stderr", terminal := Terminal(is_one))
        left = TimeLeft(two, {full.key: 60.0, side.key: 120.0}.get)
        with Follower() as follower:
            follower.planned([Decision(each, each.case.key, {}, stored=False) for each in two], left)
            for each, latency, kept in zip(two, (2.0, 1.0), (4096.0, 1024.0), strict=True):
                left.started(each)
                follower.started(each.case)
                left.advanced(each, 1)
                follower.advanced(each.case)
                samples = {"latency": [latency] * 3, "kv_allocated": [kept], "color_consistency": [1.0, 0.5]}
                outcome = Outcome(each.case, Status.OK, samples, seconds=9.0)
                left.ended(outcome)
                follower.ended(outcome)
        text = terminal.getvalue()
        if is_one:
            assert re.search(r"m rkv 1/2 +1\.00 s +2\.00× +75\.0 % less KV +color consistency 75\.0 %", text)
            assert "1 of 2" in text
            assert text.index("m full") < text.index("m rkv 1/2")
        else:
            assert re.sub(r" [1-9]\d? % done", " so much done", text).splitlines()[1:] == [
                "    m full: so much done, about 3 min left",
                "[1/2] m full: ok, 9.0 s; 2.00 s a batch, color consistency 75.0 %; about 2 min left",
                "    m rkv 1/2: so much done, about 2 min left",
                "[2/2] m rkv 1/2: ok, 9.0 s; 1.00 s a batch, 2.00× the full cache's speed, 75.0 % less KV, color consistency 75.0 %"]
