"""Checks of work: the FLOPs that are dispatched in a generation against those that the method declares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..cache.attention import FUSED_MASS_KERNEL, fused, mass_kernel
from ..cache.codec import NATIVE
from ..cache.layout import Layout, Site, Step, raster_steps, scale_steps
from ..contract.method import Method
from ..core.errors import Unsupported
from ..roofline.masked_flops import masked_ops
from . import masked_checks, next_scale, next_token
from .common import DECIDES, Found, finding
from .driver import watched
from .masked_checks import MaskedExample
from .next_scale import ScaleCell, ScaleFeed
from .next_token import Cell
from .work_counter import DispatchedWork, WorkCounter

TOLERANCE = 0.02  # share by which dispatched work may differ from what is declared


def token_work_is_declared(cell: Cell) -> Found:
    """All tokens and layers are computed, attention reads as many entries as ``attended`` says, and no random numbers are drawn but the
    sample's own."""
    work = _count_token_work(cell, cell.tight())
    full = _count_token_work(cell, Method())
    if work.weights < (1 - TOLERANCE) * full.weights:
        yield finding(cell, f"{full.weights:,} FLOPs of products with the model's weights, as the full cache", f"{work.weights:,}")
    if work.drawn:
        yield finding(cell, "no random numbers of torch: those of a sample come of its seed", f"it calls {', '.join(sorted(work.drawn))}")
    yield from _attention_is_declared(cell, work, cell.tight(), cell.layout, raster_steps(cell.layout))


def scale_work_is_declared(cell: ScaleCell) -> Found:
    """Attention reads as many entries as ``attended`` says."""
    if not cell.tight().capturable:
        raise Unsupported(DECIDES)  # what it reads is not known on paper
    counter = WorkCounter(())
    with fused("cpu"), counter.counting() as work:
        next_scale.drive(watched(cell.tight(), counter), cell.layout, ScaleFeed(cell.layout), cell.memory())
    yield from _attention_is_declared(cell, work, cell.tight(), cell.layout, scale_steps(cell.layout))


def masked_work_is_declared(cell: MaskedExample) -> Found:
    """As many FLOPs are computed as the tokens and layers that the method declares take."""
    method, layout = cell.build(), masked_checks.model().layout(masked_checks.SEEDS, masked_checks.SAMPLING)
    method.resolve(layout)
    declared = sum(op.flops * op.times for op in masked_ops(method, layout, 0, 0, NATIVE))
    counter = WorkCounter(masked_checks.model().parameters())
    with fused("cpu"), counter.counting() as work:
        masked_checks.generate(cell.build(), masked_checks.fresh(cell))
    if not (1 - TOLERANCE) * declared <= work.flops <= (1 + TOLERANCE) * declared:
        yield masked_checks.finding(cell, f"{declared:,} FLOPs, as it declares", f"{work.flops:,}")


def _count_token_work(cell: Cell, method: Method) -> DispatchedWork:
    counter = WorkCounter(cell.model.parameters())
    with fused("cpu"), counter.counting() as work:
        next_token.generate(cell, method, counter)
    return work


def _attention_is_declared(cell: Any, work: DispatchedWork, method: Method, layout: Layout, steps: Sequence[Step]) -> Found:
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
