"""The attention function through which all methods read keys, and its kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .layout import Layout, RowRun
from .ragged import RaggedWorkspace
from .slot import Slot, Workspace

KERNEL = "sdpa"
MASS_KERNEL, FUSED_MASS_KERNEL = "matmul-with-mass", "triton-with-mass"


def attention(
    q: Tensor, slot: Slot, workspace: Workspace | None = None, *, mass: bool = False, causal: bool = False, selected: Tensor | None = None,
    visible: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute softmax(q·kᵀ/√d)·v over the live entries of ``slot``, or over [live | own] in ``workspace``.

    ``q``: (rows, heads, tokens, head_dim). Returns the output in the shape of ``q`` and, with ``mass``, the attention mass of each live key
    summed over queries and over the heads that share it, (rows, kv_heads, longest) fp32, zero after the end of a shorter row. ``causal``:
    query t sees keys 0 … t, and in a window all live entries before it; queries after a shorter row's end are padding, with an output but
    no mass. ``selected`` (rows, kv_heads, count): read the condition and these visual entries alone, counted from 0 after the condition.
    ``visible`` (tokens, visual entries): each query sees the condition and these visual entries; without ``mass`` and ``selected``.

    Rows with equally many live entries share one call on exactly these entries: without ``visible`` no mask is needed, and dead entries
    are never read.
    """
    source = slot if workspace is None else workspace
    parts: list[tuple[Tensor, Tensor | None]] = []
    for run, n in zip(slot.runs, slot.live, strict=True):
        k, v = source.read(run, n)
        if selected is not None:
            k, v = _selected(run, k, selected), _selected(run, v, selected)
        parts.append(with_mass(q[run.rows], k, v, causal) if mass else (_sdpa(q[run.rows], k, v, causal, visible), None))
    if len(parts) == 1:
        return parts[0]
    out = torch.cat([o for o, _ in parts])
    return out, _join([m for _, m in parts if m is not None]) if mass else None


def _selected(run: RowRun, x: Tensor, selected: Tensor) -> Tensor:
    """Return the condition and the selected visual entries of a run, in storage order."""
    places = selected[run.rows].sort(-1).values + run.condition
    return torch.cat((x[:, :, : run.condition], x.gather(2, places[..., None].expand(*places.shape, x.size(-1)))), 2)


def by_length(q: Tensor, workspace: RaggedWorkspace) -> Tensor:
    """Compute attention where heads have different numbers of keys, in one call per length."""
    queries = fold(q, sum(extent.heads for extent in workspace.extents))
    outs: dict[int, Tensor] = {}
    for heads, k, v in workspace.by_length():
        if len(heads) == queries.size(1):
            return _sdpa(q, k, v, causal=False)
        group_queries = torch.stack([queries[:, head] for head in heads], 1)
        outs |= zip(heads, F.scaled_dot_product_attention(group_queries, k, v).unbind(1), strict=True)
    return torch.stack([outs[head] for head in sorted(outs)], 1).reshape(q.shape)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, visible: Tensor | None = None) -> Tensor:
    if visible is not None:
        return _masked(q, k, v, F.pad(visible, (k.size(2) - visible.size(1), 0), value=True))
    if not causal or q.size(2) == 1:
        return F.scaled_dot_product_attention(fold(q, k.size(1)), k, v).reshape(q.shape)
    if q.size(2) < k.size(2):
        return _window(q, k, v)
    group = q.size(1) // k.size(1)
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)  # once per image: the condition only
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend within a window whose own keys are the last ones: query t sees the keys before it.

    CUDA kernels have that triangle where every head has its own keys; elsewhere it is a mask.
    """
    tokens, keys = q.size(2), k.size(2)
    if q.is_cuda and q.size(1) == k.size(1):
        from torch.nn.attention.bias import causal_lower_right  # importing takes a second, so only on demand

        return F.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(tokens, keys))
    return _masked(q, k, v, torch.ones(tokens, keys, dtype=torch.bool, device=q.device).tril_(keys - tokens))


def _masked(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """Attend to the keys that are ``visible`` (tokens, keys) to each query."""
    visible = visible if q.size(1) == k.size(1) else visible.repeat(q.size(1) // k.size(1), 1)
    return F.scaled_dot_product_attention(fold(q, k.size(1)), k, v, attn_mask=visible).reshape(q.shape)


def _join(masses: list[Tensor]) -> Tensor:
    longest = max(m.size(-1) for m in masses)
    return torch.cat([F.pad(m, (0, longest - m.size(-1))) for m in masses])


def fold(q: Tensor, kv_heads: int) -> Tensor:
    """Place queries of the heads that share a key side by side: (rows, kv_heads, group·tokens, head_dim)."""
    return q.reshape(q.size(0), kv_heads, -1, q.size(-1))


FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


@contextmanager
def fused(device: str) -> Iterator[None]:
    """Run attention within by a fused kernel on CUDA, or raise RuntimeError."""
    if torch.device(device).type == "cpu":
        yield
        return
    with sdpa_kernel(FUSED):
        yield


def chosen(layout: Layout) -> str:
    """Return the kernel that the dispatcher selects for keys of this layout, such as ``sdpa-flash``.

    On a CPU it is ``sdpa``. Type, head width and strides decide, so it is probed with one row and a few tokens.
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
    """Return attention in the shape of ``q``, and each key's weight (rows, kv_heads, keys) fp32.

    ``q``: (rows, heads, tokens, head_dim). Weights are summed over queries and over the heads that share the key. Uses one kernel on CUDA
    with Triton; conditions of several tokens, and everything on a CPU, use plain operations.
    """
    kernel = _fused() if q.is_cuda and not (causal and q.size(2) > 1) else None
    if kernel is None:
        return written_out(q, k, v, causal)
    out, mass = kernel(fold(q, k.size(1)), k, v)
    return out.reshape(q.shape), mass


def mass_kernel(device: str) -> str:
    """Return the name of the kernel that :func:`with_mass` uses on a device."""
    return FUSED_MASS_KERNEL if torch.device(device).type == "cuda" and _fused() is not None else MASS_KERNEL


def written_out(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Compute attention in plain operations, since torch's fused kernels do not return probabilities."""
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
    """Return the Triton kernel, or None without Triton. Imported on first use, which takes a second."""
    try:
        from .mass_kernel import attention_with_mass
    except ImportError:
        return None
    return attention_with_mass
