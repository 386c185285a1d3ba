"""The one attention function: every method of every family reads its keys through it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..slot import Slot, Stage
from .mass import fold, with_mass

KERNEL = "sdpa"


def attention(
    q: Tensor, slot: Slot, stage: Stage | None = None, *, mass: bool = False, causal: bool = False
) -> tuple[Tensor, Tensor | None]:
    """softmax(q·kᵀ/√d)·v over the live prefix of ``slot``, followed by the stage's own entries where a stage is given.

    ``q``: (rows, heads, tokens, head_dim). Returns the output in the shape of ``q`` and, where ``mass`` is asked for, the
    attention mass of each live key summed over queries and over the heads that share it, (rows, kv_heads, longest) fp32,
    zero behind the end of a shorter row. ``causal``: query t sees keys 0 … t; queries behind a shorter row's end are padding,
    which has an output but no mass.

    Rows with one number of live entries are served by one call on exactly those entries: there is no mask, and what lies
    behind a row's end is never read.
    """
    source = slot if stage is None else stage
    parts: list[tuple[Tensor, Tensor | None]] = []
    for run, n in zip(slot.bank.runs, slot.live, strict=True):
        k, v = source.read(run, n)
        parts.append(with_mass(q[run.rows], k, v, causal) if mass else (_sdpa(q[run.rows], k, v, causal), None))
    if len(parts) == 1:
        return parts[0]
    out = torch.cat([o for o, _ in parts])
    return out, _join([m for _, m in parts if m is not None]) if mass else None


def _sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    if not causal or q.size(2) == 1:
        return F.scaled_dot_product_attention(fold(q, k.size(1)), k, v).reshape(q.shape)
    group = q.size(1) // k.size(1)
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)  # once per image: the condition only
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _join(masses: list[Tensor]) -> Tensor:
    longest = max(m.size(-1) for m in masses)
    return torch.cat([F.pad(m, (0, longest - m.size(-1))) for m in masses])
