"""The batches and budgets at which a method is faster than the full cache, for models that a run has at several batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...core.spec import OWN, Case, digest, shown_share
from .. import formatting as fmt
from .case_group import CaseGroup
from .report_row import ReportRow, share_of_full


@dataclass(frozen=True)
class Regime:
    """A method on a model at all batches and budgets, and in a sentence those at which it does not pay."""

    model: str
    method: str
    rows: tuple[ReportRow, ...]
    sentence: str


def regimes(parts: Iterable[CaseGroup]) -> tuple[Regime, ...]:
    """One for each method of every model that was measured at two batches or more, all else being equal."""
    families: dict[str, list[CaseGroup]] = {}
    for part in (part for part in parts if not part.searched):
        families.setdefault(_but_the_batch(part), []).append(part)
    found = []
    for groups in families.values():
        batches = {part.case.batch for part in groups}
        if len(batches) > 1:
            found += [_regime(groups, name) for name in dict.fromkeys(name for part in groups for name in part.methods)]
    return tuple(regime for regime in found if regime is not None)


def _but_the_batch(part: CaseGroup) -> str:
    data = part.case.to_json()
    return digest({name: value for name, value in data.items() if name not in (*OWN, "batch", "samples", "evaluation")})


def _regime(groups: Sequence[CaseGroup], name: str) -> Regime | None:
    rows = tuple(row for part in groups for row in part.arms if row.method == name and row.ok)
    measured = [row.case for row in rows if row.speed_up is not None]
    if not measured:
        return None
    lost = [row.case for row in rows if row.speed_up is not None and row.speed_up.low <= 1]
    return Regime(groups[0].model, name, rows, _sentence(name, measured, lost))


def _sentence(name: str, measured: Sequence[Case], slow: Sequence[Case]) -> str:
    """By batch: at which budgets the full cache is the better choice, being where a method is not shown to be faster (``slow``)."""
    lost: dict[int, list[str]] = {}
    for case in sorted(slow, key=lambda case: (case.batch, -share_of_full(case.budget))):
        lost.setdefault(case.batch, []).append(shown_share(case.budget))
    if not lost:
        return f"{fmt.name(name)} is faster than the full cache at every batch and budget measured here."
    every = {batch: len({case.budget for case in measured if case.batch == batch}) for batch in lost}
    where = [f"at batch {batch}" + ("" if len(budgets) == every[batch] else f" (budget {_list(budgets)})")
             for batch, budgets in lost.items()]
    return f"Use the full cache {_list(where)}: {fmt.name(name)} is not shown to be faster there."


def _list(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
