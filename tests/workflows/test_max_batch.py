"""The search for the largest batch, and the state after running out of memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachemark.core.result import Outcome, Status
from cachemark.core.spec import MAX_BATCH, Case, Sampling
from cachemark.models.protocol import Request
from cachemark.plans import schema as plans
from cachemark.plans.deadline import Deadline
from cachemark.plans.planned import Prepared
from cachemark.store.db import Store
from cachemark.trial import supervisor as isolate
from cachemark.trial.measurement import failed
from cachemark.trial.request import Task, TrialRequest
from cachemark.trial.supervisor import Finished
from cachemark.workflows import max_batch as largest
from cachemark.workflows.pending import explain
from cachemark.workflows.run import PlanRunner
from cachemark.workflows.session import Machine
from support import stages, stub

CAP = 2 << 30
SMALL = Machine("cpu", 1, memory_cap=CAP)
CASE = Case("m", "random:0", (4, 4), "c", Sampling(), "streaming", {"B": 8}, batch=8)


def fits(most: int, other: Status = Status.OOM) -> Callable[[int], Outcome]:
    def attempt(batch: int) -> Outcome:
        case = replace(CASE, batch=batch)
        if batch > most:
            return Outcome(case, other, log="too many", seconds=1.0)
        return Outcome(case, Status.OK, {"latency": [2.0, 4.0], "peak_memory": [float(batch)]}, "timed only", seconds=1.0)

    return attempt


def test_bisection_finds_the_edge_in_few_attempts_and_a_search_is_one_outcome() -> None:
    for first, most in itertools.product((1, 2, 7, 8, 64), (1, 2, 3, 8, 9, 63, 64, 100, 128)):
        search = largest.bisect(first, fits(most), most=128)
        assert search.batch == most, (first, most)
        assert {most, most + 1} - {129} <= search.tried.keys()
        assert len(search.tried) <= 16
    for most, end, status, samples, text in (
        (20, Status.OOM, Status.OK, {"max_batch": [20.0], "throughput": [4.0, 2.0], "throughput_max": [10.0, 5.0]}, "throughput only"),
        (20, Status.ERROR, Status.OK, {"max_batch": [16.0], "throughput": [4.0, 2.0]}, "the search ended early: error"),
        (3, Status.OOM, Status.OK, {"max_batch": [3.0], "throughput": None}, "throughput only"),  # the plan's own batch does not fit
        (0, Status.OOM, Status.OOM, {"max_batch": None}, "Not even 1 images fit."),
        *[(0, end, end, {"max_batch": None}, "too many")
          for end in (Status.ERROR, Status.TIMEOUT, Status.CONTENDED, Status.NAN_OUTPUT, Status.NOT_REACHED)],
    ):
        search = largest.bisect(8, fits(most, end))
        outcome = largest.outcome(Prepared(CASE, Request("cpu")), search)
        assert outcome.status is status
        assert (outcome.unjudged or outcome.log).startswith((text, largest.NO_IMAGES))
        assert text in (outcome.unjudged or outcome.log)
        assert {name: outcome.samples.get(name) for name in samples} == samples
        assert dict(outcome.facts.tried) == {batch: str(each.status) for batch, each in search.tried.items()}
        if most == 20:
            assert sorted(search.tried) == ([8, 16, 20, 21, 22, 24, 32] if end is Status.OOM else [8, 16, 32])


PLAN = {"name": "p", "cells": [{"model": "llamagen-b", "methods": ["window"], "batch": batch} for batch in (16, "max")]}


class Card(stub.Stub):
    def run(self, groups: Any, options: Any, started: Any, admit: Any = isolate.always, advanced: Any = None) -> Iterator[Finished]:
        for finished in super().run(groups, options, started, admit):
            case = finished.outcome.case
            if options.task is not Task.PROBE:
                yield finished
            elif case.batch > 40:
                yield Finished(Outcome(case, Status.OOM, log="no room"), {})
            else:
                samples = {"latency": [case.batch / 8] * 3, "peak_memory": [float(case.batch)]}
                yield Finished(Outcome(case, Status.OK, samples, "timed only", seconds=1.0), {})


def test_a_block_at_the_largest_batch_is_searched_beside_others(tmp_path: Path) -> None:
    plan = plans.Plan.model_validate(PLAN)
    assert plan.searches
    with Store.open(tmp_path / "s.sqlite") as store:
        summary = PlanRunner(plan, store, Card(), SMALL).measure()
        again = PlanRunner(plan, store, Card(), SMALL).measure()
        other = PlanRunner(plan, store, Card(), Machine(memory_cap=2 * CAP)).measure()
    assert [(o.case.label, "max_batch" in o.samples) for o in summary.ran] == [
        ("full", False), ("window 1/2", False), ("full", True), ("window 1/2", True)]
    for outcome in summary.ran[2:]:
        assert [outcome.samples[name] for name in ("max_batch", "throughput_max", "throughput")] == [[40.0], [8.0] * 3, [8.0] * 3]
        assert outcome.case.evaluation == {"max_batch": {"limit": CAP}}
    assert (again.ran, again.reused) == ([], 4)
    assert len(other.ran) == 4, "another limit is another question"


def test_a_search_ends_with_what_fitted_before_the_deadline(tmp_path: Path) -> None:
    """Each attempt takes 10 s: 16 and 32 images fit, and 64 is not tried any more."""
    now = 0.0

    class Slow(Card):
        def run(self, groups: Any, options: Any, started: Any, admit: Any = isolate.always, advanced: Any = None) -> Iterator[Finished]:
            nonlocal now
            for finished in super().run(groups, options, started, admit):
                now += 10.0 if options.task is Task.PROBE else 0.0
                yield finished

    plan = plans.Plan.model_validate({**PLAN, "cells": PLAN["cells"][1:]})
    deadline = Deadline(25.0, lambda planned: (10.0 if MAX_BATCH in planned.case.evaluation else 0.0, True), clock=lambda: now)
    with Store.open(tmp_path / "s.sqlite") as store:
        summary = PlanRunner(plan, store, Slow(), SMALL, deadline=deadline).measure()
        full, window = summary.ran
        assert now == 20.0, "nothing begins that cannot end"
        assert (full.status, full.samples["max_batch"]) == (Status.OK, [32.0])
        assert full.facts.tried == [[16, "ok"], [32, "ok"], [64, "not_reached"]]
        assert full.facts.search_ended.status == "not_reached"
        assert (window.status, window.facts.tried) == (Status.NOT_REACHED, [[16, "not_reached"]])
        reasons = [reason for _, reason in explain(plan, tmp_path / "s.sqlite", machine=SMALL)]
        assert reasons == ["last time a deadline ended its search", "last time it ended as not_reached"]
        again = PlanRunner(plan, store, Slow(), SMALL).measure()
        assert [o.samples["max_batch"] for o in again.ran] == [[40.0]] * 2, "neither search was done"
        assert again.ran[0].facts.search_ended is None
        third = PlanRunner(plan, store, Slow(), SMALL).measure()
        assert (third.ran, third.reused) == ([], 2)


def test_a_search_writes_its_report(measured: stages.Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = stages.call("max-batch", "demo")
    assert (refused.exit_code, "add --memory-cap" in refused.output) == (2, True), "on a CPU"
    stub.answering(monkeypatch, lambda planned, _: replace(fits(4)(planned.case.batch), case=planned.case))
    page = tmp_path / "page.html"
    result = measured.copy(tmp_path / "copy").call("max-batch", "--memory-cap", "2GiB", "--report", page)
    assert stages.good(result).endswith(f"Report: {page}\n")
    assert "largest batch" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(("status", "device", "cap", "fresh"), [(Status.OOM, "cpu", 1 << 30, True), (Status.ERROR, "cuda", 0, True),
                                                                (Status.OOM, "cpu", 0, False), (Status.UNSUPPORTED, "cuda", 0, False)])
def test_an_unfit_process_takes_no_more_cases(status: Status, device: str, cap: int, fresh: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = list[object](), list[bool]()

    class Child(AbstractContextManager["Child"]):
        pid, name, node, memory_cap = 1, "child", "", cap

        def __init__(self, request: TrialRequest) -> None:
            made.append(self)
            self.planned = request.cases

        def __exit__(self, *_: object) -> None: ...

        def messages(self) -> Iterator[object]:
            for _ in self.planned:
                yield {"start": "key"}
                yield {"measurement": failed(status, "gone")}

    monkeypatch.setattr(isolate, "_Child", Child)
    two = [Prepared(replace(CASE, batch=n, device_class=device), Request(device)) for n in (1, 2)]
    finished = list(isolate.run_trials(two, TrialRequest(1.0, 1), lambda p: None, admit=lambda _, on=False: asked.append(on) or ""))
    assert [f.outcome.status for f in finished] == [status] * 2
    assert (len(made), asked) == ((2, [False, False]) if fresh else (1, [False, True])), "whether it goes on in the same process"
