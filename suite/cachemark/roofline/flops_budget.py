"""Budgets of methods that save computation: fractions of an image's FLOPs."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from ..contract.planning import largest
from ..core.errors import BadBudget


def as_budget(share: Fraction) -> Fraction:
    """Return a share of the FLOPs as a budget, rounded up to a ten-thousandth."""
    return Fraction(math.ceil(share * 10**4), 10**4)


def largest_within(name: str, share: Callable[[int], Fraction], most: int, budget: Fraction) -> int:
    """Return the largest i of 0 … ``most`` with ``share(i)`` ≤ ``budget``. Raises BadBudget.

    ``share(i)`` must grow with i.
    """
    if (least := share(0)) > budget:
        raise BadBudget(f"{name}: it computes at least {float(least):.5g} of the FLOPs of an image, more than {budget}.",
                        remedy="Raise the budget, or give its parameters.")
    return largest(0, most, lambda i: share(i) <= budget)
