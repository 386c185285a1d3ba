"""Triton kernels of attention of one query per row and head: one launch over the live entries of a layer cache.

A program reads the keys and values of one row and K/V head once, in blocks, with an online softmax in fp32. It is bound by reading them,
so nothing is written but the output. The size of a block depends on head width and codec, never on batch or lengths, so a row's result is
the same in any batch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .record import Stored

LOG2_E = 1.4426950408889634
STAGES = tl.constexpr(3)  # blocks of keys on their way where loads are asynchronous
GROUP_SIZE = tl.constexpr(32)  # tokens of a key's channel that share a range
NATIVE, INT8, FP8 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
CODES = {"native": 0, "int8": 1, "fp8": 2}


@triton.jit
def _number(code, CODEC: tl.constexpr):  # type: ignore[no-untyped-def]
    """Decode stored elements to fp32, without the scale of their vector."""
    if CODEC == FP8:  # e4m3 has the bits of fp16 with a shorter exponent and mantissa; exact, subnormal numbers too
        bits = ((code.to(tl.uint16) & 0x80) << 8) | ((code.to(tl.uint16) & 0x7F) << 7)
        return bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return code.to(tl.float32)


@triton.jit
def _bounds(lengths_at, starts_at, row, head, keys, length_row, length_head, LENGTHS: tl.constexpr, STARTS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the number of keys of a row and head, and the place of the first."""
    length, start = keys, 0
    if LENGTHS:
        length = tl.load(lengths_at + row * length_row + head * length_head)
    if STARTS:
        start = tl.load(starts_at + head)
    return length, start


@triton.jit
def _softened(score, top, total):  # type: ignore[no-untyped-def]
    """Take a block of scores into an online softmax: its weights, the factor of earlier ones, and the new sum and maximum."""
    higher = tl.maximum(top, tl.max(score, 0))
    weight, shrink = tl.exp2(score - higher), tl.exp2(top - higher)
    return weight, shrink, total * shrink + tl.sum(weight, 0), higher


