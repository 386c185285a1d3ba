"""The buffer in which a scale stands together with what is already kept, until it is known what of both survives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from .arena import Memory
from .layout import Layout, RowRun

if TYPE_CHECKING:
    from .slot import Slot


class Stage:
    """One buffer per stack, shared by all layers: a slot's entries in compute form, then the pass's own keys and values.

    Attention reads [slot | stage] as one stretch, and only what survives is written back to the slot. Without it a method
    would have to allocate in every slot what it claims to save.
    """

    def __init__(self, layout: Layout, entries: int, memory: Memory) -> None:
        shape = (layout.rows, layout.kv_heads, entries, layout.head_dim)
        self.k = memory.zeros("stage.k", shape, layout.dtype, "stage")
        self.v = memory.zeros("stage.v", shape, layout.dtype, "stage")
        self.own = 0

    def put(self, slot: Slot, k: Tensor | None = None, v: Tensor | None = None) -> None:
        """Lay out the slot's live prefix and behind it the pass's own ``k``, ``v`` (rows, kv_heads, tokens, head_dim)."""
        self.own = 0 if k is None else k.size(2)
        for run, n in zip(slot.bank.runs, slot.live, strict=True):
            self.k[run.rows, :, :n], self.v[run.rows, :, :n] = slot.read(run, n)
            if k is not None and v is not None:
                self.k[run.rows, :, n : n + self.own], self.v[run.rows, :, n : n + self.own] = k[run.rows], v[run.rows]

    def read(self, run: RowRun, n: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first ``n`` entries of the slot that was put, and the pass's own."""
        return self.k[run.rows, :, : n + self.own], self.v[run.rows, :, : n + self.own]


def staged_entries(layout: Layout, capacity: int) -> int:
    """The most entries that [live | own] of a slot of this capacity can have in a pass whose own do not all fit."""
    seen, most = 0, 0
    for side in layout.scales:
        own = side**2
        if seen + own > capacity:
            most = max(most, min(seen, capacity) + own)
        seen += own
    return most
