"""FLOPs of a next-scale generation, from a method's declared work in each pass."""

from __future__ import annotations

from collections import Counter

from ..cache.codec import NATIVE
from ..cache.layout import Layout
from ..contract.method import Method
from ..core.errors import BadBudget
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
    """Return the FLOPs of one image by part, a composite model's drafter included.

    Raises what :func:`by_pass` and :meth:`Method.resolve` raise.
    """
    method.resolve(layout)
    draft = Counter(work(Method(), layout.draft) if layout.draft else {})
    return dict(sum(map(Counter, by_pass(method, layout)), draft))
