"""Methods with a budget of visual entries, and their state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from ...cache.arena import Memory
from ...cache.bank import SlotBank
from ...cache.kernels.selection import lowest
from ...cache.layout import Layout, Site, Step
from ...cache.slot import Slot
from ...contract.method import Method
from ...contract.planning import MethodOverhead
from ...core.errors import BadBudget, BadPlugin


def visual_budget(budget: Fraction, layout: Layout) -> int:
    """Return the visual entries per row, layer and head that a budget allows.

    Next-token: B = n·max(2, round(ratio·lines)) with lines of n tokens. Next-scale: the fraction of the full cache's entries, rounded down.
    """
    if layout.scales:
        return max(1, int(budget * layout.cacheable))
    return layout.line * max(2, round(budget * layout.lines))


@dataclass
class Evicting(Method):
    """A method that keeps at most ``B`` visual entries per row, layer and head, and the whole condition."""

    evicts = True

    B: int = 0

    @classmethod
    def parameters_for(cls, budget: Fraction, layout: Layout) -> dict[str, Any]:
        return {"B": visual_budget(budget, layout)}

    def resolve(self, layout: Layout) -> None:
        self.check_range("B", self.B >= 1, f"Use 1 … {layout.visual} visual entries.")

    def capacity(self, layout: Layout, site: Site) -> int:
        return layout.longest_condition + min(self.with_slack(layout), layout.cacheable)

    def with_slack(self, layout: Layout) -> int:
        """Return ``B`` and the entries appended before an eviction. Scales that do not fit use the workspace."""
        return self.B + (0 if layout.scales else self.slack)

    @property
    def evicts_behind(self) -> str:
        """The edge of eviction: ``evict_after``, unless a parameter sets it."""
        return self.evict_after

    # -- on paper -----------------------------------------------------------------------------------------------------
    def attended(self, layout: Layout, site: Site, step: Step) -> int:
        """Return the condition, the entries kept from earlier passes, and the pass's own."""
        return layout.longest_condition + self.kept_before(layout, step) + step.count

    def kept_before(self, layout: Layout, step: Step) -> int:
        """Return the visual entries kept from earlier passes. Next-scale models have no lines."""
        if layout.scales or self.evicts_behind != "line" or step.first < self.B:
            return min(step.first, self.B)
        return self.B - layout.line + (step.first - self.B) % layout.line

    def evicted(self, layout: Layout, step: Step) -> int:
        """Return the entries evicted at the end of this pass."""
        full = step.count and self.kept_before(layout, step) + step.staying >= self.B
        if layout.scales or self.evicts_behind not in step.edges or not full:
            return 0
        if self.evicts_behind == "line":
            return layout.line if step.line < layout.lines else 0
        return max(0, self.kept_before(layout, step) + step.staying - self.B)

    def overhead(self, layout: Layout, site: Site, step: Step) -> MethodOverhead:
        """Count the moves of the evicted entries."""
        return MethodOverhead(0, 4 * self.evicted(layout, step) * layout.kv_heads * layout.head_dim)


@dataclass
class Scored(Evicting):
    """An evicting next-token method defined by one function: entries of lowest :meth:`score` go.

    By default one entry is evicted as soon as more than ``B`` visual entries are live; with ``evict_after = "line"`` (and ``slack = 0``) as
    many as a line has, at the end of each line. If scores are equal, the older entry goes. The condition stays.
    """

    evict_after = "token"
    slack = 1  # the entry just written, until the eviction

    def score(self, step: Step, slots: SlotBank) -> Tensor:
        """Return the score of every live entry, (layers, rows, kv_heads, live); +inf protects an entry.

        ``slots.keys()`` and ``slots.values()`` are (layers, rows, kv_heads, live, head_dim), keys after RoPE; ``slots.table()`` has the
        index of each entry among visual tokens, −1 for the condition.
        """
        raise NotImplementedError

    def survivors(self, site: Site, step: Step, slot: Slot, total: int) -> Sequence[range] | Tensor:
        """Raise BadPlugin: in next-scale models a scale enters as a whole, and :meth:`score` is not called."""
        raise BadPlugin(f"{self.name}: score is for next-token models.",
                        remedy="Leave next-scale out of paradigms, or define survivors(site, step, slot, total) as well.")

    def evict(self, step: Step, slots: SlotBank) -> None:
        if self.evicts_behind == "line":
            full = "line" in step.edges and slots.live_visual >= self.B and step.line < self.layout.lines
            count = self.layout.line if full else 0
        else:
            count = int(slots.live_visual > self.B)
        if count:
            visual = slots.table()
            score = self.score(step, slots)
            if score.shape != visual.shape:
                raise BadPlugin(f"{self.name}: score returns a tensor of shape {tuple(score.shape)}.",
                                remedy=f"Return one score per live entry, (layers, rows, kv_heads, live) = {tuple(visual.shape)}.")
            if slots.selects:
                slots.evict_lowest(count, lambda sites, rows, lengths: score[sites, rows].float())
                return
            score = score.float().clamp(max=torch.finfo(torch.float32).max)  # the condition outlives protected entries
            slots.evict(lowest(score.masked_fill(visual < 0, float("inf")), visual, count))


@dataclass
class KeyScored(Scored):
    """A scored method that looks at keys alone, and evicts a line of entries at each line's end."""

    evict_after = "line"
    slack = 0

    def resolve(self, layout: Layout) -> None:
        super().resolve(layout)
        if self.B % layout.line or self.B // layout.line < 2:
            raise BadBudget(f"{self.name}: B = {self.B} does not fit lines of {layout.line}.",
                            remedy=f"B must be a multiple of {layout.line} and at least {2 * layout.line}.")

    def horizon(self, first: int) -> int:
        """Return the rest of the line, at whose end entries are evicted."""
        return self.layout.line - first % self.layout.line

    def beyond(self, first: int) -> int:
        """Return all remaining tokens, since nothing except the entries is stored."""
        return self.layout.visual - first

    def graph_key(self, step: Step) -> None:
        """Return None: no scope of a pass is overridden."""

    def overhead(self, layout: Layout, site: Site, step: Step) -> MethodOverhead:
        """Count the moves and, where entries are evicted, reading the keys."""
        moved = super().overhead(layout, site, step).numbers
        return MethodOverhead(0, moved + (self.B * layout.kv_heads * layout.head_dim if moved else 0))


def newest(step: Step, visual: Tensor) -> Tensor:
    """Return where ``visual`` (see :meth:`SlotBank.table`) has the last token of a pass.

    A method may always keep this token.
    """
    return visual == step.first + step.staying - 1


def ring(memory: Memory, slots: SlotBank, entries: int) -> Tensor:
    """Allocate state for the latest ``entries`` queries of each site.

    (sites, rows, heads, entries, head_dim).
    """
    layout = slots.layout
    shape = (len(slots.sites), layout.rows, layout.heads, entries, layout.head_dim)
    return memory.zeros(f"queries.{slots.sites[0]}", shape, layout.dtype)


def table(memory: Memory, slots: SlotBank, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Allocate one number per entry that moves with it: (sites, rows, kv_heads, reach)."""
    shape = (len(slots.sites), slots.layout.rows, slots.layout.kv_heads, slots.reach)
    return slots.follow(memory.zeros(f"{name}.{slots.sites[0]}", shape, dtype))
