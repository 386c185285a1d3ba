"""A plan from beginning to end: what is stored already is carried over, the rest is run and saved, one case at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from ..result import Environment, Outcome, Status
from ..spec import Case
from . import quality
from .environment import code_identity, environment, skip_key, skip_parts
from .isolate import Options, run_trials
from .limit import stated
from .plan import Plan, Planned, expand
from .rates import rates


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


def decide(plan: Plan, sink: Sink | None, device: str, threads: int, *, fresh: bool = False) -> tuple[Environment, list[Decision]]:
    """Every case of the plan with its skip key; ``stored`` where an outcome with that key is kept and ``fresh`` is not asked."""
    here = environment(device, threads)
    decisions = []
    for planned in expand(plan, device):
        parts = skip_parts(planned.case, here, device)
        key = skip_key(parts)
        decisions.append(Decision(planned, key, parts, not fresh and sink is not None and sink.find(key) is not None))
    return here, decisions


def measure(
    plan: Plan, sink: Sink, *, device: str = "cpu", threads: int = 1, plugins: tuple[str, ...] = (), fresh: bool = False,
    shelves: Path | None = None, watcher: Watcher | None = None, checked: Callable[[list[Decision]], None] | None = None,
) -> Summary:
    """Run a plan into a sink. An interruption leaves everything completed in the sink and the run marked interrupted. ``shelves`` is the
    folder in which each case keeps the finished parts of its quality pass, and finds those that another process has made."""
    here, decisions = decide(plan, sink, device, threads, fresh=fresh)
    if checked is not None:
        checked(decisions)
    here, decisions = _rated(here, decisions, device, threads)
    summary = Summary(sink.begin_run(plan.name, plan.model_dump(mode="json"), here, code_identity()))
    if watcher is not None:
        watcher.planned(decisions)
    state = "interrupted"
    try:
        for decision in decisions:
            if decision.stored:
                sink.carry(summary.run_id, decision.key)
                summary.carried += 1
        _run(_shelved(decisions, shelves), plan, Options(plan.timeout, threads, plugins), sink, summary, watcher)
        state = "finished"
    except Exception:
        state = "failed"
        raise
    finally:
        sink.finish_run(summary.run_id, state)
    return summary


def make_share(
    plan: Plan, sink: Sink, share: tuple[int, int], shelves: Path, *, device: str = "cpu", threads: int = 1, plugins: tuple[str, ...] = (),
    watcher: Watcher | None = None,
) -> list[Outcome]:
    """Make one of several shares of the quality images of every case that is not stored, so that several devices of one class can work
    at a plan; a run that finds their parts does the rest. Returns the outcomes of cases whose share could not be made."""
    _, decisions = decide(plan, sink, device, threads)
    wanted = [d for d in _shelved(decisions, shelves) if not d.planned.unmet and quality.makes(d.planned.case)]
    if watcher is not None:
        watcher.planned(wanted)
    failed = []
    for group in _groups([d.planned for d in wanted], plan.trial):
        started = (lambda planned: watcher.started(planned.case)) if watcher is not None else (lambda planned: None)
        for outcome, _ in run_trials(group, Options(plan.timeout, threads, plugins, share), started):
            if outcome.status is not Status.NOT_REACHED:
                failed.append(outcome)
            if watcher is not None:
                watcher.ended(outcome)
    return failed


def _rated(here: Environment, decisions: list[Decision], device: str, threads: int) -> tuple[Environment, list[Decision]]:
    """The environment and what is to be run, with the rates of this device; measured only where something is."""
    dtypes = {d.planned.case.dtype for d in decisions if not d.stored}
    if not dtypes:
        return here, decisions
    found = rates(device, threads, dtypes)
    given = [d if d.stored else replace(d, planned=replace(d.planned, rates=found.get(d.planned.case.dtype))) for d in decisions]
    return replace(here, facts={**here.facts, **stated(found)}), given


def _shelved(decisions: list[Decision], shelves: Path | None) -> list[Decision]:
    """What is to be run, each with a folder of its own for the parts of its quality pass, named by everything that they depend on."""
    todo = [d for d in decisions if not d.stored]
    if shelves is None:
        return todo
    full = {d.planned.case.cell: shelves / d.key for d in decisions if d.planned.case.role == "baseline"}
    return [replace(d, planned=replace(d.planned, shelf=shelves / d.key, beside=full.get(d.planned.case.cell))) for d in todo]


def _run(todo: list[Decision], plan: Plan, options: Options, sink: Sink, summary: Summary, watcher: Watcher | None) -> None:
    by_case = {decision.planned.case.key: decision for decision in todo}
    for group in _groups([d.planned for d in todo], plan.trial):
        started = (lambda planned: watcher.started(planned.case)) if watcher is not None else (lambda planned: None)
        for outcome, artifacts in run_trials(group, options, started):
            decision = by_case[outcome.case.key]
            facts = {**outcome.facts, "skip_parts": dict(decision.parts)}
            outcome = replace(outcome, skip_key=decision.key, facts=facts)
            sink.save(summary.run_id, outcome, artifacts)
            summary.ran.append(outcome)
            if watcher is not None:
                watcher.ended(outcome)


def _groups(planned: list[Planned], trial: str) -> list[list[Planned]]:
    """Cases that share a process: those of one model, weights, dtype and codec-independent request; or each alone."""
    if trial == "case":
        return [[p] for p in planned]
    return [list(group) for _, group in groupby(planned, key=lambda p: (p.case.model, p.request))]
