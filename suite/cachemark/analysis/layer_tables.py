"""Heat tables of the full cache.

Next-scale: similarity and attention by layer, for choosing AMS-KV's threshold. Masked: similarity between steps, i.e. what a cache may
reuse.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .report_row import ReportRow

PASSES = 24  # columns of a table at most; of more passes, evenly spread ones are shown
_WHAT = {"k": "Keys", "v": "Values", "feature": "Features"}


@dataclass(frozen=True)
class Heat:
    """Number as text, and the tint of its cell, 0 to 1."""

    text: str
    tint: float


@dataclass(frozen=True)
class HeatTable:
    """Row per layer or token class, column per scale or step."""

    title: str
    meaning: str
    corner: str
    names: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[Heat | None, ...], ...]


@dataclass(frozen=True)
class Layers:
    """Tables, number of samples, and seconds of profiling outside the timed region."""

    title: str
    grids: tuple[HeatTable, ...]
    samples: int
    seeds: str
    seconds: float


def layers(full: ReportRow | None) -> Layers | None:
    """Return the tables of a full cache, None without a valid profile."""
    facts: Any = full.outcome.facts if full else {}
    profile: Any = facts.get("layers") or facts.get("redundancy")
    try:
        if "scales" in profile:
            sides = [int(side) for side in profile["scales"]]
            title, grids = "Layers", [_similarity(profile["similarity"], sides), _density(profile["mass"], sides)]
        else:
            title, grids = "From pass to pass", _redundancy(profile)
        return Layers(title, tuple(grids), int(profile["samples"]), str(profile["seeds"]), float(profile["seconds"]))
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, ZeroDivisionError):
        return None


def _similarity(table: Sequence[Sequence[float]], sides: Sequence[int]) -> HeatTable:
    least = min(float(s) for layer in table for s in layer)
    rows = [[Heat(f"{_finite(s):.4f}", float(s) / least if least else 0.0) for s in layer] for layer in table]
    return _by_layer(
        "Inter-scale similarity of the keys", "S of AMS-KV, 0 where a scale's keys repeat those before it; the darker, the less "
        "alike. A layer whose S falls below theta where its cache overflows is demanding.", sides[1:], rows)


def _density(mass: Sequence[Sequence[Sequence[float]]], sides: Sequence[int]) -> HeatTable:
    tokens = sum(side**2 for side in sides)
    spread = [[_finite(share) / side**2 * tokens for share, side in zip(layer[-1], sides, strict=True)] for layer in mass]
    most = max(max(layer) for layer in spread)
    rows = [[Heat(f"{d:.2f}", math.log1p(d) / math.log1p(most)) for d in layer] for layer in spread]
    return _by_layer(
        "Attention density of the last scale's queries", "Share of their attention per key of each scale, 1 = evenly spread over "
        "all keys; the darker, the denser.", sides, rows)


def _redundancy(profile: Any) -> list[HeatTable]:
    passes = [int(p) for p in profile["passes"]]
    picked = sorted({round(i * (len(passes) - 1) / (PASSES - 1)) for i in range(PASSES)})
    classes = {f"{title}, {name}": lines[what] for what, title in _WHAT.items() for name, lines in profile["classes"].items()}
    blocks = {f"{title}, {i}": line for what, title in _WHAT.items() for i, line in enumerate(profile["layers"][what])}
    tables = (
        ("By class of token", "Cosine similarity to the pass before, all decoder layers. Caching: predicted in the pass before; "
         "generating: predicted in this one.", "Class", classes),
        ("By layer", "The same over all tokens.", "Layer", blocks),
        ("By branch of the guidance", "The same of the decoder's output, and of the difference between its branches.", "Branch",
         profile["branches"]),
    )
    return [_alike(title, meaning, corner, lines, passes, picked) for title, meaning, corner, lines in tables]


def _alike(
    title: str, meaning: str, corner: str, lines: dict[str, list[float | None]], passes: list[int], picked_passes: list[int],
) -> HeatTable:
    picked = {name: [line[i] for i in picked_passes] for name, line in lines.items()}
    least = min((_finite(s) for line in picked.values() for s in line if s is not None), default=1.0)
    span = 1 - least or 1.0
    rows = [[None if s is None else Heat(f"{s:.3f}", (1 - s) / span) for s in line] for line in picked.values()]
    return _table(title, f"{meaning} The darker, the less alike.", corner, picked, [str(passes[i]) for i in picked_passes], rows)


def _by_layer(title: str, meaning: str, sides: Sequence[int], rows: Sequence[Sequence[Heat | None]]) -> HeatTable:
    return _table(title, meaning, "Layer", map(str, range(len(rows))), [f"{side} × {side}" for side in sides], rows)


def _table(
    title: str, meaning: str, corner: str, names: Iterable[str], columns: Sequence[str], rows: Sequence[Sequence[Heat | None]],
) -> HeatTable:
    if not rows or any(len(row) != len(columns) for row in rows):
        raise ValueError("no table")
    return HeatTable(title, meaning, corner, tuple(names), tuple(columns), tuple(map(tuple, rows)))


def _finite(value: Any) -> float:
    if not math.isfinite(number := float(value)):
        raise ValueError(value)
    return number
