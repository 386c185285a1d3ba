"""A plan from beginning to end: what is stored already is carried over, the rest is run and saved, one case at a time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from ..core.limits import Rates
from ..core.result import Environment, Outcome, Status
from ..core.secrets import mask, masked
from ..core.spec import QUALITY_PASS, Case
from ..machine.environment import environment
from ..plans.deadline import Deadline, breadth_first
from ..plans.expand import MAX_BATCH, Planned, expand
from ..plans.reuse import Earlier, code_identity, skip_key, skip_parts
from ..plans.schema import Plan
from ..trial.child.facts import stated
from ..trial.executors.local import Executor, local
from ..trial.request import Task, TrialRequest
from ..trial.supervisor import Finished, always
from . import largest_batch as largest


class Sink(Protocol):
    """Destination of outcomes. The store is one; a test's list may be another."""

    def begin_run(self, plan: str, plan_json: Mapping[str, Any], environment: Environment, code: Mapping[str, Any]) -> int:
        """Open a run and return its number."""

    def carry(self, run_id: int, skip_key: str) -> Outcome | None:
        """Link a stored outcome to this run, or None where there is none."""

    def find(self, skip_key: str) -> Outcome | None:
        """A stored outcome, or None."""

    def latest_for_case(self, case_key: str, *, ok: bool = False) -> Outcome | None:
        """The newest outcome of a case, whatever its status or among those that ended ``ok``, or None."""

    def save(self, run_id: int, outcome: Outcome, artifacts: Mapping[str, bytes] | None = None, *, trial: str = "") -> int:
        """Keep an outcome. Those of one ``trial`` shared a process; an empty one is a trial of its own."""

    def finish_run(self, run_id: int, state: str) -> None:
        """Close a run: finished, interrupted or failed."""


@dataclass(frozen=True)
class Decision:
    """A case, whether it is ``stored`` already, and its skip key with the parts it is made of."""

    planned: Planned
    key: str
    parts: Mapping[str, str]
    stored: bool


@dataclass
class Summary:
    """The result of a run: outcomes measured now, and the number carried over from earlier runs."""

    run_id: int
    ran: list[Outcome] = field(default_factory=list)
    carried: int = 0
    _trials: dict[str, str] = field(default_factory=dict)

    def trial(self, process: str) -> str:
        """The number of a process in this run, counted from 1; empty where there was none."""
        return self._trials.setdefault(process, str(len(self._trials) + 1)) if process else ""


class RunWatcher(Protocol):
    """Sees a run go by, for a progress bar."""

    def planned(self, decisions: list[Decision]) -> None: ...
    def started(self, case: Case) -> None: ...
    def ended(self, outcome: Outcome) -> None: ...


class Nobody:
    """Does not watch."""

    def planned(self, decisions: list[Decision]) -> None:
        pass

    def started(self, case: Case) -> None:
        pass

    def ended(self, outcome: Outcome) -> None:
        pass


UNWATCHED = Nobody()


def decide(
    plan: Plan, sink: Sink | None, device: str, threads: int, *, fresh: bool = False, here: Environment | None = None,
    memory_cap: int = 0, cases: list[Planned] | None = None,
) -> tuple[Environment, list[Decision]]:
    """Every case of the plan with its skip key; ``stored`` where an outcome with that key is kept and ``fresh`` is not asked, but for a
    search that a deadline ended. ``here`` is where trials run, if not simply on this machine; ``cases`` (see :func:`limited`) stand in
    place of those that the plan expands to. What fitted without ``memory_cap`` need not fit under it, so it is one of the parts."""
    here = here or environment(device, threads)
    decisions = []
    for planned in limited(expand(plan, device), memory_cap) if cases is None else cases:
        parts = skip_parts(planned.case, here) | ({"memory_cap": str(memory_cap)} if memory_cap else {})
        key = skip_key(parts)
        found = None if fresh or sink is None else sink.find(key)
        decisions.append(Decision(planned, key, parts, found is not None and not largest.unfinished(found)))
    return here, decisions


def limited(cases: list[Planned], memory_cap: int) -> list[Planned]:
    """With the limit in cases whose largest batch is asked: it decides how many images that is."""
    return [largest.asked(planned, memory_cap) if MAX_BATCH in planned.case.evaluation else planned for planned in cases]


