"""Triton kernels of fused elementwise operations, rounded where torch rounds."""

from __future__ import annotations

import triton
import triton.language as tl

GOLDEN = tl.constexpr(-7046029254386353131)  # of random_streams
FIRST, SECOND = tl.constexpr(-4658895280553007687), tl.constexpr(-7723592293110705685)
BETWEEN = tl.constexpr((1 << 34) - 1), tl.constexpr((1 << 37) - 1), tl.constexpr((1 << 33) - 1), tl.constexpr((1 << 32) - 1)


@triton.jit
def add_norm(x_at, y_at, weight_at, sum_at, out_at, width, eps, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store x + y, and its RMS norm times the weight."""
    row, channel = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    inside = channel < width
    place = row * width + channel
    kind = sum_at.dtype.element_ty
    x, y = tl.load(x_at + place, mask=inside, other=0.0).to(tl.float32), tl.load(y_at + place, mask=inside, other=0.0).to(tl.float32)
    total = (x + y).to(kind)
    tl.store(sum_at + place, total, mask=inside)
    total = total.to(tl.float32)
    normed = (total * tl.rsqrt(tl.sum(total * total, 0) / width + eps)).to(kind).to(tl.float32)
    weight = tl.load(weight_at + channel, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_at + place, (normed * weight).to(kind), mask=inside)


@triton.jit
def silu_mul(both_at, out_at, hidden, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store silu(gate)·up, where ``both`` has gate and up of a token side by side."""
    row, channel = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < hidden
    place = row * 2 * hidden + channel
    gate, up = tl.load(both_at + place, mask=inside, other=0.0), tl.load(both_at + place + hidden, mask=inside, other=0.0).to(tl.float32)
    wide = gate.to(tl.float32)
    opened = (wide / (1 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    tl.store(out_at + row * hidden + channel, (opened * up).to(gate.dtype), mask=inside)


@triton.jit
def rotate_append(  # type: ignore[no-untyped-def]
    qkv_at, turns_at, q_at, k_at, v_at, k_row, k_head, k_token, v_row, v_head, v_token, tokens, turns_row, heads, groups,
    PAIRS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Rotate channel pairs of queries and keys, and store keys and values at their places.

    ``qkv`` (rows, tokens, heads + 2·groups, 2·PAIRS); ``turns`` (tokens, PAIRS, 2) fp32; ``q`` (rows, heads, tokens, 2·PAIRS).
    """
    row, token, head = tl.program_id(0).to(tl.int64) // tokens, tl.program_id(0) % tokens, tl.program_id(1)
    pair = tl.arange(0, PADDED)[:, None]
    side = tl.arange(0, 2)[None, :]
    inside = (pair < PAIRS) & (side < 2)
    channel = pair * 2 + side
    x = tl.load(qkv_at + ((row * tokens + token) * (heads + 2 * groups) + head) * 2 * PAIRS + channel, mask=inside, other=0.0)
    if head < heads + groups:
        first, second = tl.split(x.to(tl.float32))
        turn = tl.load(turns_at + row * turns_row + token * 2 * PAIRS + channel, mask=inside, other=0.0)
        cos, sin = tl.split(turn)
        x = tl.join(first * cos - second * sin, first * sin + second * cos).to(x.dtype)
    if head < heads:
        tl.store(q_at + ((row * heads + head) * tokens + token) * 2 * PAIRS + channel, x, mask=inside)
    elif head < heads + groups:
        tl.store(k_at + row * k_row + (head - heads) * k_head + token * k_token + channel, x, mask=inside)
    else:
        tl.store(v_at + row * v_row + (head - heads - groups) * v_head + token * v_token + channel, x, mask=inside)


@triton.jit
def _mixed(x):  # type: ignore[no-untyped-def]
    """Mix 64 bits as random_streams does."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * FIRST
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * SECOND
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def sample(  # type: ignore[no-untyped-def]
    logits_at, seeds_at, place_at, out_at, vocab, scale, temperature, purpose, batch, GUIDED: tl.constexpr, BLOCK: tl.constexpr,
):
    """Draw a token by guidance, temperature, Gumbel noise and argmax; the first of equal sums wins."""
    row = tl.program_id(0).to(tl.int64)
    key = _mixed(tl.load(seeds_at + row) + GOLDEN)
    key = _mixed((key ^ purpose) + GOLDEN)
    key = _mixed((key ^ 0) + GOLDEN)  # the branch
    key = _mixed((key ^ tl.load(place_at)) + GOLDEN)
    key = _mixed((key ^ 0) + GOLDEN)  # the inner step
    best, chosen = float("-inf"), tl.zeros([], tl.int64)
    for at in range(0, vocab, BLOCK):
        entry = at + tl.arange(0, BLOCK)
        inside = entry < vocab
        logit = tl.load(logits_at + row * vocab + entry, mask=inside, other=float("-inf"))
        if GUIDED:
            free = tl.load(logits_at + (row + batch) * vocab + entry, mask=inside, other=0.0)
            logit = free + (logit - free) * scale
        drawn = (_mixed(key + (entry + 1).to(tl.int64) * GOLDEN) >> 32) & 0xFFFFFFFF
        uniform = ((drawn >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07
        noisy = tl.where(inside, tl.div_rn(logit, temperature) + -tl.log(-tl.log(uniform)), float("-inf"))
        top = tl.max(noisy, 0)
        if top > best:
            best = top
            chosen = tl.min(tl.where(noisy == top, entry, vocab), 0).to(tl.int64)
    tl.store(out_at + row, chosen)
