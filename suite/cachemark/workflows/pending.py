"""The cases of a plan that must run, with reasons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..core.result import Environment
from ..machine.environment import NUMERICS, OF_CPU, environment
from ..plans.planned import Planned, Prepared
from ..plans.reuse import result_key, result_parts
from ..plans.schema import Plan
from ..store.db import Store
from . import max_batch
from .known_seeds import with_known_seeds
from .session import DEFAULT_STORE, Machine, checked, opened

DONE = "done: same case, code, metric definitions and numerics"
ABSENT = "this computer has no CUDA device, so its stored results cannot be matched"


def explain(
    plan: Plan | str | Path, store: str | Path = DEFAULT_STORE, *, machine: Machine | str = "cpu", plugins: Sequence[str | Path] = (),
    methods: Sequence[str] = (), fresh: bool = False,
) -> list[tuple[Prepared, str]]:
    """Return each case of a plan, with the reason why it would run, or why not; nothing is run.

    The device need not be here: every case then counts as one to run.
    """
    machine, _, _, planned_cases = checked(plan, machine, plugins, methods, present=False)
    planned_cases = max_batch.limited(planned_cases, machine.memory_cap)
    if not machine.present:
        return [(Prepared.of(planned), _with_refusal(ABSENT, planned)) for planned in planned_cases]
    here = environment(machine.device, machine.threads)
    with opened(store) as source:
        cases = decide(planned_cases, source, here, fresh=fresh, memory_cap=machine.memory_cap)
        if source is not None and not fresh:
            cases = with_known_seeds(cases, source, here, machine.memory_cap)
        return [(planned, DONE if planned.stored else _why_run(planned, source, here)) for planned in cases]


def decide(
    cases: Sequence[Planned], store: Store | None, here: Environment, *, fresh: bool = False, memory_cap: int = 0,
) -> list[Prepared]:
    """Return every case with its result key, and whether the store has an outcome with that key.

    With ``fresh`` none counts as stored, and never a search that a deadline ended. ``memory_cap`` is a part of the key, since what fitted
    without it need not fit under it.
    """
    decided = []
    for planned in cases:
        parts = result_parts(planned.case, here) | ({"memory_cap": str(memory_cap)} if memory_cap else {})
        key = result_key(parts)
        outcome = None if fresh or store is None else store.find(key)
        stored = outcome is not None and not max_batch.unfinished(outcome)
        decided.append(Prepared.of(planned, result_key=key, result_parts=parts, stored=stored))
    return decided


def _why_run(planned: Prepared, store: Store | None, here: Environment) -> str:
    return _with_refusal(_why_missing(planned, store, here), planned)


def _with_refusal(reason: str, planned: Planned) -> str:
    refused = planned.unsupported_reason
    return reason + (f"; it will be unsupported: {refused}" if refused else "")


def _why_missing(planned: Prepared, store: Store | None, here: Environment) -> str:
    if store is None:
        return "nothing is stored yet"
    latest = store.latest_for_case(planned.case.key)
    if latest is None:
        if planned.known and (taken := planned.known.among(planned.case)):
            return f"{taken} of its {planned.case.compared} samples are stored; the others are generated and the case is timed again"
        differing = [f"{name} ({then!r} → {now!r})" for name, (then, now) in store.nearest(planned.case).items()]
        return f"no such case; the nearest stored one differs in {', '.join(differing[:3])}" if differing else "no such case"
    if not latest.ok:
        return f"last time it ended as {latest.status}"
    then = latest.facts.result_parts or {}
    now = planned.result_parts
    if changed := [name for name in {**now, **then} if then.get(name) != now.get(name)]:
        parts = (f"{name}{_numerics(store.latest_environment(planned.case.key), here)}" if name == "numerics" else name for name in changed)
        return f"changed since: {', '.join(parts)}"
    return "last time a deadline ended its search" if max_batch.unfinished(latest) else "--fresh"


def _numerics(then: Environment | None, now: Environment) -> str:
    """Return in brackets which facts of the numerics differ."""
    if then is None:
        return ""
    names = ("device", "driver", *NUMERICS, *OF_CPU)
    differing = [f"{name} {then.facts.get(name)} → {now.facts.get(name)}" for name in names if then.facts.get(name) != now.facts.get(name)]
    return f" ({', '.join(differing) or 'instruction sets of the CPU'})"
