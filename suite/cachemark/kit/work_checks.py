"""The check of work: the FLOPs that are dispatched in a generation against those that the method declares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..cache.attention import FUSED_MASS_KERNEL, fused, mass_kernel
from ..cache.codec import NATIVE
from ..cache.layout import Layout, Site, Step, raster_steps, scale_steps
from ..cache.masked_layout import MaskedLayout
from ..contract.method import Method
from ..core.errors import Unsupported
from ..roofline.masked_flops import masked_ops
from .common import DECIDES, Found, MethodCell, finding
from .work_counter import DispatchedWork, WorkCounter

TOLERANCE = 0.02  # share by which dispatched work may differ from what is declared


def work_is_declared(cell: MethodCell) -> Found:
    """All tokens and layers are computed that the method does not say it leaves out, attention reads as many entries as ``attended`` says,
    and no random numbers are drawn but those that belong to the sample."""
    layout, method = cell.layout, cell.tight()
    if layout.scales and not method.capturable:
        raise Unsupported(DECIDES)  # what it reads is not known on paper
    work = _count(cell, method)
    if work.drawn and not layout.scales:
        yield finding(cell, "no random numbers of torch: those of a sample come of its seed", f"it calls {', '.join(sorted(work.drawn))}")
    if layout.paradigm == "masked":
        yield from _all_is_declared(cell, work)
        return
    full = _count(cell, Method())
    if work.weights < (1 - TOLERANCE) * full.weights:
        yield finding(cell, f"{full.weights:,} FLOPs of products with the model's weights, as the full cache", f"{work.weights:,}")
    steps = scale_steps(layout) if layout.scales else raster_steps(layout)
    yield from _attention_is_declared(cell, work, cell.tight(), layout, steps)


def _count(cell: MethodCell, method: Method) -> DispatchedWork:
    counter = WorkCounter(cell.parameters)
    with fused("cpu"), counter.counting() as work:
        cell.run(method, counter, bare=True)
    return work


def _all_is_declared(cell: MethodCell, work: DispatchedWork) -> Found:
    method, layout = cell.tight(), cell.layout
    assert isinstance(layout, MaskedLayout)
    method.resolve(layout)
    declared = sum(op.flops * op.times for op in masked_ops(method, layout, 0, 0, NATIVE))
    if not (1 - TOLERANCE) * declared <= work.flops <= (1 + TOLERANCE) * declared:
        yield finding(cell, f"{declared:,} FLOPs, as it declares", f"{work.flops:,}")


def _attention_is_declared(cell: MethodCell, work: DispatchedWork, method: Method, layout: Layout, steps: Sequence[Step]) -> Found:
    if method.needs_mass and mass_kernel("cpu") == FUSED_MASS_KERNEL:  # it dispatches nothing that is counted
        return
    shortest = replace(layout, condition=(min(layout.condition),) * len(layout.condition))
    least, most = _attention_flops(method, shortest, steps)[0], sum(_attention_flops(method, layout, steps))
    if work.attend < (1 - TOLERANCE) * least:
        yield finding(cell, f"at least {least:,} FLOPs of attention, as attended says", f"{work.attend:,}")
    elif work.attend > (1 + TOLERANCE) * most:
        yield finding(cell, f"at most {most:,} FLOPs of attention, as attended says", f"{work.attend:,}: it reads more than it declares")


def _attention_flops(method: Method, layout: Layout, steps: Sequence[Step]) -> tuple[int, int]:
    """FLOPs of attention over all passes and layers of a generation, and those of the method's own products beside it."""
    method.resolve(layout)
    width = layout.heads // layout.kv_heads * layout.head_dim
    attention = own = 0
    for step in steps:
        tokens = layout.rows * (step.count or layout.longest_condition)
        for site in (Site("decoder", layer) for layer in range(layout.layers)):
            attention += 4 * tokens * width * method.attended_by_heads(layout, site, step)
            own += 2 * layout.rows * method.overhead(layout, site, step).products
    return attention, own
