"""Triton kernel of attention that also returns the mass of each key."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

QUERIES, KEYS = 16, 64  # of a block; 16 is the least that the matrix units take


@triton.jit
def _kernel(  # type: ignore[no-untyped-def]
    q_at, k_at, v_at, out_at, mass_at,
    q_row, q_head, q_token, k_row, k_head, k_token, v_row, v_head, v_token,
    heads, tokens, keys, width, scale,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute one block of queries: an online softmax over all keys, then a second pass for the mass."""
    row, head = (tl.program_id(0) // heads).to(tl.int64), (tl.program_id(0) % heads).to(tl.int64)
    token, channel = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES), tl.arange(0, WIDTH)
    asking, inside = token < tokens, channel < width
    place = token[:, None] * q_token + channel[None, :]
    q = tl.load(q_at + row * q_row + head * q_head + place, mask=asking[:, None] & inside[None, :], other=0.0)
    k_at += row * k_row + head * k_head
    v_at += row * v_row + head * v_head
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    out = tl.zeros([QUERIES, WIDTH], tl.float32)
    for start in range(0, keys, KEYS):
        key = start + tl.arange(0, KEYS)
        live = key < keys
        k = tl.load(k_at + key[:, None] * k_token + channel[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        v = tl.load(v_at + key[:, None] * v_token + channel[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        score = tl.where(live[None, :], tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        weight, shrink = tl.exp(score - higher[:, None]), tl.exp(top - higher)
        total = total * shrink + tl.sum(weight, 1)
        out = out * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        top = higher
    out_at += tl.program_id(0).to(tl.int64) * tokens * width
    attended = (out / total[:, None]).to(out_at.dtype.element_ty)
    tl.store(out_at + token[:, None] * width + channel[None, :], attended, mask=asking[:, None] & inside[None, :])
    mass_at += (tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * keys
    for start in range(0, keys, KEYS):
        key = start + tl.arange(0, KEYS)
        live = key < keys
        k = tl.load(k_at + key[:, None] * k_token + channel[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        weight = tl.where(asking[:, None] & live[None, :], tl.exp(score - top[:, None]) / total[:, None], 0.0)
        tl.store(mass_at + key, tl.sum(weight, 0), mask=live)


def attention_with_mass(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return softmax(q·kᵀ/√d)·v in the shape of ``q``, and each key's weight summed over tokens.

    ``q`` (rows, kv_heads, tokens, head_dim); ``k``, ``v`` (rows, kv_heads, keys, head_dim) with contiguous channels; mass (rows, kv_heads,
    keys) fp32. Each block of queries writes its own sum, so the result is deterministic.
    """
    assert k.stride(-1) == v.stride(-1) == 1, "channels are not contiguous"
    q = q.contiguous()
    rows, heads, tokens, width = q.shape
    keys, blocks = k.size(2), triton.cdiv(tokens, QUERIES)
    out = torch.empty_like(q)
    mass = torch.empty(rows, heads, blocks, keys, dtype=torch.float32, device=q.device)
    _kernel[rows * heads, blocks](
        q, k, v, out, mass, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], heads, tokens, keys, width, width**-0.5,
        QUERIES=QUERIES, KEYS=KEYS, WIDTH=max(16, triton.next_power_of_2(width)),
    )  # fmt: skip
    return out, mass.sum(2)
