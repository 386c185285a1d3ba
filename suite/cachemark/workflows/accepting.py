"""Accepted results of a store: saved, promoted, begun anew after an upgrade, and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ..gate import baselines
from ..gate.baselines import CaseDifference, ListedBaseline
from ..store.db import Store
from .stores import DEFAULT_STORE, reading


def accept(
    how: Literal["save", "promote", "rebase"], store: str | Path = DEFAULT_STORE, *, run: int | None = None,
    root: Path = baselines.ROOT, name: str | None = None, reason: str = "", days: int = baselines.DAYS,
) -> Path:
    """Make a finished run (None: the newest) an accepted baseline below ``root`` and return its file. ``save`` writes a new one,
    ``promote`` replaces one of the same environment, ``rebase`` one of another and begins a new epoch. It judges for ``days``, 0: for
    ever. Raises BadBaseline."""
    with Store.open(store, create=False) as target:
        if how == "save":
            return baselines.save(target, run, root, name, reason=reason, days=days)
        return baselines.promote(target, run, root, name, reason=reason, days=days, upgraded=how == "rebase")


def accepted(root: Path = baselines.ROOT) -> list[ListedBaseline]:
    """Every baseline below ``root``."""
    return baselines.list_(root)


def difference(baseline: Path, store: str | Path = DEFAULT_STORE, *, run: int | None = None) -> list[CaseDifference]:
    """Differences between a baseline and a run, case by case, not judged."""
    with reading(store) as source:
        return baselines.diff(baselines.load(baseline), source.outcomes(source.run(run).id))
