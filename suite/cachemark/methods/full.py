"""The full cache: every entry kept, attention on the live ones only. The baseline of every figure."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from .. import registry
from ..cache.geometry import Layout
from ..cache.method import Method
from ..errors import BadBudget


@registry.methods.add("full")
@dataclass
class Full(Method):
    """Keeps everything. The fastest plain cache we can write: preallocated, no mask, no padding, no concatenation."""

    name: ClassVar[str] = "full"
    source: ClassVar[str] = "the baseline"

    @classmethod
    def knobs_for(cls, budget: Fraction, layout: Layout) -> dict[str, Any]:
        if budget < 1:
            raise BadBudget(f"full: it keeps everything and cannot meet a budget of {budget}.", remedy="Its budget is 1.")
        return {}