def measure(
    plan: Plan, sink: Sink, *, device: str = "cpu", threads: int = 1, plugins: tuple[str, ...] = (), fresh: bool = False,
    feature_caches: Path | None = None, watcher: RunWatcher = UNWATCHED,
    executor: Executor | None = None, memory_cap: int = 0, deadline: Deadline | None = None, carry: bool = True,
) -> Summary:
    """Run a plan into a sink. An interruption leaves everything completed in the sink and the run marked interrupted. In the folder
    ``feature_caches`` each case keeps the finished parts of its quality pass, and finds those that another process has made.
    ``executor`` says where trials run; by default on this machine, one at a time. ``memory_cap`` is how many bytes of a device a trial
    may allocate. With a ``deadline`` cases run by priority and breadth first, and those that cannot end before it are outcomes
    ``not_reached``; a search for the largest batch ends with what has fitted until then. Quality is carried over from an earlier
    outcome of a case that gave the same tokens (:mod:`cachemark.plans.reuse`), if ``carry``."""
    with nullcontext(executor) if executor else local(device, threads) as places:
        here, decisions = decide(plan, sink, device, threads, fresh=fresh, here=places.environment(device, threads), memory_cap=memory_cap)
        here, decisions = _rated(here, decisions, partial(places.rates, device, threads))
        with _run_of(plan, sink, here, decisions, watcher) as summary:
            todo = _with_caches([d if d.stored or not carry else _with_earlier(d, sink) for d in decisions], feature_caches)
            if fresh:
                _clear(todo)
            request = TrialRequest(plan.timeout, threads, plugins, memory_cap=memory_cap)
            wide = [d for d in todo if MAX_BATCH in d.planned.case.evaluation]
            plain = [d for d in todo if MAX_BATCH not in d.planned.case.evaluation]
            _run(_ended(plain, plan, request, watcher, places, deadline), plain, sink, summary)
            _run(_searched(wide, request, watcher, places, deadline), wide, sink, summary)
    return summary


def measure_largest(
    plan: Plan, sink: Sink, *, memory_cap: int, most: int = largest.MOST, device: str = "cpu", threads: int = 1,
    plugins: tuple[str, ...] = (), fresh: bool = False, watcher: RunWatcher = UNWATCHED, executor: Executor | None = None,
) -> Summary:
    """For every full cache and arm of a plan the largest batch that fits into ``memory_cap`` bytes (0: all that a GPU has), and throughput
    there and at the plan's batch. Each batch that is tried is a trial of its own. What no process could do is an outcome too."""
    asked = [largest.asked(p, memory_cap) for p in expand(plan, device) if p.case.role in ("baseline", "arm")]
    with nullcontext(executor) if executor else local(device, threads) as places:
        here, decisions = decide(plan, sink, device, threads, fresh=fresh, here=places.environment(device, threads), cases=asked,
                                 memory_cap=memory_cap)
        request = TrialRequest(plan.timeout, threads, plugins, memory_cap=memory_cap)
        with _run_of(plan, sink, here, decisions, watcher) as summary:
            todo = [d for d in decisions if not d.stored]
            _run(_searched(todo, request, watcher, places, most=most), todo, sink, summary)
    return summary


@contextmanager
def _run_of(plan: Plan, sink: Sink, here: Environment, decisions: list[Decision], watcher: RunWatcher) -> Iterator[Summary]:
    """A run of the sink, open as long as the block lasts, with what is stored already carried over."""
    summary = Summary(sink.begin_run(plan.name, plan.model_dump(mode="json"), here, code_identity()))
    watcher.planned(decisions)
    state = "interrupted"
    try:
        for decision in decisions:
            if decision.stored:
                sink.carry(summary.run_id, decision.key)
                summary.carried += 1
        yield summary
        state = "finished"
    except Exception:
        state = "failed"
        raise
    finally:
        sink.finish_run(summary.run_id, state)


def _searched(
    todo: list[Decision], request: TrialRequest, watcher: RunWatcher, places: Executor, deadline: Deadline | None = None,
    most: int = largest.MOST,
) -> Iterator[Finished]:
    """The largest batch of each case as it is found. A ``deadline`` is asked before each batch that is tried."""
    for planned in (decision.planned for decision in todo):
        watcher.started(planned.case)
        if planned.unsupported_reason:
            ended = Outcome(planned.case, Status.UNSUPPORTED, log=planned.unsupported_reason)
        else:
            attempt = partial(_attempt, places, replace(request, task=Task.PROBE), deadline, planned)
            found = largest.search(planned.case.batch, attempt, most)
            ended = largest.outcome(planned.case, found)
        shown = replace(ended, log=mask(ended.log), facts=masked(ended.facts))
        yield Finished(shown, {})
        watcher.ended(shown)


def _attempt(places: Executor, request: TrialRequest, deadline: Deadline | None, planned: Planned, batch: int) -> Outcome:
    one = largest.at(planned, batch)
    if late := deadline.admit(one) if deadline else "":
        return Outcome(one.case, Status.NOT_REACHED, log=late)
    (finished,) = places.run([[one]], request, lambda planned: None)
    if deadline:
        deadline.ended(one, finished.outcome)
    return finished.outcome


