"""Budgets of methods that save computation: fractions of an image's FLOPs."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache

from ..cache.layout import Layout
from ..cache.masked_layout import MaskedLayout
from ..contract.method import Bidirectional, Method
from ..contract.planning import largest
from ..core.errors import BadBudget
from . import masked_flops, scale_flops


def work(method: Method, layout: Layout) -> dict[str, int]:
    """Return the FLOPs of one image by part; see :mod:`~.masked_flops` and :mod:`~.scale_flops`."""
    return masked_flops.work(method, layout) if isinstance(layout, MaskedLayout) else scale_flops.work(method, layout)


def image_flops(method: Method, layout: Layout) -> int:
    """Return the FLOPs of one image."""
    return sum(work(method, layout).values())


def share(method: Method, layout: Layout) -> Fraction:
    """Return the FLOPs of an image as a fraction of the full cache's, or of no cache's if masked."""
    return Fraction(image_flops(method, layout), _full(layout))


@cache
def _full(layout: Layout) -> int:
    return image_flops(Bidirectional() if isinstance(layout, MaskedLayout) else Method(), layout)


def budget_of(method: Method, layout: Layout) -> Fraction:
    """Return :func:`share` as a budget, rounded up to a ten-thousandth."""
    return Fraction(math.ceil(share(method, layout) * 10**4), 10**4)


def fitted(name: str, build: Callable[[int], Method], most: int, budget: Fraction, layout: Layout) -> int:
    """Return the largest i of 0 … ``most`` such that ``build(i)`` is within ``budget``. Raises BadBudget.

    The FLOPs of ``build(i)`` must grow with i.
    """
    if (least := share(build(0), layout)) > budget:
        raise BadBudget(f"{name}: it computes at least {float(least):.5g} of the FLOPs of an image, more than {budget}.",
                        remedy="Raise the budget, or give its parameters.")
    return largest(0, most, lambda i: share(build(i), layout) <= budget)
