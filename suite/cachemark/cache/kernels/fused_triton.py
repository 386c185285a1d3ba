"""Triton kernels of fused elementwise operations, rounded where torch rounds."""

from __future__ import annotations

import triton
import triton.language as tl

GOLDEN = tl.constexpr(-7046029254386353131)  # of random_streams
FIRST, SECOND = tl.constexpr(-4658895280553007687), tl.constexpr(-7723592293110705685)
BETWEEN = tl.constexpr((1 << 34) - 1), tl.constexpr((1 << 37) - 1), tl.constexpr((1 << 33) - 1), tl.constexpr((1 << 32) - 1)


FORBIDDEN = tl.constexpr(-1e9)  # of models.lined


@triton.jit
def _flipped(bits):  # type: ignore[no-untyped-def]
    """Map bits of fp32 to integers of the same order, NaN last, and back."""
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


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
def _normed(x, mean, scale, weight, bias):  # type: ignore[no-untyped-def]
    """Return a part of a head's channels after LayerNorm, weight and bias, each rounded."""
    x = (((x.to(tl.float32) - mean) * scale).to(x.dtype).to(tl.float32) * weight.to(tl.float32)).to(x.dtype)
    return (x.to(tl.float32) + bias.to(tl.float32)).to(x.dtype)


@triton.jit
def _turned(  # type: ignore[no-untyped-def]
    at, turns_at, weight_at, bias_at, channel, HEAD_DIM: tl.constexpr, TURNED: tl.constexpr, HALVES: tl.constexpr, NORM: tl.constexpr,
):
    """Load a head's channels, after their norm if they have one, and rotate the first ``TURNED``.

    A channel's partner is its neighbor or, with ``HALVES``, half of the channels away.
    """
    inside, turns = channel < HEAD_DIM, channel < TURNED
    if HALVES:
        first, pair = channel < TURNED // 2, channel % (TURNED // 2)
        partner = tl.where(first, channel + TURNED // 2, channel - TURNED // 2)
    else:
        first, pair, partner = channel % 2 == 0, channel // 2, channel ^ 1
    x, other = tl.load(at + channel, mask=inside, other=0.0), tl.load(at + partner, mask=turns, other=0.0)
    if NORM:
        mean = tl.sum(x.to(tl.float32), 0) / HEAD_DIM
        apart = tl.where(inside, x.to(tl.float32) - mean, 0.0)
        scale = tl.rsqrt(tl.sum(apart * apart, 0) / HEAD_DIM + 1e-5)
        weight, bias = tl.load(weight_at + channel, mask=inside, other=0.0), tl.load(bias_at + channel, mask=inside, other=0.0)
        x = _normed(x, mean, scale, weight, bias)
        weight, bias = tl.load(weight_at + partner, mask=turns, other=0.0), tl.load(bias_at + partner, mask=turns, other=0.0)
        other = _normed(other, mean, scale, weight, bias)
    cos = tl.load(turns_at + 2 * pair, mask=turns, other=1.0)
    sin = tl.load(turns_at + 2 * pair + 1, mask=turns, other=0.0)
    away = other.to(tl.float32) * sin
    return (x.to(tl.float32) * cos + tl.where(first, -away, away)).to(x.dtype)


@triton.jit
def rotate_append(  # type: ignore[no-untyped-def]
    qkv_at, turns_at, q_at, k_at, v_at, q_weight_at, q_bias_at, k_weight_at, k_bias_at, k_row, k_head, k_token, v_row, v_head, v_token,
    tokens, turns_row, heads, groups,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, TURNED: tl.constexpr, HALVES: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Norm and rotate queries and keys, and store keys and values at their places.

    ``qkv`` (rows, tokens, heads + 2·groups, HEAD_DIM); ``turns`` (tokens, TURNED / 2, 2) fp32; ``q`` (rows, heads, tokens, HEAD_DIM).
    """
    row, token, head = tl.program_id(0).to(tl.int64) // tokens, tl.program_id(0) % tokens, tl.program_id(1)
    channel = tl.arange(0, WIDTH)
    inside = channel < HEAD_DIM
    at = qkv_at + ((row * tokens + token) * (heads + 2 * groups) + head) * HEAD_DIM
    turns_at += row * turns_row + token * TURNED
    if head < heads:
        x = _turned(at, turns_at, q_weight_at, q_bias_at, channel, HEAD_DIM, TURNED, HALVES, NORM)
        tl.store(q_at + ((row * heads + head) * tokens + token) * HEAD_DIM + channel, x, mask=inside)
    elif head < heads + groups:
        x = _turned(at, turns_at, k_weight_at, k_bias_at, channel, HEAD_DIM, TURNED, HALVES, NORM)
        tl.store(k_at + row * k_row + (head - heads) * k_head + token * k_token + channel, x, mask=inside)
    else:
        x = tl.load(at + channel, mask=inside, other=0.0)
        tl.store(v_at + row * v_row + (head - heads - groups) * v_head + token * v_token + channel, x, mask=inside)


@triton.jit(do_not_specialize=["live"])
def attend_turned(  # type: ignore[no-untyped-def]
    qkv_at, turns_at, k_at, v_at, q_at, out_at, q_weight_at, q_bias_at, k_weight_at, k_bias_at, lengths_at, turns_row, heads, capacity,
    live, scale,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, TURNED: tl.constexpr, HALVES: tl.constexpr, NORM: tl.constexpr, KEYS: tl.constexpr,
    ASKED: tl.constexpr, LENGTHS: tl.constexpr,
):  # fmt: skip
    """Rotate a token's query and key, append key and value after ``live`` entries, and attend to all; each head has its own keys.

    ``k``, ``v`` (rows, heads, capacity, HEAD_DIM). With ``LENGTHS`` each row has its own number of entries. The query is stored if it is
    ``ASKED`` for. ``scale`` includes log2 e.
    """
    row, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    if LENGTHS:
        live = tl.load(lengths_at + row)
    channel = tl.arange(0, WIDTH)
    inside = channel < HEAD_DIM
    qkv_at += (row * 3 * heads + head) * HEAD_DIM
    turns_at += row * turns_row
    start = tl.program_id(0).to(tl.int64) * capacity * HEAD_DIM
    k_at, v_at = k_at + start, v_at + start
    place = tl.program_id(0).to(tl.int64) * HEAD_DIM + channel
    q = _turned(qkv_at, turns_at, q_weight_at, q_bias_at, channel, HEAD_DIM, TURNED, HALVES, NORM)
    if ASKED:
        tl.store(q_at + place, q, mask=inside)
    q = q.to(tl.float32) * scale
    k = _turned(qkv_at + heads * HEAD_DIM, turns_at, k_weight_at, k_bias_at, channel, HEAD_DIM, TURNED, HALVES, NORM)
    v = tl.load(qkv_at + 2 * heads * HEAD_DIM + channel, mask=inside, other=0.0)
    tl.store(k_at + live * HEAD_DIM + channel, k, mask=inside)
    tl.store(v_at + live * HEAD_DIM + channel, v, mask=inside)
    top, total, out = tl.sum(k.to(tl.float32) * q, 0), 1.0, v.to(tl.float32)
    for at in range(0, live, KEYS):
        key = at + tl.arange(0, KEYS)
        shown = (key < live)[:, None] & inside[None, :]
        keys = tl.load(k_at + key[:, None] * HEAD_DIM + channel[None, :], mask=shown, other=0.0).to(tl.float32)
        values = tl.load(v_at + key[:, None] * HEAD_DIM + channel[None, :], mask=shown, other=0.0).to(tl.float32)
        score = tl.where(key < live, tl.sum(keys * q[None, :], 1), float("-inf"))
        higher = tl.maximum(top, tl.max(score, 0))
        weight, shrink = tl.exp2(score - higher), tl.exp2(top - higher)
        total = total * shrink + tl.sum(weight, 0)
        out = out * shrink + tl.sum(weight[:, None] * values, 0)
        top = higher
    tl.store(out_at + place, (out / total).to(out_at.dtype.element_ty), mask=inside)


@triton.jit
def _mixed(x):  # type: ignore[no-untyped-def]
    """Mix 64 bits as random_streams does."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * FIRST
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * SECOND
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def _key(seed, purpose, place):  # type: ignore[no-untyped-def]
    """Return the key of a sample, a purpose and a position, for branch 0 and inner step 0."""
    key = _mixed(seed + GOLDEN)
    key = _mixed((key ^ purpose) + GOLDEN)
    key = _mixed(key + GOLDEN)
    key = _mixed((key ^ place) + GOLDEN)
    return _mixed(key + GOLDEN)


@triton.jit
def _uniform(key, entry):  # type: ignore[no-untyped-def]
    """Return the numbers of some entries of a key, in (0, 1)."""
    drawn = (_mixed(key + (entry + 1).to(tl.int64) * GOLDEN) >> 32) & 0xFFFFFFFF
    return ((drawn >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07


@triton.jit
def numbers(seeds_at, places_at, out_at, purpose, count, GUMBEL: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store ``count`` uniform numbers, or Gumbel's, for each pair of a seed and a position."""
    row, entry = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    drawn = _uniform(_key(tl.load(seeds_at + row), purpose, tl.load(places_at + row)), entry)
    if GUMBEL:
        drawn = -tl.log(-tl.log(drawn))
    tl.store(out_at + row * count + entry, drawn, mask=entry < count)


@triton.jit
def sample(  # type: ignore[no-untyped-def]
    logits_at, seeds_at, place_at, scaled_at, out_at, vocab, scale, temperature, purpose, batch, top_k, first, codes, line_end, line,
    GUIDED: tl.constexpr, TOP_K: tl.constexpr, LINED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Draw a token by guidance, temperature, top-k, Gumbel noise and argmax; the first of equal sums wins.

    ``LINED``: only ``line_end`` may end a ``line``, and only the ``codes`` from ``first`` on stand elsewhere.
    """
    row = tl.program_id(0).to(tl.int64)
    place = tl.load(place_at)
    key = _key(tl.load(seeds_at + row), purpose, place)
    scaled_at += row * vocab
    for at in range(0, vocab, BLOCK):
        entry = at + tl.arange(0, BLOCK)
        inside = entry < vocab
        logit = tl.load(logits_at + row * vocab + entry, mask=inside, other=float("-inf"))
        if GUIDED:
            free = tl.load(logits_at + (row + batch) * vocab + entry, mask=inside, other=0.0)
            logit = free + (logit - free) * scale
        if LINED:
            of_codes = (entry >= first) & (entry < first + codes)
            allowed = tl.where((place + 1) % line == 0, entry == line_end, of_codes)
            logit = tl.where(allowed, logit, FORBIDDEN)
        tl.store(scaled_at + entry, tl.div_rn(logit, temperature), mask=inside)
    tl.debug_barrier()
    least = float("-inf")
    if TOP_K:  # the k-th largest, by bisection over integers of the order of fp32
        low, high = tl.full([], -(2**31), tl.int64), tl.full([], 2**31 - 1, tl.int64)
        for _ in range(32):
            middle = (low + high + 1) >> 1
            count = 0
            for at in range(0, vocab, BLOCK):
                entry = at + tl.arange(0, BLOCK)
                scaled = tl.load(scaled_at + entry, mask=entry < vocab, other=0.0)
                count += tl.sum(((_flipped(scaled.to(tl.int32, bitcast=True)) >= middle) & (entry < vocab)).to(tl.int32), 0)
            low, high = tl.where(count >= top_k, middle, low), tl.where(count >= top_k, high, middle - 1)
        least = _flipped(low.to(tl.int32)).to(tl.float32, bitcast=True)
    best, chosen = float("-inf"), tl.zeros([], tl.int64)
    for at in range(0, vocab, BLOCK):
        entry = at + tl.arange(0, BLOCK)
        scaled = tl.load(scaled_at + entry, mask=entry < vocab, other=float("-inf"))
        noise = -tl.log(-tl.log(_uniform(key, entry)))
        noisy = tl.where((entry < vocab) & (scaled >= least), scaled + noise, float("-inf"))
        top = tl.max(noisy, 0)
        if top > best:
            best = top
            chosen = tl.min(tl.where(noisy == top, entry, vocab), 0).to(tl.int64)
    tl.store(out_at + row, chosen)
