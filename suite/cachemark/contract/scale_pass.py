"""The side of a method that a next-scale model calls: a pass writes a whole scale, of which only some entries may survive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from ..cache.attention import attention
from ..cache.layout import Site, Step
from ..cache.slot import Slot, Stage
from .storage import Storage

if TYPE_CHECKING:
    from .method import Method


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

    @property
    def needs_mass(self) -> bool:
        """True if ``observe`` wants the attention mass of each key, which no fused kernel returns."""
        return False


def pass_scale(method: Method, site: Site, step: Step, slot: Slot, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend to a scale and keep what survives of it.

    A scale that fits is written to the slot and read there. Any other stands in the stage until it is known what of it survives; so
    does every scale under a lossy codec, since a pass sees its own keys as they are. Nobody reads the last scale again, so it is kept
    only where the method has room for everything.
    """
    n, own = slot.live[0], step.count
    fits = n + own <= method.room(site) and not (step.last and slot.bank.capacity < method.layout.visual)
    stage = None if fits and slot.bank.codec.exact else method.stage
    slot.number(step.first, own)
    if stage is None:
        slot.append(k, v)
    else:
        stage.put(slot, k, v)
    out, mass = method.attend_scale(step, q, slot, stage)
    method.observe(site, step, slot, q, mass)
    if stage is not None and fits:
        slot.append(k, v)
    elif stage is not None:
        slot.absorb(stage, [range(n)] if step.last else method.survivors(site, step, slot, n + own))
    return out
