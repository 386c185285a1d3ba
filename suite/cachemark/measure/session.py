"""A plan from beginning to end: what is stored already is carried over, the rest is run and saved, one case at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from ..mask import mask, masked
from ..result import Environment, Outcome, Status
from ..spec import Case
from . import largest, quality
from .deadline import Deadline, breadth_first
from .environment import code_identity, environment, skip_key, skip_parts
from .executors.local import Executor, local
from .isolate import Finished, Options, always
from .plan import Plan, Planned, expand


class Sink(Protocol):
    """Where outcomes go. The store is one; a test's list may be another."""

    def begin_run(self, plan: str, plan_json: Mapping[str, Any], environment: Environment, code: Mapping[str, Any]) -> int:
        """Open a run and return its number."""

    def carry(self, run_id: int, skip_key: str) -> Outcome | None:
        """Link a stored outcome to this run, or None where there is none."""

    def find(self, skip_key: str) -> Outcome | None:
        """A stored outcome, or None."""

    def save(self, run_id: int, outcome: Outcome, artifacts: Mapping[str, bytes] | None = None) -> int:
        """Keep an outcome."""

    def finish_run(self, run_id: int, state: str) -> None:
        """Close a run: finished, interrupted or failed."""


@dataclass(frozen=True)
class Decision:
    """Whether a case is run, and its skip key with the parts it is made of."""

    planned: Planned
    key: str
    parts: Mapping[str, str]
    stored: bool


@dataclass
class Summary:
    """What a run did."""

    run_id: int
    ran: list[Outcome] = field(default_factory=list)
    carried: int = 0


class Watcher(Protocol):
    """Sees a run go by, for a progress bar."""

    def planned(self, decisions: list[Decision]) -> None: ...
    def started(self, case: Case) -> None: ...
    def ended(self, outcome: Outcome) -> None: ...


def decide(
    plan: Plan, sink: Sink | None, device: str, threads: int, *, fresh: bool = False, here: Environment | None = None,
    memory_cap: int = 0, cases: list[Planned] | None = None,
) -> tuple[Environment, list[Decision]]:
    """Every case of the plan with its skip key; ``stored`` where an outcome with that key is kept and ``fresh`` is not asked. ``here`` is
    where trials run, if not simply on this machine; ``cases`` stand in place of those that the plan expands to. What fitted without
    ``memory_cap`` need not fit under it, so it is one of the parts."""
    here = here or environment(device, threads)
    decisions = []
    for planned in expand(plan, device) if cases is None else cases:
        parts = skip_parts(planned.case, here, device) | ({"memory_cap": str(memory_cap)} if memory_cap else {})
        key = skip_key(parts)
        decisions.append(Decision(planned, key, parts, not fresh and sink is not None and sink.find(key) is not None))
    return here, decisions


def measure(
    plan: Plan, sink: Sink, *, device: str = "cpu", threads: int = 1, plugins: tuple[str, ...] = (), fresh: bool = False,
    shelves: Path | None = None, watcher: Watcher | None = None, checked: Callable[[list[Decision]], None] | None = None,
    executor: Executor | None = None, memory_cap: int = 0, deadline: Deadline | None = None,
) -> Summary:
    """Run a plan into a sink. An interruption leaves everything completed in the sink and the run marked interrupted. ``shelves`` is the
    folder in which each case keeps the finished parts of its quality pass, and finds those that another process has made. ``executor``
    says where trials run; by default on this machine, one at a time. ``memory_cap`` is how many bytes of a device a trial may allocate.
    With a ``deadline`` cases run by priority and breadth first, and those that cannot end before it are outcomes ``not_reached``."""
    with nullcontext(executor) if executor else local(device, threads) as places:
        here, decisions = decide(plan, sink, device, threads, fresh=fresh, here=places.environment(device, threads), memory_cap=memory_cap)
        if checked is not None:
            checked(decisions)
        summary = Summary(sink.begin_run(plan.name, plan.model_dump(mode="json"), here, code_identity()))
        if watcher is not None:
            watcher.planned(decisions)
        state = "interrupted"
        try:
            for decision in decisions:
                if decision.stored:
                    sink.carry(summary.run_id, decision.key)
                    summary.carried += 1
            options = Options(plan.timeout, threads, plugins, memory_cap=memory_cap)
            _run(_shelved(decisions, shelves), plan, options, sink, summary, watcher, places, deadline)
            state = "finished"
        except Exception:
            state = "failed"
            raise
        finally:
            sink.finish_run(summary.run_id, state)
    return summary


