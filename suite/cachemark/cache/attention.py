"""The one attention function, through which every method of every family reads its keys, and the kernels that compute it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .layout import Layout
from .ragged import RaggedStage
from .slot import Slot, Stage

KERNEL = "sdpa"
MASS_KERNEL, FUSED_MASS_KERNEL = "matmul-with-mass", "triton-with-mass"


def attention(
    q: Tensor, slot: Slot, stage: Stage | None = None, *, mass: bool = False, causal: bool = False
) -> tuple[Tensor, Tensor | None]:
    """softmax(q·kᵀ/√d)·v over the live prefix of ``slot``, followed by the stage's own entries where a stage is given.

    ``q``: (rows, heads, tokens, head_dim). Returns the output in the shape of ``q`` and, where ``mass`` is asked for, the
    attention mass of each live key summed over queries and over the heads that share it, (rows, kv_heads, longest) fp32,
    zero behind the end of a shorter row. ``causal``: query t sees keys 0 … t, and of a window behind live entries these too; queries
    behind a shorter row's end are padding, which has an output but no mass.

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


def by_length(q: Tensor, stage: RaggedStage) -> Tensor:
    """softmax(q·kᵀ/√d)·v where heads see different numbers of keys: one call for the heads of each length, on exactly their entries."""
    queries = fold(q, sum(extent.heads for extent in stage.extents))
    outs: dict[int, Tensor] = {}
    for heads, k, v in stage.by_length():
        if len(heads) == queries.size(1):
            return _sdpa(q, k, v, causal=False)
        group_queries = torch.stack([queries[:, head] for head in heads], 1)
        outs |= zip(heads, F.scaled_dot_product_attention(group_queries, k, v).unbind(1), strict=True)
    return torch.stack([outs[head] for head in sorted(outs)], 1).reshape(q.shape)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    if not causal or q.size(2) == 1:
        return F.scaled_dot_product_attention(fold(q, k.size(1)), k, v).reshape(q.shape)
    if q.size(2) < k.size(2):
        return _window(q, k, v)
    group = q.size(1) // k.size(1)
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)  # once per image: the condition only
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of a window whose own keys are the last ones: its query t sees all before the window, and of the window 0 … t. The fused
    kernels of a CUDA device have that triangle where every head has keys of its own; elsewhere it is a mask."""
    tokens, keys = q.size(2), k.size(2)
    if q.is_cuda and q.size(1) == k.size(1):
        from torch.nn.attention.bias import causal_lower_right  # a second, which nobody else should pay

        return F.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(tokens, keys))
    visible = torch.ones(tokens, keys, dtype=torch.bool, device=q.device).tril_(keys - tokens)
    visible = visible if q.size(1) == k.size(1) else visible.repeat(q.size(1) // k.size(1), 1)
    return F.scaled_dot_product_attention(fold(q, k.size(1)), k, v, attn_mask=visible).reshape(q.shape)


def _join(masses: list[Tensor]) -> Tensor:
    longest = max(m.size(-1) for m in masses)
    return torch.cat([F.pad(m, (0, longest - m.size(-1))) for m in masses])


def fold(q: Tensor, kv_heads: int) -> Tensor:
    """Queries of the heads that share a key, side by side: (rows, kv_heads, group·tokens, head_dim). No copy of k or v."""
    return q.reshape(q.size(0), kv_heads, -1, q.size(-1))


FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


@contextmanager
def fused(device: str) -> Iterator[None]:
    """On a CUDA device attention within runs a fused kernel or raises RuntimeError, so that no value of a fast engine is that of the
    written-out formula. A CPU has one kernel of its own."""
    if torch.device(device).type == "cpu":
        yield
        return
    with sdpa_kernel(FUSED):
        yield


def chosen(layout: Layout) -> str:
    """The kernel that the dispatcher takes for keys of this layout, ``sdpa-flash`` for instance; on a CPU it is just ``sdpa``.

    Asked with one row, a few tokens and a prefix of a longer buffer: type, head width and strides decide, and none of the sizes.
    """
    if torch.device(layout.device).type == "cpu":
        return KERNEL
    many = layout.scales or layout.paradigm == "masked"
    tokens = 16 if many else layout.heads // layout.kv_heads
    buffer = torch.zeros(1, layout.kv_heads, 64, layout.head_dim, dtype=layout.dtype, device=layout.device)
    q = torch.zeros(1, layout.kv_heads, tokens, layout.head_dim, dtype=layout.dtype, device=layout.device)
    with fused(layout.device):
        backend = SDPBackend(torch._fused_sdp_choice(q, buffer[:, :, :48], buffer[:, :, :48]))
    return f"{KERNEL}-{backend.name.removesuffix('_ATTENTION').lower()}"


# -- with the mass of each key, for the methods that keep or drop keys by it ------------------------------------------
def with_mass(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """softmax(q·kᵀ/√d)·v in the shape of ``q`` (rows, heads, tokens, head_dim), and the weight of each key summed over queries and over
    the heads that share it, (rows, kv_heads, keys) fp32. By one kernel on a CUDA device with Triton; a condition of several tokens,
    which is fed once, and everything on a CPU is written out."""
    kernel = _fused() if q.is_cuda and not (causal and q.size(2) > 1) else None
    if kernel is None:
        return written_out(q, k, v, causal)
    out, mass = kernel(fold(q, k.size(1)), k, v)
    return out.reshape(q.shape), mass


def mass_kernel(device: str) -> str:
    """The kernel that :func:`with_mass` is on a device."""
    return FUSED_MASS_KERNEL if torch.device(device).type == "cuda" and _fused() is not None else MASS_KERNEL


def written_out(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention written out in plain operations, because the fused kernels of torch do not return the probabilities."""
    tokens, keys = q.size(2), k.size(2)
    scores = fold(q, k.size(1)).float() @ k.float().mT * q.size(-1) ** -0.5
    if causal and tokens > 1:
        hidden = torch.ones(tokens, keys, dtype=torch.bool, device=q.device).triu(1 + max(0, keys - tokens))
        scores = scores.masked_fill(hidden.repeat(q.size(1) // k.size(1), 1), float("-inf"))
    weights = scores.softmax(-1)
    real = weights.unflatten(2, (-1, tokens))[:, :, :, :keys] if causal else weights
    return (weights.to(v.dtype) @ v).reshape(q.shape), real.flatten(2, -2).sum(2)


@cache
def _fused() -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    """The kernel, or None without Triton; imported when it is first needed, since Triton takes a second."""
    try:
        from .mass_kernel import attention_with_mass
    except ImportError:
        return None
    return attention_with_mass
