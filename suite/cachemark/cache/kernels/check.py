"""The check of our own kernels on a device before their first use.

A small call of the same kind (dtype, head width, group, codec, lengths) is computed and compared with fp64. It is part of the first
generation of a case, which is a warm-up.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..codec import GROUP, Parts, levels, pack
from ..codecs import CODECS
from .plain import sdpa
from .record import HEADS, ONE, Entries, Kernel, Part, Query, Ranges, Stored, fold

ROWS, KEYS, QUERIES = 3, 70, 20  # odd sizes: more keys than a block, and not a multiple of one
SHORTER = (70, 5, 37)  # keys of each row, where these differ
WORST = 4  # times the error of torch's attention on the same numbers


def fault(kernel: Kernel, query: Query) -> str:
    """Return why a kernel cannot be trusted with calls like ``query`` on its device, or ""."""
    draw, tokens = torch.Generator(query.device).manual_seed(0), min(query.tokens, QUERIES)
    shape = (2, ROWS, query.kv_heads, KEYS, query.head_dim)
    try:
        k, v = torch.randn(shape, generator=draw, device=query.device).to(query.dtype)
        q = torch.randn(ROWS, query.heads, tokens, query.head_dim, generator=draw, device=query.device).to(query.dtype)
        stored, k, v = _stored(k, v, query)
        lengths = [KEYS] * ROWS if query.lengths in (ONE, HEADS) else list(SHORTER)
        parts = [Part(slice(row, row + 1), None, k[row : row + 1, :, :n], v[row : row + 1, :, :n]) for row, n in enumerate(lengths)]
        if query.lengths == ONE:
            parts = [Part(slice(None), None, k, v)]
        elif query.lengths == HEADS:
            parts = [Part(slice(None), list(range(query.kv_heads)), k, v)]
        rounded = [part._replace(k=part.k.to(query.dtype), v=part.v.to(query.dtype)) for part in parts]
        entries = Entries(query.kv_heads, lambda: rounded, lambda: stored, CODECS[query.codec], query.lengths)
        out, mass = kernel.run(q, entries, query.causal, None, query.mass)
        return _deviation(q, parts, out, mass, causal=query.causal)
    except Exception as error:  # whatever a compiler or driver raises
        return f"it fails on this device: {(str(error).strip() or type(error).__name__).splitlines()[0][:200]}"


def _stored(k: Tensor, v: Tensor, query: Query) -> tuple[Stored, Tensor, Tensor]:
    """Return keys and values as a codec stores them, and what they are decoded to, in fp64."""
    codec = CODECS[query.codec]
    values, lengths, ranges = codec.encode(v), None, None
    if query.lengths not in (ONE, HEADS):
        lengths = torch.tensor(SHORTER, dtype=torch.int32, device=k.device)[:, None]
    keys: Parts
    if codec.grouped:
        keys, ranges, k = _shared(k)
    else:
        keys = codec.encode(k)
        k = codec.decode(keys, torch.float64)
    stored = Stored(keys, values, KEYS, lengths, None, ranges)
    if query.lengths == HEADS:
        starts = torch.arange(0, k.size(1) * KEYS, KEYS, dtype=torch.int32, device=k.device)[None]
        flat_k, flat_v = (tuple(part.flatten(1, 2)[:, None] for part in parts) for parts in (keys, values))
        stored = Stored(flat_k, flat_v, KEYS, torch.full_like(starts, KEYS), starts)
    return stored, k.double(), codec.decode(values, torch.float64).double()


def _shared(k: Tensor) -> tuple[Parts, Ranges, Tensor]:
    """Return keys in groups of tokens that share ranges; the last group is still being filled."""
    full = KEYS // GROUP * GROUP
    codes, step, least = levels(k[:, :, :full].unflatten(2, (-1, GROUP)), -2)
    old = (codes.double() * step.double() + least.double()).flatten(2, 3)
    packed = torch.zeros(*k.shape[:3], k.size(-1) // 2, dtype=torch.uint8, device=k.device)
    packed[:, :, :full] = pack(codes).flatten(2, 3)
    newest = torch.zeros(*k.shape[:2], GROUP, k.size(-1), dtype=k.dtype, device=k.device)
    newest[:, :, : KEYS - full] = k[:, :, full:]
    arrival = torch.arange(KEYS, dtype=torch.int16, device=k.device).expand(k.shape[:3])[..., None].contiguous()
    ranges = Ranges(step.squeeze(-2), least.squeeze(-2), newest, torch.full((ROWS,), full + 1, device=k.device))
    return (packed, arrival), ranges, torch.cat((old, k[:, :, full:].double()), 2)


def _deviation(q: Tensor, parts: list[Part], out: Tensor, mass: Tensor | None, *, causal: bool) -> str:
    """Compare with fp64, and with the error of torch's attention on the same numbers."""
    worst = own = heaviest = 0.0
    for part in parts:
        exact = sdpa(q[part.rows].double(), part.k, part.v, causal)
        plain = sdpa(q[part.rows], part.k.to(q.dtype), part.v.to(q.dtype), causal)
        worst = max(worst, float((out[part.rows].double() - exact).abs().max()))
        own = max(own, float((plain.double() - exact).abs().max()))
        if mass is not None:
            weights = (fold(q[part.rows].double(), part.k.size(1)) @ part.k.mT * q.size(-1) ** -0.5).softmax(-1).sum(2)
            heaviest = max(heaviest, float((mass[part.rows, :, : part.k.size(2)].double() - weights).abs().max()))
    limit = WORST * max(own, 4 * torch.finfo(q.dtype).eps)
    if worst <= limit and heaviest <= limit * q.size(1) * q.size(2):  # not if NaN
        return ""
    return f"it deviates from fp64 by {max(worst, heaviest):.2g} on this device, torch's attention by {own:.2g}"
