"""Which cases of a plan are stored already and which must run, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.result import Environment
from ..core.spec import Case
from ..machine.environment import environment
from ..plans.expand import Planned
from ..plans.reuse import result_key, result_parts
from ..plans.schema import Plan
from ..store.db import Store
from . import max_batch
from .session import DEFAULT_STORE, Machine, checked, opened


@dataclass(frozen=True)
class Decision:
    """A case, whether it is ``stored`` already, and its result key with the parts it is made of."""

    planned: Planned
    key: str
    parts: Mapping[str, str]
    stored: bool


@dataclass(frozen=True)
class Explanation:
    """The reason why a case would run, or why not (``stored``)."""

    case: Case
    stored: bool
    reason: str


def explain(
    plan: Plan | str | Path, store: str | Path = DEFAULT_STORE, *, machine: Machine | str = "cpu", plugins: Sequence[str | Path] = (),
    methods: Sequence[str] = (), fresh: bool = False,
) -> list[Explanation]:
    """Return for each case of a plan the reason why it would run, or why not; nothing is run."""
    machine, _, _, cases = checked(plan, machine, plugins, methods)
    here = environment(machine.device, machine.threads)
    with opened(store) as source:
        decisions = decide(max_batch.limited(cases, machine.memory_cap), source, here, fresh=fresh, memory_cap=machine.memory_cap)
        return [Explanation(d.planned.case, d.stored, reason(d, source)) for d in decisions]


def decide(
    cases: Sequence[Planned], store: Store | None, here: Environment, *, fresh: bool = False, memory_cap: int = 0,
) -> list[Decision]:
    """Return every case with its result key, and whether the store has an outcome with that key.

    With ``fresh`` none counts as stored, and never a search that a deadline ended. ``memory_cap`` is a part of the key, since what fitted
    without it need not fit under it.
    """
    decisions = []
    for planned in cases:
        parts = result_parts(planned.case, here) | ({"memory_cap": str(memory_cap)} if memory_cap else {})
        key = result_key(parts)
        outcome = None if fresh or store is None else store.find(key)
        planned = replace(planned, result_key=key, result_parts=parts)
        decisions.append(Decision(planned, key, parts, outcome is not None and not max_batch.unfinished(outcome)))
    return decisions


def reason(decision: Decision, store: Store | None) -> str:
    """Return why a case would run, or why not, and whether it is known to be unsupported."""
    if decision.stored:
        return "done: same case, code, metric definitions and numerics"
    refused = decision.planned.unsupported_reason
    return _why_run(decision, store) + (f"; it will be unsupported: {refused}" if refused else "")


def _why_run(decision: Decision, store: Store | None) -> str:
    if store is None:
        return "nothing is stored yet"
    latest = store.latest_for_case(decision.planned.case.key)
    if latest is None:
        near = store.nearest(decision.planned.case, 1)
        return f"no such case; the nearest stored one differs in {_fields(near[0][1])}" if near else "no such case"
    if not latest.ok:
        return f"last time it ended as {latest.status}"
    then: dict[str, Any] = dict(latest.facts.get("result_parts", {}))
    if changed := [name for name in {**decision.parts, **then} if then.get(name) != decision.parts.get(name)]:
        return f"changed since: {', '.join(changed)}"
    return "last time a deadline ended its search" if max_batch.unfinished(latest) else "--fresh"


def _fields(differences: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{name} ({then!r} → {now!r})" for name, (then, now) in list(differences.items())[:3])