def make_share(
    plan: Plan, sink: Sink, share: tuple[int, int], feature_caches: Path, *, device: str = "cpu", threads: int = 1,
    plugins: tuple[str, ...] = (), watcher: RunWatcher = UNWATCHED, executor: Executor | None = None,
) -> list[Outcome]:
    """Make one of several shares of the quality images of every case that is not stored, so that several devices of one class can work
    at a plan; a run that finds their parts does the rest. Returns the outcomes of cases whose share could not be made."""
    with nullcontext(executor) if executor else local(device, threads) as places:
        _, decisions = decide(plan, sink, device, threads, here=places.environment(device, threads))
        wanted = [d for d in _with_caches(decisions, feature_caches)
                  if not d.planned.unsupported_reason and d.planned.case.measures(QUALITY_PASS)]
        watcher.planned(wanted)
        ended = _ended(wanted, plan, TrialRequest(plan.timeout, threads, plugins, Task.FEATURES, share), watcher, places)
        return [finished.outcome for finished in ended if finished.outcome.status is not Status.NOT_REACHED]


def _rated(
    here: Environment, decisions: list[Decision], rates: Callable[[Iterable[str]], Mapping[str, Rates]]
) -> tuple[Environment, list[Decision]]:
    """The environment and what is to be run, with the rates of the device by dtype; measured only where something is run."""
    dtypes = {d.planned.case.dtype for d in decisions if not d.stored}
    if not dtypes:
        return here, decisions
    found = rates(dtypes)
    given = [d if d.stored else replace(d, planned=replace(d.planned, rates=found.get(d.planned.case.dtype))) for d in decisions]
    return replace(here, facts={**here.facts, **stated(found)}), given


def _with_caches(decisions: list[Decision], feature_caches: Path | None) -> list[Decision]:
    """Decisions that are not stored, each with a folder of its own for the parts of its quality pass, named by all they depend on."""
    todo = [d for d in decisions if not d.stored]
    if feature_caches is None:
        return todo
    full = {d.planned.case.cell: feature_caches / d.key for d in decisions if d.planned.case.role == "baseline"}
    return [replace(d, planned=replace(d.planned, feature_cache=feature_caches / d.key, full_features=full.get(d.planned.case.cell)))
            for d in todo]


def _with_earlier(decision: Decision, sink: Sink) -> Decision:
    """The decision with the figures of an earlier outcome of the case, where it has a quality pass; a later failure takes nothing away."""
    planned = decision.planned
    if planned.unsupported_reason or not planned.case.measures(QUALITY_PASS):
        return decision
    return replace(decision, planned=replace(planned, reusable=Earlier.of(sink.latest_for_case(planned.case.key, ok=True), decision.parts)))


def _clear(todo: list[Decision]) -> None:
    """Empty the feature caches of earlier runs, except where an earlier outcome may be reused."""
    for decision in todo:
        if decision.planned.feature_cache is not None and decision.planned.reusable is None:
            shutil.rmtree(decision.planned.feature_cache, ignore_errors=True)


def _run(ended: Iterator[Finished], todo: list[Decision], sink: Sink, summary: Summary) -> None:
    by_case = {decision.planned.case.key: decision for decision in todo}
    for finished in ended:
        _keep(finished, by_case[finished.outcome.case.key], sink, summary)


def _keep(finished: Finished, decision: Decision, sink: Sink, summary: Summary) -> None:
    facts = {**finished.outcome.facts, "skip_parts": dict(decision.parts)}
    outcome = replace(finished.outcome, skip_key=decision.key, facts=facts)
    sink.save(summary.run_id, outcome, finished.artifacts, trial=summary.trial(finished.process))
    summary.ran.append(outcome)


def _ended(
    todo: list[Decision], plan: Plan, request: TrialRequest, watcher: RunWatcher, places: Executor, deadline: Deadline | None = None
) -> Iterator[Finished]:
    """Every case as it ends, trial by trial, secrets masked. The watcher hears of it once the caller has done with it."""
    planned = {d.planned.case.key: d.planned for d in todo}
    groups = (breadth_first if deadline else _groups)([*planned.values()], plan.trial)
    for finished in places.run(groups, request, lambda begun: watcher.started(begun.case), deadline.admit if deadline else always):
        if deadline:
            deadline.ended(planned[finished.outcome.case.key], finished.outcome)
        shown = replace(finished.outcome, log=mask(finished.outcome.log), facts=masked(finished.outcome.facts))
        yield finished._replace(outcome=shown)
        watcher.ended(shown)


def _groups(planned: list[Planned], trial: str) -> list[list[Planned]]:
    """Cases that share a process: those of one model, weights, dtype and codec-independent request; or each alone."""
    if trial == "case":
        return [[p] for p in planned]
    return [list(group) for _, group in groupby(planned, key=lambda p: (p.case.model, p.request))]
