"""Triton kernels of next-scale and masked models: norms with gates and modulation, unit queries and keys, and MAR's reverse step.

They round where torch rounds.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gate_norm(  # type: ignore[no-untyped-def]
    x_at, branch_at, gate_at, scale_at, shift_at, weight_at, bias_at, sum_at, out_at, width, tokens, gate_row, gate_token, scale_row,
    scale_token, shift_row, shift_token, eps, ADDS: tl.constexpr, GATED: tl.constexpr, NORMS: tl.constexpr, AFFINE: tl.constexpr,
    PLUS: tl.constexpr, ROUNDS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store x + gate·branch, and its layer norm times the scale plus the shift.

    ``AFFINE``: the norm has a weight and a bias of its own. ``PLUS``: the scale is stored without its 1. ``ROUNDS``: norm and scale are
    rounded to the dtype of x before they are multiplied.
    """
    place, channel = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    row, token, inside = place // tokens, place % tokens, channel < width
    kind = x_at.dtype.element_ty
    total = tl.load(x_at + place * width + channel, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        branch = tl.load(branch_at + place * width + channel, mask=inside, other=0.0).to(tl.float32)
        if GATED:
            branch *= tl.load(gate_at + row * gate_row + token * gate_token + channel, mask=inside, other=0.0).to(tl.float32)
        total = (total + branch).to(kind)
        tl.store(sum_at + place * width + channel, total, mask=inside)
        total = total.to(tl.float32)
    if NORMS:
        apart = tl.where(inside, total - tl.sum(total, 0) / width, 0.0)
        normed = apart * tl.rsqrt(tl.sum(apart * apart, 0) / width + eps)
        scale = tl.load(scale_at + row * scale_row + token * scale_token + channel, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(shift_at + row * shift_row + token * shift_token + channel, mask=inside, other=0.0).to(tl.float32)
        if AFFINE:
            normed = normed * tl.load(weight_at + channel, mask=inside, other=0.0).to(tl.float32)
            normed += tl.load(bias_at + channel, mask=inside, other=0.0).to(tl.float32)
        if PLUS:
            scale += 1
        if ROUNDS:
            normed, scale = normed.to(kind).to(tl.float32), scale.to(kind).to(tl.float32)
        tl.store(out_at + place * width + channel, (shift + normed * scale).to(out_at.dtype.element_ty), mask=inside)


@triton.jit
def unit_append(  # type: ignore[no-untyped-def]
    qkv_at, steep_at, turns_at, q_at, k_at, v_at, k_row, k_head, k_token, v_row, v_head, v_token, tokens, heads, steepest, softness,
    TURNS: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Make queries and keys unit vectors, multiply queries by their head's steepness, rotate both, and store all at their places.

    ``qkv`` (rows, tokens, 3, heads, 2·PAIRS); ``steep`` (heads,), a logarithm; ``turns`` (tokens, PAIRS, 2) fp32; ``q`` (rows, heads,
    tokens, 2·PAIRS). A program has one token's queries, keys or values.
    """
    place, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, token = place // tokens, place % tokens
    head, channel = tl.arange(0, HEADS)[:, None], tl.arange(0, 2 * PADDED)[None, :]
    inside = (head < heads) & (channel < 2 * PAIRS)
    kind = qkv_at.dtype.element_ty
    x = tl.load(qkv_at + ((place * 3 + part) * heads + head) * 2 * PAIRS + channel, mask=inside, other=0.0)
    if part < 2:
        wide = x.to(tl.float32)
        factor = 1 / tl.maximum(tl.sqrt(tl.sum(wide * wide, 1)), 1e-12)
        if part == 0:
            steep = tl.load(steep_at + tl.arange(0, HEADS), mask=tl.arange(0, HEADS) < heads, other=0.0).to(tl.float32)
            factor *= tl.exp(tl.minimum(steep, steepest)) * softness
        x = (wide * factor[:, None]).to(kind)
        if TURNS:
            first, second = tl.split(tl.reshape(x.to(tl.float32), (HEADS, PADDED, 2)))
            pair = tl.arange(0, PADDED)
            turn = turns_at + (token * PAIRS + pair) * 2
            cos, sin = tl.load(turn, mask=pair < PAIRS, other=0.0)[None], tl.load(turn + 1, mask=pair < PAIRS, other=0.0)[None]
            x = tl.reshape(tl.join(first * cos - second * sin, first * sin + second * cos), (HEADS, 2 * PADDED)).to(kind)
    if part == 0:
        tl.store(q_at + ((row * heads + head) * tokens + token) * 2 * PAIRS + channel, x, mask=inside)
    elif part == 1:
        tl.store(k_at + row * k_row + head * k_head + token * k_token + channel, x, mask=inside)
    else:
        tl.store(v_at + row * v_row + head * v_head + token * v_token + channel, x, mask=inside)


@triton.jit
def add_silu(x_at, time_at, out_at, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store silu(time + x), where all tokens share the time."""
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, place = channel < width, tl.program_id(0).to(tl.int64) * width + channel
    kind = x_at.dtype.element_ty
    x = tl.load(x_at + place, mask=inside, other=0.0).to(tl.float32)
    total = (x + tl.load(time_at + channel, mask=inside, other=0.0).to(tl.float32)).to(kind).to(tl.float32)
    tl.store(out_at + place, (total / (1 + tl.exp(-total))).to(kind), mask=inside)


@triton.jit
def denoise(  # type: ignore[no-untyped-def]
    out_at, x_at, noise_at, guidance_at, next_at, fed_at, count, channels, keep, drop, base, slope, GUIDED: tl.constexpr,
    NOISY: tl.constexpr, COPIES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Take a reverse step from the network's output, and store the next x, also ``COPIES`` times as the network reads it.

    ``out`` (rows, tokens, 2·channels): ε, then variance logits; the second half of the rows is unconditional if ``GUIDED``.
    """
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < count
    place = entry // channels * 2 * channels + entry % channels
    eps = tl.load(out_at + place, mask=inside, other=0.0).to(tl.float32)
    if GUIDED:
        scale, free = tl.load(guidance_at), tl.load(out_at + 2 * count + place, mask=inside, other=0.0).to(tl.float32)
        eps = tl.where(scale < 0.5, free + scale * (eps - free), eps - (eps - free) * (1 - scale))
    x = keep * tl.load(x_at + entry, mask=inside, other=0.0) - drop * eps
    if NOISY:
        v = tl.load(out_at + place + channels, mask=inside, other=0.0).to(tl.float32)
        x += tl.exp(slope * v + base) * tl.load(noise_at + entry, mask=inside, other=0.0)
    tl.store(next_at + entry, x, mask=inside)
    for copy in tl.static_range(COPIES):
        tl.store(fed_at + copy * count + entry, x.to(fed_at.dtype.element_ty), mask=inside)
