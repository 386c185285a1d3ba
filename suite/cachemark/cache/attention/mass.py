"""Attention that also says how much of it each key gets, for the methods that keep or drop keys by that."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

MASS_KERNEL = "matmul-with-mass"
FUSED_MASS_KERNEL = "triton-with-mass"


def with_mass(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """softmax(q·kᵀ/√d)·v in the shape of ``q`` (rows, heads, tokens, head_dim), and the weight of each key summed over queries and over
    the heads that share it, (rows, kv_heads, keys) fp32. By one kernel on a CUDA device with Triton; a condition of several tokens,
    which is fed once, and everything on a CPU is written out."""
    kernel = _fused() if q.is_cuda and not (causal and q.size(2) > 1) else None
    if kernel is None:
        return written_out(q, k, v, causal)
    out, mass = kernel(fold(q, k.size(1)), k, v)
    return out.reshape(q.shape), mass


def name(device: str) -> str:
    """The kernel that :func:`with_mass` is on a device."""
    return FUSED_MASS_KERNEL if torch.device(device).type == "cuda" and _fused() is not None else MASS_KERNEL


def fold(q: Tensor, kv_heads: int) -> Tensor:
    """Queries of the heads that share a key, side by side: (rows, kv_heads, group·tokens, head_dim). No copy of k or v."""
    return q.reshape(q.size(0), kv_heads, -1, q.size(-1))


def written_out(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention written out in plain operations, because the fused kernels of torch do not return the probabilities."""
    tokens, keys = q.size(2), k.size(2)
    scores = fold(q, k.size(1)).float() @ k.float().mT * q.size(-1) ** -0.5
    if causal and tokens > 1:
        hidden = torch.ones(tokens, keys, dtype=torch.bool, device=q.device).triu(1)
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
