"""StreamingLLM: attention sinks and the most recent tokens."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..cache.bank import SlotBank
from ..cache.layout import Layout, Site, Step
from ..cache.slot import Slot
from ..core.errors import BadBudget
from .base.evicting import Evicting
from .registry import method


@method("streaming")
@dataclass
class Streaming(Evicting):
    """Keeps the first ``sinks`` visual tokens and the most recent ``B − sinks``.

    Xiao et al., "Efficient Streaming Language Models with Attention Sinks" (ICLR 2024), §3.2. A budget of a next-scale model sets ``sinks``
    to the tokens of the first two scales. Differs from the authors' code: K is cached after RoPE with its own position; theirs rotates by
    the position in the cache.
    """

    title = "StreamingLLM"
    paradigms = ("next-token", "next-scale")
    source = "Xiao et al. 2024, §3.2"
    authors_code = "yes: mit-han-lab/streaming-llm"
    evict_after = "token"
    slack = 1

    sinks: int = 4

    @classmethod
    def parameters_for(cls, budget: Fraction, layout: Layout) -> dict[str, Any]:
        own = {"sinks": sum(layout.scale_tokens[:2])} if layout.scales else {}
        return {**super().parameters_for(budget, layout), **own}

    def resolve(self, layout: Layout) -> None:
        super().resolve(layout)
        if not 0 <= self.sinks < self.B:
            raise BadBudget(f"streaming: {self.sinks} sinks do not fit in B = {self.B}.", remedy=f"Use sinks in 0 … {self.B - 1}.")

    def evict(self, step: Step, slots: SlotBank) -> None:
        """Evict the oldest token that is not a sink. The others are a ring buffer, so its position is known."""
        for number, run in enumerate(slots.runs):
            visual = slots.live[number] - run.condition
            if visual > self.B:
                turn = (step.first - self.B) % (self.B - self.sinks)
                slots.evict_place(number, run.condition + self.sinks + turn)

    def survivors(self, site: Site, step: Step, slot: Slot, total: int) -> list[range]:
        return [range(self.sinks), range(total - (self.B - self.sinks), total)]
