"""The batches and budgets at which a method is faster than the full cache, for models that a run has at several batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...core.spec import OWN, digest, shown_share
from .. import formatting as fmt
from .case_group import CaseGroup
from .report_row import ReportRow, share_of_full


@dataclass(frozen=True)
class RegimeSpot:
    """A method at one batch and budget."""

    batch: int
    budget: str
    row: ReportRow

    @property
    def gain(self) -> float | None:
        """The speed-up, or None where there is none."""
        return self.row.speed_up.value if self.row.speed_up else None

    @property
    def pays(self) -> bool:
        """True where the whole interval of the speed-up lies above 1."""
        return self.row.speed_up is not None and self.row.speed_up.low > 1


@dataclass(frozen=True)
class Regime:
    """A method on a model at all batches and budgets, and in a sentence those at which it does not pay."""

    model: str
    method: str
    spots: tuple[RegimeSpot, ...]
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
    spots = [RegimeSpot(part.case.batch, row.case.budget, row) for part in groups for row in part.arms if row.method == name and row.ok]
    measured = [spot for spot in spots if spot.gain is not None]
    if not measured:
        return None
    return Regime(groups[0].model, name, tuple(spots), _sentence(name, measured))


def _sentence(name: str, spots: Sequence[RegimeSpot]) -> str:
    """By batch: at which budgets the full cache is the better choice."""
    lost: dict[int, list[str]] = {}
    for spot in sorted(spots, key=lambda s: (s.batch, -share_of_full(s.budget))):
        if not spot.pays:
            lost.setdefault(spot.batch, []).append(shown_share(spot.budget))
    if not lost:
        return f"{fmt.name(name)} is faster than the full cache at every batch and budget measured here."
    every = {batch: len({s.budget for s in spots if s.batch == batch}) for batch in lost}
    where = [f"at batch {batch}" + ("" if len(budgets) == every[batch] else f" (budget {_list(budgets)})")
             for batch, budgets in lost.items()]
    return f"Use the full cache {_list(where)}: {fmt.name(name)} is not shown to be faster there."


def _list(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
