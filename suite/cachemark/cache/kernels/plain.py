"""The kernels that need nothing but torch: its fused attention, and attention written out for the mass of each key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..layout import Layout
from .record import HEADS, Entries, Kernel, Part, Query, fold

Outputs = tuple[Tensor, Tensor | None]


# -- torch's scaled_dot_product_attention -------------------------------------------------------------------------------
def _attend(q: Tensor, entries: Entries, causal: bool, visible: Tensor | None, mass: bool) -> Outputs:
    parts = list(entries.parts())
    if entries.lengths == HEADS:
        return _by_heads(q, entries, parts), None
    masks = [visible if visible is None or visible.dim() < q.dim() else visible[part.rows] for part in parts]
    outs = [sdpa(q[part.rows], part.k, part.v, causal, mask) for part, mask in zip(parts, masks, strict=True)]
    return (outs[0] if len(outs) == 1 else torch.cat(outs)), None


def _by_heads(q: Tensor, entries: Entries, parts: list[Part]) -> Tensor:
    """Attend where heads have different numbers of keys, in one call per length."""
    queries, outs = fold(q, entries.kv_heads), dict[int, Tensor]()
    for part in parts:
        heads = part.heads
        assert heads is not None, "a part of some heads names them"
        if len(heads) == queries.size(1):
            return sdpa(q, part.k, part.v, causal=False)
        contiguous = heads[-1] - heads[0] == len(heads) - 1
        group = queries[:, heads[0] : heads[-1] + 1] if contiguous else torch.stack([queries[:, head] for head in heads], 1)
        outs |= zip(heads, F.scaled_dot_product_attention(group, part.k, part.v).unbind(1), strict=True)
    return torch.stack([outs[head] for head in sorted(outs)], 1).reshape(q.shape)


def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, visible: Tensor | None = None) -> Tensor:
    """Compute attention of (rows, heads, tokens, head_dim) to keys and values of one length.

    ``visible`` (tokens, the last keys), or (rows, kv_heads, tokens, the last keys): each query sees the other keys and these.
    """
    if visible is not None:
        return _masked(q, k, v, F.pad(visible, (k.size(2) - visible.size(-1), 0), value=True))
    if not causal or q.size(2) == 1:
        return F.scaled_dot_product_attention(fold(q, k.size(1)), k, v).reshape(q.shape)
    if q.size(2) < k.size(2):
        return window(q, k, v)
    group = q.size(1) // k.size(1)
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)  # once per image: the condition only
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend within a window whose own keys are the last ones: query t sees the keys before it.

    CUDA kernels have that triangle where every head has its own keys; elsewhere it is a mask.
    """
    tokens, keys = q.size(2), k.size(2)
    if q.is_cuda and q.size(1) == k.size(1):
        from torch.nn.attention.bias import causal_lower_right  # importing takes a second, so only on demand

        return F.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(tokens, keys))
    return _masked(q, k, v, torch.ones(tokens, keys, dtype=torch.bool, device=q.device).tril_(keys - tokens))


def _masked(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """Attend to the keys that are ``visible`` (…, tokens, keys) to each query."""
    visible = visible if q.size(1) == k.size(1) else visible.repeat(*[1] * (visible.dim() - 2), q.size(1) // k.size(1), 1)
    return F.scaled_dot_product_attention(fold(q, k.size(1)), k, v, attn_mask=visible).reshape(q.shape)


SDPA = Kernel("sdpa", lambda query: "it returns no attention mass" if query.mass else "", _attend)
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


@contextmanager
def fused(device: str) -> Iterator[None]:
    """Run torch's attention within by a fused kernel on CUDA, or raise RuntimeError."""
    if torch.device(device).type == "cpu":
        yield
        return
    with sdpa_kernel(FUSED):
        yield


def backend(layout: Layout) -> str:
    """Return SDPA with the backend that torch's dispatcher selects for keys of this layout, such as ``sdpa-flash``.

    On a CPU it is ``sdpa``. Type, head width and strides decide, so it is probed with one row and a few tokens.
    """
    if torch.device(layout.device).type == "cpu":
        return SDPA.name
    many = layout.scales or layout.paradigm == "masked"
    tokens = 16 if many else layout.heads // layout.kv_heads
    buffer = torch.zeros(1, layout.kv_heads, 64, layout.head_dim, dtype=layout.dtype, device=layout.device)
    q = torch.zeros(1, layout.kv_heads, tokens, layout.head_dim, dtype=layout.dtype, device=layout.device)
    with fused(layout.device):
        chosen = SDPBackend(torch._fused_sdp_choice(q, buffer[:, :, :48], buffer[:, :, :48]))
    return f"{SDPA.name}-{chosen.name.removesuffix('_ATTENTION').lower()}"


# -- with the mass of each key, for the methods that keep or drop keys by it ------------------------------------------
def _attend_with_mass(q: Tensor, entries: Entries, causal: bool, visible: Tensor | None, mass: bool) -> Outputs:
    return joined([written_out(q[part.rows], part.k, part.v, causal) for part in entries.parts()])


def joined(results: list[tuple[Tensor, Tensor]]) -> Outputs:
    """Join outputs and masses of runs of rows; masses of shorter rows end in zeros."""
    if len(results) == 1:
        return results[0]
    longest = max(mass.size(-1) for _, mass in results)
    return torch.cat([out for out, _ in results]), torch.cat([F.pad(mass, (0, longest - mass.size(-1))) for _, mass in results])


def written_out(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Compute attention in plain operations, since torch's fused kernels do not return probabilities.

    Returns the output in the shape of ``q`` (rows, heads, tokens, head_dim), and each key's weight summed over queries and over the heads
    that share it, (rows, kv_heads, keys) fp32.
    """
    tokens, keys = q.size(2), k.size(2)
    scores = fold(q, k.size(1)).float() @ k.float().mT * q.size(-1) ** -0.5
    if causal and tokens > 1:
        hidden = torch.ones(tokens, keys, dtype=torch.bool, device=q.device).triu(1 + max(0, keys - tokens))
        scores = scores.masked_fill(hidden.repeat(q.size(1) // k.size(1), 1), float("-inf"))
    weights = scores.softmax(-1)
    real = weights.unflatten(2, (-1, tokens))[:, :, :, :keys] if causal else weights
    return (weights.to(v.dtype) @ v).reshape(q.shape), real.flatten(2, -2).sum(2)


def _unwritten(query: Query) -> str:
    if not query.mass:
        return "it writes out all scores, for the attention mass alone"
    return "it has no masks" if query.masked else "its rows have one length for all heads" if query.lengths == HEADS else ""


WRITTEN_OUT = Kernel("matmul-with-mass", _unwritten, _attend_with_mass, fused=False)
