"""Checks that parameters stay within the requested fraction, and generations within the parameters."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from ..cache.layout import Layout, Site, raster_steps
from ..contract.heads import HeadGroups, PerHead
from ..contract.method import Method
from ..core.errors import BadBudget, Unsupported
from ..core.spec import FLOPS
from ..methods.base.evicting import visual_budget
from ..roofline.flops_budget import share
from .common import Findings, MethodCell
from .driver import entries_of

BUDGETS = (Fraction(1, 4), Fraction(1, 3), Fraction(1, 2), Fraction(2, 3), Fraction(3, 4))

SIZES = ("B", "c_min", "c_max")  # parameters that a budget sets


# -- on paper ---------------------------------------------------------------------------------------------------------
def declared_entries(method: Method, layout: Layout, sites: Iterable[Site]) -> dict[Site, int]:
    """Return the entries that the method declares for all heads of each site, in one row."""
    if isinstance(method, HeadGroups | PerHead):
        return {site: method.entries(layout, site) for site in sites}
    return {site: layout.kv_heads * method.capacity(layout, site) for site in sites}


def budgets_are_the_requested_ones(cell: MethodCell) -> Findings:
    """The parameters of a budget store (or compute) at most this fraction of the full cache."""
    of_flops = cell.layout.paradigm == "masked" or cell.cls.budget_kind == FLOPS  # whose modes are set by a budget
    if replaced := set() if of_flops else dict(cell.mode).keys() & {*SIZES, *cell.cls.sizes}:
        raise Unsupported(f"The budget is replaced by {', '.join(sorted(replaced))}.")
    count = 0
    for budget in BUDGETS:
        try:
            method = cell.at(budget)
            method.resolve(cell.layout)
        except BadBudget:
            continue
        count += 1
        expected, actual = _computed(method, cell.layout, budget) if of_flops else _stored(method, cell, budget)
        if actual > expected:
            what = "of the FLOPs" if of_flops else "entries in all layers and heads"
            yield cell.finding(f"at most {expected:.6g} {what} at budget {budget}", f"{actual:.6g}")
            return
    if not count:
        raise Unsupported("It supports none of these budgets.")


def _computed(method: Method, layout: Layout, budget: Fraction) -> tuple[float, float]:
    return float(budget), float(share(method, layout))


def _stored(method: Method, cell: MethodCell, budget: Fraction) -> tuple[int, int]:
    """Return the entries per row that a budget allows, and those stored or read by a selection."""
    layout, sites = cell.layout, [Site("decoder", layer) for layer in range(cell.layout.layers)]
    declared = sum(declared_entries(method, layout, sites).values())
    if method.selects:
        declared = sum(max(method.attended_by_heads(layout, site, step) for step in raster_steps(layout)) for site in sites)
    if layout.scales:
        return int(budget * layout.cacheable * layout.layers * layout.kv_heads), declared
    slack = max((group.method.slack for group in method.groups), default=0) if isinstance(method, HeadGroups) else method.slack
    slack += method.selects  # the newest entry
    each = layout.longest_condition + min(visual_budget(budget, layout) + slack, layout.cacheable)
    return layout.layers * layout.kv_heads * each, declared


# -- in a generation --------------------------------------------------------------------------------------------------
def limit(method: Any) -> int:
    """Return the most entries that may be live: B and the condition, or B if the condition counts."""
    return int(method.B) + (method.layout.longest_condition if getattr(method, "keep_condition", True) else 0)


def budget_is_kept(cell: MethodCell) -> Findings:
    """No step leaves more entries than the budget, or uses more than budget plus slack, on average."""
    method = cell.record.method
    if not hasattr(method, "B") or method.selects:  # which keeps everything
        return
    for moment in cell.record.moments:
        after, during = ([max(heads[site]) for site in method.slots] for heads in (moment.after, moment.during))
        if _mean(after) > limit(method) or _mean(during) > limit(method) + method.slack:
            layer = list(method.slots)[during.index(max(during))].layer
            yield cell.finding(f"at most {limit(method)} entries after a step and {method.slack} more in it, in the mean of the layers",
                               f"{_mean(after):.6g} after it, {_mean(during):.6g} in it", moment.step.index, layer)
            return


def budget_is_used(cell: MethodCell) -> Findings:
    """The fullest step has as many entries as the budget and the slack allow, in the mean of the layers."""
    method = cell.record.method
    if not hasattr(method, "B") or method.selects:  # which keeps everything
        return
    fullest = _mean([max(max(moment.during[place]) for moment in cell.record.moments) for place in entries_of(method)])
    if fullest != limit(method) + method.slack:
        yield cell.finding(f"{limit(method) + method.slack} entries at the fullest step, in the mean of the layers", f"{fullest:.6g}")


def _mean(numbers: list[int]) -> float:
    return sum(numbers) / len(numbers)
