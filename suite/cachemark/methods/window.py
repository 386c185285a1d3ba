"""Sliding window: the most recent tokens."""

from __future__ import annotations

from dataclasses import dataclass

from ..cache.bank import SlotBank
from ..cache.layout import Layout, Site, Step
from ..cache.slot import Slot
from ..core.errors import BadBudget
from .base.evicting import Evicting
from .registry import method


@method("window")
@dataclass
class Window(Evicting):
    """Keeps the most recent ``B`` visual tokens.

    The condition stays unless ``keep_condition`` is false; then it counts in ``B`` and is evicted first. The window-attention baseline of
    Xiao et al. (ICLR 2024), Fig. 1b. In a next-scale model tokens are ordered coarse to fine.
    """

    paradigms = ("next-token", "next-scale")
    source = "Xiao et al. 2024, Fig. 1b"
    unstated = {
        "keep_condition": "ours: a window over text has no condition apart, so everything ages out of it, as with `False`",
    }
    evict_after = "token"
    slack = 1

    keep_condition: bool = True

    def resolve(self, layout: Layout) -> None:
        super().resolve(layout)
        if not self.keep_condition and layout.longest_condition > self.B:
            raise BadBudget(f"{self.name}: a condition of {layout.longest_condition} entries does not fit in B = {self.B}.",
                            remedy="Raise the budget or set keep_condition = true.")

    def capacity(self, layout: Layout, site: Site) -> int:
        everything = layout.longest_condition + layout.cacheable
        return super().capacity(layout, site) if self.keep_condition else min(self.with_slack(layout), everything)

    def attended(self, layout: Layout, site: Site, step: Step) -> int:
        if self.keep_condition:
            return super().attended(layout, site, step)
        before = layout.longest_condition if step.count else 0
        return min(before + step.first, self.B) + (step.count or layout.longest_condition)

    def evict(self, step: Step, slots: SlotBank) -> None:
        """Evict the oldest entry. The window is a ring buffer, so its position is known."""
        for number, run in enumerate(slots.runs):
            start = run.condition if self.keep_condition else 0
            if slots.live[number] - start > self.B:
                age = step.first + run.condition - start - self.B
                slots.evict_place(number, start + age % self.B)

    def survivors(self, site: Site, step: Step, slot: Slot, total: int) -> list[range]:
        return [range(total - self.B, total)]
