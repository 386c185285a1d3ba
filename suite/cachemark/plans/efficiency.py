"""Measured time of a batch against its roofline time, by family, engine and batch.

``data/efficiency.json`` has the full caches and methods of the accepted baselines of GPUs (``python -m tools.cards docs --costs``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..core.files import PACKAGE

# A method may be this many times as far from its roofline time as the full cache: LineAR at 1/6 on an H200, see docs/results/gpu.md.
FARTHER = 2.0
ON_CPU = (1.0, 1.5, 3.0)  # of the roofline time with calls, estimated on a few processors
UNMEASURED = (1.0, 1.5, 5.0)  # of the roofline time where no GPU was measured


@dataclass(frozen=True)
class Efficiency:
    """Multiples of the roofline time: the ``least`` one measured, a ``typical`` and a likely ``most``.

    ``launch``: seconds per kernel that the engine adds; ``basis`` names the measurements.
    """

    least: float
    typical: float
    most: float
    launch: float = 0.0
    basis: str = ""

    def span(self, bound: float, launches: float = 0.0) -> tuple[float, float, float]:
        """Return least, typical and likely most seconds of a batch with this roofline and kernels."""
        least, typical, most = (times * bound + launches * self.launch for times in (self.least, self.typical, self.most))
        return least, typical, most


@cache
def _measured() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((PACKAGE / "data" / "efficiency.json").read_text(encoding="utf-8"))
    return rows


def efficiency(paradigm: str, device: str, engine: str, batch: int) -> Efficiency:
    """Return the efficiency of a family at the nearest measured batch, by device and engine."""
    if device == "cpu":
        return Efficiency(*ON_CPU, basis="estimate for CPUs")
    launches = [row for row in _measured() if "launch" in row]
    launch = sum(row["launch"] for row in launches) / len(launches) if engine != "graph" else 0.0
    alike = [row for row in _measured() if row["paradigm"] == paradigm and "times" in row]
    if not alike:
        return Efficiency(*UNMEASURED, launch, f"no {paradigm} model was measured")

    def distance(row: dict[str, Any]) -> float:
        return max(row["batch"] / batch, batch / row["batch"])

    near = [row for row in alike if distance(row) == min(map(distance, alike))]
    used = [*near, *(launches if launch else ())]
    full, times = ([row["times"] for row in near if row["method"] == "full"], [row["times"] for row in near])
    return Efficiency(min(times), sum(full) / len(full), max(*times, FARTHER * max(full)), launch, _named(used))


def _named(rows: Sequence[dict[str, Any]]) -> str:
    return "; ".join(dict.fromkeys(f"{row['model']}, {row['engine']}, batch {row['batch']} on {row['device']}" for row in rows))
