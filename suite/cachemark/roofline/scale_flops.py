"""FLOPs of a next-scale generation, from a method's declared work in each pass; budgets in FLOPs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import cache

from ..cache.codec import NATIVE
from ..cache.layout import Layout
from ..contract.deciding import Deciding
from ..contract.method import Method
from ..core.errors import BadBudget
from .flops_budget import as_budget, largest_within
from .passes import ParameterCounts, layers_alike, pass_ops, steps_of


def by_pass(method: Method, layout: Layout) -> list[dict[str, int]]:
    """Return the FLOPs of one image by part (matmul, attention, method, logits, input) in each pass.

    Call after :meth:`Method.resolve`. A multiplication and an addition are two. All rows count; work that runs once per generation and
    image decoding do not. Raises BadBudget for a model that does not state its sizes.
    """
    if layout.work is None:
        raise BadBudget(f"{method.name}: this model does not state the sizes of its products, so no FLOPs follow.",
                        remedy="Set work in its layout.")
    counts, alike = ParameterCounts(between=0, image=lambda: None, **layout.work._asdict()), layers_alike(method, layout)
    passes = []
    for step in steps_of(method, layout):
        flops: Counter[str] = Counter()
        for op in pass_ops(method, layout, counts, NATIVE, step, alike):
            flops[op.part] += op.flops * op.times
        passes.append({part: count // layout.batch for part, count in flops.items() if count})
    return passes


def work(method: Method, layout: Layout) -> dict[str, int]:
    """Return the FLOPs of one image by part: of a method that decides for each image, the expected ones.

    Raises what :func:`by_pass` and :meth:`Method.resolve` raise.
    """
    method.resolve(layout)
    mix = method.expected(layout) if isinstance(method, Deciding) else [(1, method)]
    flops: Counter[str] = Counter()
    for fraction, outcome in mix:
        for parts in by_pass(outcome, layout):
            for part, count in parts.items():
                flops[part] += fraction * count  # type: ignore[assignment]
    return {part: round(count) for part, count in flops.items()}


def image_flops(method: Method, layout: Layout) -> int:
    """Return the FLOPs of one image; see :func:`work`."""
    return sum(work(method, layout).values())


def share(method: Method, layout: Layout) -> Fraction:
    """Return the FLOPs of an image as a fraction of the full cache's."""
    return Fraction(image_flops(method, layout), _full(layout))


@cache
def _full(layout: Layout) -> int:
    return image_flops(Method(), layout)


def budget_of(method: Method, layout: Layout) -> Fraction:
    """Return :func:`share` as a budget."""
    return as_budget(share(method, layout))


def fitted(name: str, build: Callable[[int], Method], most: int, budget: Fraction, layout: Layout) -> int:
    """Return the largest i of 0 … ``most`` such that ``build(i)`` is within ``budget``. Raises BadBudget.

    The FLOPs of ``build(i)`` must grow with i.
    """
    return largest_within(name, lambda i: share(build(i), layout), most, budget)
