"""The cases of a plan that are stored already and those that must be run, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core.result import CONDENSED, Environment
from ..plans.expand import Planned
from ..plans.reuse import result_key, result_parts
from ..store.db import Store
from . import largest_batch as largest


@dataclass(frozen=True)
class Decision:
    """A case, whether it is ``stored`` already, and its result key with the parts it is made of."""

    planned: Planned
    key: str
    parts: Mapping[str, str]
    stored: bool


def decide(
    cases: Sequence[Planned], store: Store | None, here: Environment, *, fresh: bool = False, memory_cap: int = 0,
) -> list[Decision]:
    """Every case with its result key where trials run ``here``; ``stored`` where an outcome with that key is kept and ``fresh`` is not set,
    but for a search that a deadline ended. What fitted without ``memory_cap`` need not fit under it, so it is one of the parts."""
    decisions = []
    for planned in cases:
        parts = result_parts(planned.case, here) | ({"memory_cap": str(memory_cap)} if memory_cap else {})
        key = result_key(parts)
        found = None if fresh or store is None else store.find(key)
        planned = replace(planned, result_key=key, result_parts=parts)
        decisions.append(Decision(planned, key, parts, found is not None and not largest.unfinished(found)))
    return decisions


def reason(decision: Decision, store: Store | None) -> str:
    """The reason why a case would run, or why not; and that it cannot, where that is known beforehand."""
    if decision.stored:
        return "done: same case, code, metric definitions and numerics"
    refused = decision.planned.unsupported_reason
    return _why_run(decision, store) + (f"; it will be unsupported: {refused}" if refused else "")


def _why_run(decision: Decision, store: Store | None) -> str:
    """The reason why the store does not hold a case already."""
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
    if CONDENSED in latest.facts:
        return "its raw values were pruned"
    return "last time a deadline ended its search" if largest.unfinished(latest) else "asked to run afresh"


def _fields(differences: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{name} ({then!r} → {now!r})" for name, (then, now) in list(differences.items())[:3])
