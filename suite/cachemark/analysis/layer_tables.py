"""Heat tables of the full cache.

Next-scale: similarity and attention by layer, for choosing AMS-KV's threshold. Masked: similarity between steps, i.e. what a cache may
reuse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .report_row import ReportRow

PASSES = 24  # columns of a table at most; of more passes, evenly spread ones are shown
_WHAT = {"k": "Keys", "v": "Values", "feature": "Features"}


@dataclass(frozen=True)
class HeatTable:
    """Row per layer or token class, column per scale or step; a cell is its text and tint (0 to 1), or None."""

    title: str
    meaning: str
    corner: str
    names: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[tuple[str, float] | None, ...], ...]


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
        by_scale = "scales" in profile
        grids = tuple(_of_scales(profile) if by_scale else _of_passes(profile))
        title = "Layers" if by_scale else "From pass to pass"
        return Layers(title, grids, int(profile["samples"]), str(profile["seeds"]), float(profile["seconds"]))
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, ZeroDivisionError):
        return None


def _of_scales(profile: Any) -> Iterable[HeatTable]:
    sides, similarity = [int(side) for side in profile["scales"]], profile["similarity"]
    names = [f"{side} × {side}" for side in sides]
    least = min(float(s) for layer in similarity for s in layer)
    yield _table(
        "Inter-scale similarity of the keys", "S of AMS-KV, 0 where a scale's keys repeat those before it; the darker, the less "
        "alike. A layer whose S falls below theta where its cache overflows is demanding.", "Layer", names[1:],
        dict(enumerate(similarity)), "{:.4f}", lambda s: s / least if least else 0.0)
    tokens = sum(side**2 for side in sides)
    density = [[share / side**2 * tokens for share, side in zip(layer[-1], sides, strict=True)] for layer in profile["mass"]]
    most = max(max(layer) for layer in density)
    yield _table(
        "Attention density of the last scale's queries", "Share of their attention per key of each scale, 1 = evenly spread over "
        "all keys; the darker, the denser.", "Layer", names, dict(enumerate(density)), "{:.2f}",
        lambda d: math.log1p(d) / math.log1p(most))


def _of_passes(profile: Any) -> Iterable[HeatTable]:
    passes = [int(p) for p in profile["passes"]]
    picked = sorted({round(i * (len(passes) - 1) / (PASSES - 1)) for i in range(PASSES)})
    classes = {f"{title}, {name}": lines[what] for what, title in _WHAT.items() for name, lines in profile["classes"].items()}
    blocks = {f"{title}, {i}": line for what, title in _WHAT.items() for i, line in enumerate(profile["layers"][what])}
    for title, meaning, corner, lines in (
        ("By class of token", "Cosine similarity to the pass before, all decoder layers. Caching: predicted in the pass before; "
         "generating: predicted in this one.", "Class", classes),
        ("By layer", "The same over all tokens.", "Layer", blocks),
        ("By branch of the guidance", "The same of the decoder's output, and of the difference between its branches.", "Branch",
         profile["branches"]),
    ):
        shown = {name: [line[i] for i in picked] for name, line in lines.items()}
        span = 1 - min((s for line in shown.values() for s in line if s is not None), default=1.0) or 1.0
        columns = [str(passes[i]) for i in picked]
        yield _table(title, f"{meaning} The darker, the less alike.", corner, columns, shown, "{:.3f}", partial(_distance, span))


def _distance(span: float, similarity: float) -> float:
    return (1 - similarity) / span


def _table(
    title: str, meaning: str, corner: str, columns: Sequence[str], lines: Mapping[Any, Sequence[float | None]], text: str,
    tint: Callable[[float], float],
) -> HeatTable:
    if not lines or any(len(line) != len(columns) for line in lines.values()):
        raise ValueError("no table")
    if not all(math.isfinite(value) for line in lines.values() for value in line if value is not None):
        raise ValueError("not finite")
    rows = (tuple(None if value is None else (text.format(value), tint(value)) for value in line) for line in lines.values())
    return HeatTable(title, meaning, corner, tuple(map(str, lines)), tuple(columns), tuple(rows))
