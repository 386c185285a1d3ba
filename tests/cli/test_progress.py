"""Progress of a run: one line per case, and how far a long case is."""

from __future__ import annotations

import re
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


def test_each_case_is_a_line_and_a_long_one_reports_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(progress, "QUIET", 0.0)
    full = Case("m", "w", (4, 4), "c", Sampling(), "full", role="baseline")
    cases = [Planned(case, Request()) for case in (
        full, replace(full, method="rkv", budget="1/2", role="candidate"), replace(full, method="[/x]", batch=2, role="candidate"))]
    left = TimeLeft(cases, {planned.case.key: 60.0 * number for number, planned in enumerate(cases, 1)}.get)
    follower = Follower()
    follower.planned([Decision(planned, planned.case.key, {}, stored=planned is None) for planned in cases], left)
    for planned, latency, kept in zip(cases, (2.0, 1.0, 0.0), (4096.0, 1024.0, 0.0), strict=True):
        left.started(planned)
        follower.started(planned.case)
        left.advanced(planned, 1)
        follower.advanced(planned.case)
        samples = {"latency": [latency] * 3, "kv_allocated": [kept], "color_consistency": [1.0, 0.5]}
        outcome = Outcome(planned.case, Status.OK, samples, seconds=9.0)
        if not latency:
            outcome = Outcome(planned.case, Status.ERROR, log="::error::\x1b[1m\nlast")
        left.ended(outcome)
        follower.ended(outcome)
    assert re.sub(r" [1-9]\d? % done", " so much done", capsys.readouterr().err).splitlines() == [
        "3 cases: 0 already measured, 3 to run.",
        "    m full: so much done, about 6 min left",
        "[1/3] m full: ok, 9.0 s; 2.00 s a batch, color consistency 75.0 %; about 5 min left",
        "    m rkv 1/2: so much done, about 5 min left",
        "[2/3] m rkv 1/2: ok, 9.0 s; 1.00 s a batch, 2.00× the full cache's speed, 75.0 % less KV, color consistency 75.0 %; "
        "about 3 min left",
        "    m [/x] 1: so much done, about 3 min left",
        "[3/3] m [/x] 1: error, 0.0 s",
        "    : :error:: [1m"]