def measure_largest(
    plan: Plan, sink: Sink, *, memory_cap: int, most: int = largest.MOST, device: str = "cpu", threads: int = 1,
    plugins: tuple[str, ...] = (), fresh: bool = False, watcher: Watcher | None = None, executor: Executor | None = None,
) -> Summary:
    """For every full cache and arm of a plan the largest batch that fits into ``memory_cap`` bytes (0: all that a GPU has), and throughput
    there and at the plan's batch. Each batch that is tried is a trial of its own. What no process could do is an outcome too."""
    asked = [largest.asked(p, memory_cap) for p in expand(plan, device) if p.case.role in ("baseline", "arm")]
    with nullcontext(executor) if executor else local(device, threads) as places:
        here, decisions = decide(plan, sink, device, threads, fresh=fresh, here=places.environment(device, threads), cases=asked,
                                 memory_cap=memory_cap)
        summary = Summary(sink.begin_run(plan.name, plan.model_dump(mode="json"), here, code_identity()))
        if watcher is not None:
            watcher.planned(decisions)
        options, state = Options(plan.timeout, threads, plugins, memory_cap=memory_cap, probe=True), "interrupted"
        try:
            for decision in decisions:
                if decision.stored:
                    sink.carry(summary.run_id, decision.key)
                    summary.carried += 1
                    continue
                _told(watcher)(planned := decision.planned)
                found = largest.search(planned.case.batch, partial(_attempt, places, options, planned), most)
                _keep(Finished(largest.outcome(planned.case, found), {}), decision, sink, summary, watcher)
            state = "finished"
        except Exception:
            state = "failed"
            raise
        finally:
            sink.finish_run(summary.run_id, state)
    return summary


def _attempt(places: Executor, options: Options, planned: Planned, batch: int) -> Outcome:
    (finished,) = places.run([[largest.at(planned, batch)]], options, lambda planned: None)
    return finished.outcome


def make_share(
    plan: Plan, sink: Sink, share: tuple[int, int], shelves: Path, *, device: str = "cpu", threads: int = 1, plugins: tuple[str, ...] = (),
    watcher: Watcher | None = None, executor: Executor | None = None,
) -> list[Outcome]:
    """Make one of several shares of the quality images of every case that is not stored, so that several devices of one class can work
    at a plan; a run that finds their parts does the rest. Returns the outcomes of cases whose share could not be made."""
    with nullcontext(executor) if executor else local(device, threads) as places:
        _, decisions = decide(plan, sink, device, threads, here=places.environment(device, threads))
        wanted = [d for d in _shelved(decisions, shelves) if not d.planned.unmet and quality.makes(d.planned.case)]
        if watcher is not None:
            watcher.planned(wanted)
        failed, groups = [], _groups([d.planned for d in wanted], plan.trial)
        for finished in places.run(groups, Options(plan.timeout, threads, plugins, share), _told(watcher)):
            if finished.outcome.status is not Status.NOT_REACHED:
                failed.append(finished.outcome)
            if watcher is not None:
                watcher.ended(finished.outcome)
    return failed


def _shelved(decisions: list[Decision], shelves: Path | None) -> list[Decision]:
    """What is to be run, each with a folder of its own for the parts of its quality pass, named by everything that they depend on."""
    todo = [d for d in decisions if not d.stored]
    if shelves is None:
        return todo
    full = {d.planned.case.cell: shelves / d.key for d in decisions if d.planned.case.role == "baseline"}
    return [replace(d, planned=replace(d.planned, shelf=shelves / d.key, beside=full.get(d.planned.case.cell))) for d in todo]


def _run(
    todo: list[Decision], plan: Plan, options: Options, sink: Sink, summary: Summary, watcher: Watcher | None, places: Executor,
    deadline: Deadline | None,
) -> None:
    by_case, planned = {decision.planned.case.key: decision for decision in todo}, [d.planned for d in todo]
    groups = breadth_first(planned, plan.trial) if deadline else _groups(planned, plan.trial)
    for finished in places.run(groups, options, _told(watcher), deadline.admit if deadline else always):
        if deadline:
            deadline.ended(by_case[finished.outcome.case.key].planned, finished.outcome)
        _keep(finished, by_case[finished.outcome.case.key], sink, summary, watcher)


def _keep(finished: Finished, decision: Decision, sink: Sink, summary: Summary, watcher: Watcher | None) -> None:
    facts = {**masked(finished.outcome.facts), "skip_parts": dict(decision.parts)}
    outcome = replace(finished.outcome, log=mask(finished.outcome.log), skip_key=decision.key, facts=facts)
    sink.save(summary.run_id, outcome, finished.artifacts)
    summary.ran.append(outcome)
    if watcher is not None:
        watcher.ended(outcome)


def _told(watcher: Watcher | None) -> Callable[[Planned], None]:
    return (lambda planned: watcher.started(planned.case)) if watcher is not None else (lambda planned: None)


def _groups(planned: list[Planned], trial: str) -> list[list[Planned]]:
    """Cases that share a process: those of one model, weights, dtype and codec-independent request; or each alone."""
    if trial == "case":
        return [[p] for p in planned]
    return [list(group) for _, group in groupby(planned, key=lambda p: (p.case.model, p.request))]
