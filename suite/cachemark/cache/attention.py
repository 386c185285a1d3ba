"""The attention functions through which all methods read keys. The table of kernels computes them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .codec import NATIVE
from .kernels.record import HEADS, ONE, ROWS, Entries, Part, fold
from .kernels.table import attend
from .layout import RowRun
from .ragged import RaggedWorkspace
from .slot import Slot, Workspace

__all__ = ["attend", "attention", "by_length", "fold"]


def attention(
    q: Tensor, slot: Slot, workspace: Workspace | None = None, *, mass: bool = False, causal: bool = False, selected: Tensor | None = None,
    visible: Tensor | None = None, buffer: Workspace | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute softmax(q·kᵀ/√d)·v over the live entries of ``slot``, or over [live | own] in ``workspace``.

    ``q``: (rows, heads, tokens, head_dim). Returns the output in the shape of ``q`` and, with ``mass``, the attention mass of each live key
    summed over queries and over the heads that share it, (rows, kv_heads, longest) fp32, zero after the end of a shorter row. ``causal``:
    query t sees keys 0 … t, and in a window all live entries before it; queries after a shorter row's end are padding, with an output but
    no mass. ``selected`` (rows, kv_heads, count): read the condition and these visual entries alone, counted from 0 after the condition.
    ``visible`` (tokens, visual entries), or (rows, kv_heads, tokens, visual entries): each query sees the condition and these visual
    entries; without ``mass`` and ``selected``.
    ``buffer``: where the entries of a lossy codec are decoded for a kernel that cannot read its codes.

    Rows with equally many live entries share one call on exactly these entries, unless the kernel reads several lengths: without
    ``visible`` no mask is needed, and dead entries are never read.
    """
    source: Slot | Workspace = slot if workspace is None else workspace

    def parts() -> Iterator[Part]:
        if buffer is not None:
            buffer.put(slot)
        for run, n in zip(slot.runs, slot.live, strict=True):
            k, v = (source if buffer is None else buffer).read(run, n)
            if selected is not None:
                k, v = _selected(run, k, selected), _selected(run, v, selected)
            yield Part(run.rows, None, k, v)

    codec = slot.bank.codec if workspace is None else NATIVE
    entries = Entries(slot.bank.layout.kv_heads, parts, None if selected is not None else lambda: source.stored(slot), codec,
                      ONE if len(slot.runs) == 1 else ROWS)
    return attend(q, entries, causal=causal, visible=visible, mass=mass)


def _selected(run: RowRun, x: Tensor, selected: Tensor) -> Tensor:
    """Return the condition and the selected visual entries of a run, in storage order."""
    places = selected[run.rows].sort(-1).values + run.condition
    return torch.cat((x[:, :, : run.condition], x.gather(2, places[..., None].expand(*places.shape, x.size(-1)))), 2)


def by_length(q: Tensor, workspace: RaggedWorkspace) -> Tensor:
    """Compute attention where heads have different numbers of keys."""
    heads = sum(extent.heads for extent in workspace.extents)
    return attend(q, Entries(heads, workspace.parts, workspace.stored, lengths=HEADS))[0]