@triton.jit
def _weights(mass_at, top, total, length, longest, KEYS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Turn the scores of one query, which the program has stored, into weights; zeros after ``length``."""
    tl.debug_barrier()
    for at in range(0, longest, KEYS):
        key = at + tl.arange(0, KEYS)
        score = tl.load(mass_at + key, mask=key < length, other=float("-inf"))
        tl.store(mass_at + key, tl.exp2(score - top) / total, mask=key < longest)


@triton.jit
def _weights_of_group(mass_at, top, total, length, longest, query, GROUP: tl.constexpr, KEYS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Do the same for the queries that share a key."""
    tl.debug_barrier()
    for at in range(0, longest, KEYS):
        key = at + tl.arange(0, KEYS)
        place = mass_at + query[:, None] * longest + key[None, :]
        stored = (query < GROUP)[:, None] & (key < length)[None, :]
        weight = tl.exp2(tl.load(place, mask=stored, other=float("-inf")) - top[:, None]) / total[:, None]
        tl.store(place, weight, mask=(query < GROUP)[:, None] & (key < longest)[None, :])


@triton.jit
def vectors(  # type: ignore[no-untyped-def]
    q_at, k_at, v_at, k_scale_at, v_scale_at, out_at, mass_at, lengths_at, starts_at,
    q_row, q_head, k_row, k_head, k_token, v_row, v_head, v_token, ks_row, ks_head, ks_token, vs_row, vs_head, vs_token,
    length_row, length_head, kv_heads, keys, longest, scale,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, HEAD_DIM: tl.constexpr, CODEC: tl.constexpr,
    MASS: tl.constexpr, LENGTHS: tl.constexpr, STARTS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Attend by the one query head of each K/V head.

    Vectors are stored as they are, or as codes with one scale each.

    ``scale`` includes log2 e.
    """
    row, head = (tl.program_id(0) // kv_heads).to(tl.int64), (tl.program_id(0) % kv_heads).to(tl.int64)
    length, start = _bounds(lengths_at, starts_at, row, head, keys, length_row, length_head, LENGTHS, STARTS)
    channel = tl.arange(0, WIDTH)
    inside = channel < HEAD_DIM
    k_at, k_token = k_at + (row * k_row + head * k_head + start * k_token) * EVEN, k_token * EVEN
    v_at, v_token = v_at + (row * v_row + head * v_head + start * v_token) * EVEN, v_token * EVEN
    k_scale_at += row * ks_row + head * ks_head + start * ks_token
    v_scale_at += row * vs_row + head * vs_head + start * vs_token
    q = tl.load(q_at + row * q_row + head * q_head + channel, mask=inside, other=0.0).to(tl.float32) * scale
    mass_at += (row * kv_heads + head) * longest
    top, total, out = float("-inf"), 0.0, tl.zeros([WIDTH], tl.float32)
    for at in range(0, length, KEYS):
        key = at + tl.arange(0, KEYS)
        live = key < length
        shown = live[:, None] & inside[None, :]
        k = _number(tl.load(k_at + key[:, None] * k_token + channel[None, :], mask=shown, other=0), CODEC)
        v = _number(tl.load(v_at + key[:, None] * v_token + channel[None, :], mask=shown, other=0), CODEC)
        k_scale, v_scale = 1.0, 1.0
        if CODEC != NATIVE:
            k_scale = tl.load(k_scale_at + key * ks_token, mask=live, other=0.0).to(tl.float32)
            v_scale = tl.load(v_scale_at + key * vs_token, mask=live, other=0.0).to(tl.float32)
        score = tl.where(live, tl.sum(k * q[None, :], 1) * k_scale, float("-inf"))
        weight, shrink, total, top = _softened(score, top, total)
        out = out * shrink + tl.sum((weight * v_scale)[:, None] * v, 0)
        if MASS:
            tl.store(mass_at + key, score, mask=live)
    total = tl.maximum(total, 1.0)  # the largest weight is 1; 0 without keys
    tl.store(out_at + (row * kv_heads + head) * HEAD_DIM + channel, (out / total).to(out_at.dtype.element_ty), mask=inside)
    if MASS:
        _weights(mass_at, top, total, length, longest, KEYS)


@triton.jit
def grouped(  # type: ignore[no-untyped-def]
    q_at, k_at, v_at, k_scale_at, v_scale_at, out_at, mass_at, lengths_at, starts_at,
    q_row, q_head, k_row, k_head, k_token, v_row, v_head, v_token, ks_row, ks_head, ks_token, vs_row, vs_head, vs_token,
    length_row, length_head, kv_heads, keys, longest, scale,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, HEAD_DIM: tl.constexpr, CODEC: tl.constexpr,
    MASS: tl.constexpr, LENGTHS: tl.constexpr, STARTS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Do the same for the ``GROUP`` query heads that share a K/V head, by matrix units, which take at least 16 queries."""
    row, head = (tl.program_id(0) // kv_heads).to(tl.int64), (tl.program_id(0) % kv_heads).to(tl.int64)
    length, start = _bounds(lengths_at, starts_at, row, head, keys, length_row, length_head, LENGTHS, STARTS)
    channel = tl.arange(0, WIDTH)
    inside = channel < HEAD_DIM
    k_at, k_token = k_at + (row * k_row + head * k_head + start * k_token) * EVEN, k_token * EVEN
    v_at, v_token = v_at + (row * v_row + head * v_head + start * v_token) * EVEN, v_token * EVEN
    k_scale_at += row * ks_row + head * ks_head + start * ks_token
    v_scale_at += row * vs_row + head * vs_head + start * vs_token
    query = tl.arange(0, QUERIES)
    asked = (query < GROUP)[:, None] & inside[None, :]
    q_at += row * q_row + head * GROUP * q_head
    q = tl.load(q_at + query[:, None] * q_head + channel[None, :], mask=asked, other=0.0)
    mass_at += (row * kv_heads + head) * GROUP * longest
    top, total, out = tl.full([QUERIES], float("-inf"), tl.float32), tl.zeros([QUERIES], tl.float32), tl.zeros([QUERIES, WIDTH], tl.float32)
    for at in range(0, length, KEYS):
        key = at + tl.arange(0, KEYS)
        live = key < length
        shown = live[:, None] & inside[None, :]
        k = _number(tl.load(k_at + key[:, None] * k_token + channel[None, :], mask=shown, other=0), CODEC)
        v = _number(tl.load(v_at + key[:, None] * v_token + channel[None, :], mask=shown, other=0), CODEC)
        k_scale, v_scale = 1.0, 1.0
        if CODEC != NATIVE:
            k_scale = tl.load(k_scale_at + key * ks_token, mask=live, other=0.0).to(tl.float32)
            v_scale = tl.load(v_scale_at + key * vs_token, mask=live, other=0.0).to(tl.float32)
        product = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * scale
        if CODEC != NATIVE:
            product = product * k_scale[None, :]  # type: ignore[index]
        score = tl.where(live[None, :], product, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        weight, shrink = tl.exp2(score - higher[:, None]), tl.exp2(top - higher)
        total = total * shrink + tl.sum(weight, 1)
        if CODEC != NATIVE:
            weight = weight * v_scale[None, :]  # type: ignore[index]
        out = out * shrink[:, None] + tl.dot(weight.to(q.dtype), v.to(q.dtype), input_precision="ieee")
        top = higher
        if MASS:
            tl.store(mass_at + query[:, None] * longest + key[None, :], score, mask=(query < GROUP)[:, None] & live[None, :])
    total = tl.maximum(total, 1.0)
    out_at += (row * kv_heads + head) * GROUP * HEAD_DIM
    tl.store(out_at + query[:, None] * HEAD_DIM + channel[None, :], (out / total[:, None]).to(out_at.dtype.element_ty), mask=asked)
    if MASS:
        _weights_of_group(mass_at, top, total, length, longest, query, GROUP, KEYS)


@triton.jit
def _range(step_at, least_at, place, shown):  # type: ignore[no-untyped-def]
    """Load the ranges of vectors: step and least value, fp32."""
    return tl.load(step_at + place, mask=shown, other=0.0).to(tl.float32), tl.load(least_at + place, mask=shown, other=0.0).to(tl.float32)


@triton.jit
def _of_ranges(even, odd, step_at, least_at, new_at, range_token, new_token, arrival, filling, channel, shown):  # type: ignore[no-untyped-def]
    """Decode codes of even and odd channels by ranges that tokens share; keys of the group being filled are unquantized."""
    place = (arrival // GROUP_SIZE)[:, None, None, None] * range_token + channel[None]
    old, fresh = shown & (filling == 0)[:, None, None, None], filling[:, None, None]
    step_even, step_odd = tl.split(tl.load(step_at + place, mask=old, other=0.0).to(tl.float32))
    least_even, least_odd = tl.split(tl.load(least_at + place, mask=old, other=0.0).to(tl.float32))
    new = (arrival % GROUP_SIZE)[:, None, None, None] * new_token + channel[None]
    new_even, new_odd = tl.split(tl.load(new_at + new, mask=shown & filling[:, None, None, None], other=0.0).to(tl.float32))
    return tl.where(fresh, new_even, even * step_even + least_even), tl.where(fresh, new_odd, odd * step_odd + least_odd)


@triton.jit
def nibbles(  # type: ignore[no-untyped-def]
    q_at, k_at, v_at, k_step_at, k_least_at, v_step_at, v_least_at, arrival_at, newest_at, arrived_at, out_at, mass_at,
    lengths_at, starts_at, q_row, q_head, k_row, k_head, k_token, v_row, v_head, v_token, ks_row, ks_head, ks_token,
    vs_row, vs_head, vs_token, a_row, a_head, a_token, n_row, n_head, n_token, length_row, length_head, heads, keys, longest, scale,
    GROUP: tl.constexpr, KEYS: tl.constexpr, RANGES: tl.constexpr, PAIRS: tl.constexpr, GROUPS: tl.constexpr, PADDED: tl.constexpr,
    SHARED: tl.constexpr, MASS: tl.constexpr, LENGTHS: tl.constexpr, STARTS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Attend to codes of 4 bits, two per byte, by one query head.

    Values have ``GROUPS`` ranges of ``PAIRS`` bytes (powers of two: ``PADDED``, ``RANGES``). Keys have the same, or with ``SHARED``, ranges
    by channel that 32 tokens share, and the group that is being filled unquantized.
    """
    row, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    kv_head = head // GROUP
    length, start = _bounds(lengths_at, starts_at, row, kv_head, keys, length_row, length_head, LENGTHS, STARTS)
    part, pair = tl.arange(0, PADDED), tl.arange(0, RANGES)
    inside = (part < GROUPS)[:, None] & (pair < PAIRS)[None, :]
    byte = part[:, None] * PAIRS + pair[None, :]
    channel = byte[:, :, None] * 2 + tl.arange(0, 2)[None, None, :]
    both = inside[:, :, None] & (tl.arange(0, 2) < 2)[None, None, :]
    even, odd = tl.split(tl.load(q_at + row * q_row + head * q_head + channel, mask=both, other=0.0).to(tl.float32) * scale)
    whole = tl.sum(even + odd, 1)
    top, total, out_least = float("-inf"), 0.0, tl.zeros([PADDED], tl.float32)
    out_even, out_odd = tl.zeros([PADDED, RANGES], tl.float32), tl.zeros([PADDED, RANGES], tl.float32)
    k_at, k_token = k_at + (row * k_row + kv_head * k_head + start * k_token) * EVEN, k_token * EVEN
    v_at, v_token = v_at + (row * v_row + kv_head * v_head + start * v_token) * EVEN, v_token * EVEN
    ks_at, vs_at = row * ks_row + kv_head * ks_head + start * ks_token, row * vs_row + kv_head * vs_head + start * vs_token
    k_step_at, k_least_at, v_step_at, v_least_at = k_step_at + ks_at, k_least_at + ks_at, v_step_at + vs_at, v_least_at + vs_at
    mass_at += (row * heads + head) * longest
    for at in tl.range(0, length, KEYS, num_stages=STAGES):  # few bytes per block, so the next ones are loaded ahead
        key = at + tl.arange(0, KEYS)
        live = key < length
        shown = live[:, None, None] & inside[None]
        k = tl.load(k_at + key[:, None, None] * k_token + byte[None], mask=shown, other=0)
        v = tl.load(v_at + key[:, None, None] * v_token + byte[None], mask=shown, other=0)
        ranged = live[:, None] & (part < GROUPS)[None, :]
        k_even, k_odd = (k & 15).to(tl.float32), (k >> 4).to(tl.float32)
        if SHARED:
            arrival = tl.load(arrival_at + row * a_row + kv_head * a_head + key * a_token, mask=live, other=0).to(tl.int32)
            filling = arrival // GROUP_SIZE == tl.load(arrived_at + row).to(tl.int32) // GROUP_SIZE
            new_at, wide = newest_at + row * n_row + kv_head * n_head, shown[:, :, :, None] & both[None]
            k_even, k_odd = _of_ranges(k_even, k_odd, k_step_at, k_least_at, new_at, ks_token, n_token, arrival, filling, channel, wide)
        product = tl.sum(k_even * even[None] + k_odd * odd[None], 2)
        if not SHARED:
            k_step, k_least = _range(k_step_at, k_least_at, key[:, None] * ks_token + part[None, :], ranged)
            product = product * k_step + k_least * whole[None, :]
        v_step, v_least = _range(v_step_at, v_least_at, key[:, None] * vs_token + part[None, :], ranged)
        score = tl.where(live, tl.sum(product, 1), float("-inf"))
        weight, shrink, total, top = _softened(score, top, total)
        stepped = (weight[:, None] * v_step)[:, :, None]
        out_even = out_even * shrink + tl.sum(stepped * (v & 15).to(tl.float32), 0)
        out_odd = out_odd * shrink + tl.sum(stepped * (v >> 4).to(tl.float32), 0)
        out_least = out_least * shrink + tl.sum(weight[:, None] * v_least, 0)
        if MASS:
            tl.store(mass_at + key, score, mask=live)
    total = tl.maximum(total, 1.0)
    out = tl.join(out_even + out_least[:, None], out_odd + out_least[:, None]) / total
    tl.store(out_at + (row * heads + head) * (2 * GROUPS * PAIRS) + channel, out.to(out_at.dtype.element_ty), mask=both)
    if MASS:
        _weights(mass_at, top, total, length, longest, KEYS)


class LaunchPlan(NamedTuple):
    """Kernel, constants and warps of a call: all that decides which code is compiled."""

    kernel: triton.JITFunction
    constants: dict[str, int]
    warps: int


def plan(
    head_dim: int, group: int, itemsize: int, codec: str, groups: int, even: int, mass: bool, lengths: bool, starts: bool,
) -> LaunchPlan:
    """Return the plan of a call.

    ``itemsize``: bytes of an element of the queries; ``groups``: ranges of a value with 4-bit codes; ``even``: a power of two that divides
    the strides of keys and values, which decides how wide they are loaded; strides are passed in units of it.
    """
    flags = {"MASS": int(mass), "LENGTHS": int(lengths), "STARTS": int(starts), "EVEN": even}
    if codec in CODES:
        width = max(16, triton.next_power_of_2(head_dim))
        bytes_of_key = width * (itemsize if codec == "native" else 1)
        keys = min(128, max(16, 8192 // bytes_of_key)) if group == 1 else 32
        queries = 1 if group == 1 else max(16, triton.next_power_of_2(group))
        constants = {"GROUP": group, "QUERIES": queries, "KEYS": keys, "WIDTH": width, "HEAD_DIM": head_dim, "CODEC": CODES[codec], **flags}
        return LaunchPlan(vectors if group == 1 else grouped, constants, 2 if group == 1 else 4)
    pairs = head_dim // 2 // groups
    keys = 64 if head_dim <= 64 else 32
    return LaunchPlan(nibbles, {"GROUP": group, "KEYS": keys, "RANGES": triton.next_power_of_2(pairs), "PAIRS": pairs,
                          "GROUPS": groups, "PADDED": triton.next_power_of_2(groups), "SHARED": int(codec == "kivi4"), **flags}, 1)


def decode(q: Tensor, stored: Stored, codec: str, *, mass: bool = False) -> tuple[Tensor, Tensor | None]:
    """Return softmax(q·kᵀ/√d)·v in the shape of ``q``, and with ``mass`` each key's weight summed over the heads that share it.

    ``q`` (rows, heads, 1, head_dim); channels are contiguous everywhere. Mass: (rows, kv_heads, longest) fp32.
    """
    rows, heads, _, head_dim = q.shape
    (k, *k_ranges), (v, *v_ranges) = stored.k, stored.v
    lengths, starts = stored.lengths, stored.starts
    kv_heads = starts.size(1) if starts is not None else k.size(1)
    group = heads // kv_heads
    out = torch.empty(rows, heads, 1, head_dim, dtype=q.dtype, device=q.device)
    weights = torch.empty(rows, heads, stored.longest, dtype=torch.float32, device=q.device) if mass else out
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1, "channels are not contiguous"
    places = *_strides(k, starts), *_strides(v, starts)
    even = math.gcd(16, *places)
    chosen = plan(head_dim, group, q.element_size(), codec, v_ranges[0].size(-1) if len(v_ranges) == 2 else 0, even, mass,
                  lengths is not None, starts is not None)
    strides = *q.stride()[:2], *(place // even for place in places)
    tables = lengths if lengths is not None else q, starts if starts is not None else q
    by = [0, 0] if lengths is None else [stride if size > 1 else 0 for size, stride in zip(lengths.shape, lengths.stride(), strict=True)]
    rest = *by, heads if chosen.kernel is nibbles else kv_heads, stored.longest, stored.longest, head_dim**-0.5 * LOG2_E
    if chosen.kernel is not nibbles:
        k_scale, v_scale = (ranges[0] if ranges else part for ranges, part in ((k_ranges, k), (v_ranges, v)))
        chosen.kernel[rows * kv_heads,](
            q, k, v, k_scale, v_scale, out, weights, *tables, *strides, *_strides(k_scale, starts), *_strides(v_scale, starts), *rest,
            **chosen.constants, num_warps=chosen.warps, num_stages=int(STAGES))
    else:
        shared = stored.ranges
        k_step, k_least = (shared.step, shared.least) if shared else k_ranges
        arrival, newest, arrived = (k_ranges[0], shared.newest, shared.arrived) if shared else (k, q, q)
        others = (*_strides(arrival, None), *_strides(newest, None)) if shared else (0,) * 6
        nibbles[rows * heads,](
            q, k, v, k_step, k_least, *v_ranges, arrival, newest, arrived, out, weights, *tables, *strides, *_strides(k_step, starts),
            *_strides(v_ranges[0], starts), *others, *rest, **chosen.constants, num_warps=chosen.warps,
            num_stages=int(STAGES))
    if not mass:
        return out, None
    return out, weights if group == 1 else weights.unflatten(1, (kv_heads, group)).sum(2)


def _strides(part: Tensor, starts: Tensor | None) -> tuple[int, int, int]:
    """Return the strides of rows, heads and tokens; heads that lie one after the other have none."""
    row, head, token = part.stride()[:3]
    return row, 0 if starts is not None else head, token
