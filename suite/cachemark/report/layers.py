"""What the layers of a next-scale model look at, as tables: from it a user chooses AMS-KV's threshold for a new model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .row import Row


@dataclass(frozen=True)
class Heat:
    """A number, how it is written, and how strongly its cell is tinted, 0 to 1."""

    value: float
    text: str
    tint: float


@dataclass(frozen=True)
class Grid:
    """One line per layer, one column per scale."""

    title: str
    meaning: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Heat, ...], ...]


@dataclass(frozen=True)
class Layers:
    """Both tables, the samples behind them, and the seconds that profiling took outside the timed region."""

    grids: tuple[Grid, ...]
    samples: int
    seeds: str
    seconds: float


def layers(full: Row | None) -> Layers | None:
    """The tables of a section's full cache, or None where it was not profiled or what is stored is no profile."""
    found: Any = full.outcome.facts.get("layers") if full else None
    try:
        sides = [int(side) for side in found["scales"]]
        grids = _similarity(found["similarity"], sides), _density(found["mass"], sides)
        return Layers(grids, int(found["samples"]), str(found["seeds"]), float(found["seconds"]))
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError):
        return None


def _similarity(table: Sequence[Sequence[float]], sides: Sequence[int]) -> Grid:
    least = min(float(s) for layer in table for s in layer)
    rows = [[Heat(_finite(s), f"{float(s):.4f}", float(s) / least if least else 0.0) for s in layer] for layer in table]
    _check(rows, len(sides) - 1)
    return Grid("Inter-scale similarity of the keys", "S of AMS-KV, 0 where a scale's keys repeat those before it; the darker, the less "
                "alike. A layer whose S falls below theta where its cache overflows is demanding.", _names(sides[1:]), _frozen(rows))


def _density(mass: Sequence[Sequence[Sequence[float]]], sides: Sequence[int]) -> Grid:
    tokens = sum(side**2 for side in sides)
    spread = [[_finite(share) / side**2 * tokens for share, side in zip(layer[-1], sides, strict=True)] for layer in mass]
    most = max(max(layer) for layer in spread)
    rows = [[Heat(d, f"{d:.2f}", math.log1p(d) / math.log1p(most)) for d in layer] for layer in spread]
    _check(rows, len(sides))
    return Grid("Attention density of the last scale's queries", "Share of their attention per key of each scale, 1 = evenly spread over "
                "all keys; the darker, the denser.", _names(sides), _frozen(rows))


def _finite(value: Any) -> float:
    if not math.isfinite(number := float(value)):
        raise ValueError(value)
    return number


def _check(rows: Sequence[Sequence[Heat]], columns: int) -> None:
    if not rows or any(len(row) != columns for row in rows):
        raise ValueError("no table")


def _names(sides: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"{side} × {side}" for side in sides)


def _frozen(rows: Sequence[Sequence[Heat]]) -> tuple[tuple[Heat, ...], ...]:
    return tuple(tuple(row) for row in rows)
