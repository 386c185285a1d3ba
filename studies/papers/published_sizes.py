"""Sizes of keys and values that papers print, and the units that they print them in."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PAPER_UNIT = 1000 * 2**20  # AMS-KV's "GB"
UNITS = {"MiB": 2**20, "1000 MiB": PAPER_UNIT, "GiB": 2**30}  # papers' "MB" and "GB"
MIXED = (4, 2)  # bytes of K and V in published code of VAR and Infinity under autocast: its K is normalised, hence cached, in fp32
HALF = (2, 2)  # both in 16 bit


@dataclass(frozen=True)
class PublishedSize:
    """A published size of a KV cache, as its paper prints it.

    ``unit`` is the printed one; ``means`` is the one of ``UNITS`` that reproduces the full caches of the table. ``batch`` 0: none is
    printed. ``budget``: the paper's name of the budget; ``parameters``: our method's equivalent parameters; both empty if not needed.
    ``inferred``: parameters that are stated nowhere and inferred from this size."""

    paper: str
    table: str
    model: str
    batch: int
    method: str
    printed: str
    unit: str
    means: str
    budget: str = ""
    parameters: Mapping[str, int] = field(default_factory=dict)
    inferred: bool = False

    @property
    def nbytes(self) -> float:
        """The printed size in bytes."""
        return float(self.printed) * UNITS[self.means]

    @property
    def interval(self) -> float:
        """Return the range of sizes in bytes that give the printed digits.

        From half of the last digit below to a whole one above."""
        return 1.5 * 10.0 ** -self._digits * UNITS[self.means]

    @property
    def _digits(self) -> int:
        """Digits after the decimal point."""
        return len(self.printed.partition(".")[2])

    def in_unit(self, size: float) -> float:
        """Convert ``size`` in bytes to the unit of the printed size."""
        return size / UNITS[self.means]

    def agrees(self, size: int) -> bool:
        """Return whether ``size`` in bytes gives the printed digits, rounded or truncated."""
        scaled = self.in_unit(size) * 10**self._digits
        return self.printed in {f"{rounded / 10**self._digits:.{self._digits}f}" for rounded in (round(scaled), math.floor(scaled))}


def published(model: str) -> list[PublishedSize]:
    """Return the sizes that papers print for a model."""
    text = Path(__file__).with_name("kv_cache.json").read_text(encoding="utf-8")
    return [size for row in json.loads(text)["kv_cache"] if (size := PublishedSize(**row)).model == model]
