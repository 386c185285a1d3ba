"""The side of a method that a next-scale model calls: a pass writes a whole scale, of which only some entries may survive."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..cache.attention import attention
from ..cache.layout import Site, Step
from ..cache.slot import Slot, Stage
from .storage import Storage


class ScalePass(Storage):
    """Sees everything, and keeps a scale where it fits."""

    def room(self, site: Site) -> int:
        """Entries that this site may hold now, at most its capacity."""
        return self.slots[site].bank.capacity

    def attend_scale(self, step: Step, q: Tensor, slot: Slot, stage: Stage | None) -> tuple[Tensor, Tensor | None]:
        """Attend to [live | the scale's own], which stand in the stage where one is given: output and, if it is wanted, mass."""
        return attention(q, slot, stage, mass=self.needs_mass)

    def survivors(self, site: Site, step: Step, slot: Slot, total: int) -> Sequence[range] | Tensor:
        """Places of all ``total`` entries [live | the scale's own] that stay where they do not all fit; see :meth:`Slot.absorb`. By
        default those that were there before."""
        return [range(slot.live[0])]

    def observe_raw(self, site: Site, step: Step, q: Tensor) -> None:
        """See the queries before bias, norm, scale and rotation, (rows, heads, tokens, head_dim), right before ``attend``."""

    @property
    def needs_raw_queries(self) -> bool:
        """True if ``observe_raw`` wants the queries, which costs a copy of them."""
        return False

    @property
    def needs_mass(self) -> bool:
        """True if ``observe`` wants the attention mass of each key, which no fused kernel returns."""
        return False
