"""Triton kernels of selection: scores of a line's queries, the choice of the lowest, and moves into the places of evicted entries.

A program serves one row and K/V head of a layer; *pairs* are layers × rows. Entries after the length of a shorter row are never read.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .fused_triton import _flipped

TIE, LARGEST = tl.constexpr(2.0**-16), tl.constexpr(3.4028234663852886e38)
LEAST = tl.constexpr(-(2**31))


@triton.jit
def _length(lengths_at, pair, rows, live, LENGTHS: tl.constexpr):  # type: ignore[no-untyped-def]
    length = live
    if LENGTHS:
        length = tl.load(lengths_at + pair % rows)
    return length


@triton.jit
def _middle(visual_at, key, length, anchor, until, line, ENDS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return which entries are scored, and which may be evicted."""
    visual = tl.load(visual_at + key, mask=key < length, other=-1).to(tl.int32)
    middle = (visual >= anchor) & (visual < until) & (key < length)
    scored = middle
    if ENDS:
        scored = middle & (visual % line != line - 1)
    return scored, middle


@triton.jit
def _cosines(k_at, visual_at, first, second, length, k_token, channel, KEYS: tl.constexpr, HEAD_DIM: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the cosines of two blocks of keys, 0 of a key with itself and of the condition, and the numbers of the second block."""
    inside, one, other = channel < HEAD_DIM, first + tl.arange(0, KEYS), second + tl.arange(0, KEYS)
    visual_one = tl.load(visual_at + one, mask=one < length, other=-1).to(tl.int32)
    visual_other = tl.load(visual_at + other, mask=other < length, other=-1).to(tl.int32)
    k = tl.load(k_at + one[:, None] * k_token + channel[None, :], mask=(visual_one >= 0)[:, None] & inside[None, :], other=0.0)
    others = tl.load(k_at + other[:, None] * k_token + channel[None, :], mask=(visual_other >= 0)[:, None] & inside[None, :], other=0.0)
    wide, wide_others = k.to(tl.float32), others.to(tl.float32)
    scale = 1 / tl.maximum(tl.sqrt(tl.sum(wide * wide, 1)), 1e-12)
    scale_others = 1 / tl.maximum(tl.sqrt(tl.sum(wide_others * wide_others, 1)), 1e-12)
    cosine = tl.dot(k, tl.trans(others), input_precision="ieee") * scale[:, None] * scale_others[None, :]
    return tl.where(one[:, None] == other[None, :], 0.0, cosine), visual_other


@triton.jit
def _redundant(  # type: ignore[no-untyped-def]
    k_at, visual_at, out_at, length, k_token, channel, similar, KEYS: tl.constexpr, HEAD_DIM: tl.constexpr,
):
    """Store the softmax of each visual key's mean cosine with the others; each of these spares the newest one that is ``similar`` to it."""
    for at in range(0, length, KEYS):
        key = at + tl.arange(0, KEYS)
        tl.store(out_at + key, tl.zeros([KEYS], tl.float32), mask=key < length)
    count = 0
    for first in range(0, length, KEYS):
        newest = tl.full([KEYS], -1, tl.int32)
        for at in range(0, length, KEYS):
            cosine, visual = _cosines(k_at, visual_at, first, at, length, k_token, channel, KEYS, HEAD_DIM)
            newest = tl.maximum(newest, tl.max(tl.where(cosine > similar, visual[None, :], -1), 1))
        tl.debug_barrier()  # the sums of earlier rows are written
        for at in range(0, length, KEYS):
            key = at + tl.arange(0, KEYS)
            cosine, visual = _cosines(k_at, visual_at, first, at, length, k_token, channel, KEYS, HEAD_DIM)
            total = tl.sum(tl.where(newest[:, None] == visual[None, :], 0.0, cosine), 0)
            tl.store(out_at + key, tl.load(out_at + key, mask=key < length, other=0.0) + total, mask=key < length)
            count += tl.where(first == 0, tl.sum((visual >= 0).to(tl.int32), 0), 0)
    tl.debug_barrier()
    top, total = float("-inf"), 0.0
    for at in range(0, length, KEYS):
        mean, _ = _mean(visual_at, out_at, at, length, count, KEYS)
        higher = tl.maximum(top, tl.max(mean, 0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(mean - higher), 0)
        top = higher
    tl.debug_barrier()
    for at in range(0, length, KEYS):
        mean, key = _mean(visual_at, out_at, at, length, count, KEYS)
        tl.store(out_at + key, tl.exp(mean - top) / total, mask=key < length)


@triton.jit
def _mean(visual_at, sum_at, at, length, count, KEYS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the sums of a block over the number of visual keys, −inf for others, and their places."""
    key = at + tl.arange(0, KEYS)
    visual = tl.load(visual_at + key, mask=key < length, other=-1)
    return tl.where(visual >= 0, tl.load(sum_at + key, mask=key < length, other=0.0) / count, float("-inf")), key


@triton.jit
def _rank(visual_at, at, length, anchor, until, KEYS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return how many scored entries are older than each of a block."""
    key = at + tl.arange(0, KEYS)
    own = tl.load(visual_at + key, mask=key < length, other=-1).to(tl.int32)
    rank = tl.zeros([KEYS], tl.int32)
    for first in range(0, length, KEYS):
        other = first + tl.arange(0, KEYS)
        visual = tl.load(visual_at + other, mask=other < length, other=-1).to(tl.int32)
        older = (visual[None, :] < own[:, None]) & (visual >= anchor)[None, :]
        rank += tl.sum(older.to(tl.int32), 1)
    return rank, key, (own >= anchor) & (own < until) & (key < length)


@triton.jit
def _pooled(  # type: ignore[no-untyped-def]
    visual_at, out_at, ranked_at, spare_at, length, anchor, until, mix, KEYS: tl.constexpr, POOL: tl.constexpr, SIMILAR: tl.constexpr,
):
    """Pool scores over ``POOL`` neighbors in the order of age: their mean or, with ``SIMILAR``, their maximum less the redundancy."""
    count = 0
    for at in range(0, length, KEYS):
        rank, key, scored = _rank(visual_at, at, length, anchor, until, KEYS)
        tl.store(ranked_at + rank, tl.load(out_at + key, mask=scored, other=0.0), mask=scored)
        count += tl.sum(scored.to(tl.int32), 0)
    tl.debug_barrier()
    for at in range(0, length, KEYS):
        rank, key, scored = _rank(visual_at, at, length, anchor, until, KEYS)
        pooled = tl.zeros([KEYS], tl.float32)
        for step in tl.static_range(POOL):
            near = rank + step - POOL // 2
            score = tl.load(ranked_at + near, mask=scored & (near >= 0) & (near < count), other=0.0)  # none is negative
            pooled = tl.maximum(pooled, score) if SIMILAR else pooled + score / POOL
        if SIMILAR:
            pooled = mix * pooled - (1 - mix) * tl.load(spare_at + key, mask=scored, other=0.0)
        tl.store(out_at + key, pooled, mask=scored)


@triton.jit(do_not_specialize=["rows", "guides", "live", "anchor", "until", "line"])
def attended(  # type: ignore[no-untyped-def]
    q_at, k_at, visual_at, out_at, spare_at, lengths_at, q_pair, q_head, q_token, k_pair, k_head, k_token, visual_pair, visual_head,
    rows, heads, guides, live, anchor, until, line, scale, similar, mix,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, HEAD_DIM: tl.constexpr, ENDS: tl.constexpr,
    LENGTHS: tl.constexpr, POOL: tl.constexpr, SIMILAR: tl.constexpr,
):  # fmt: skip
    """Store the mean over the queries of softmax over the scored keys, +inf for entries that stay.

    ``ENDS``: 1 keeps the ends of lines, 2 evicts them first. ``scale`` includes log2 e. ``POOL``: scores are pooled over so many neighbors,
    with ``SIMILAR`` less a share for redundant keys; ``spare`` (2, pairs × heads, live) fp32 is for numbers on the way.
    """
    pair, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    length = _length(lengths_at, pair, rows, live, LENGTHS)
    channel = tl.arange(0, WIDTH)
    inside = channel < HEAD_DIM
    q_at += pair * q_pair + head * GROUP * q_head
    k_at += pair * k_pair + head * k_head
    visual_at += pair * visual_pair + head * visual_head
    out_at += tl.program_id(0).to(tl.int64) * live
    count = GROUP * guides
    for first in range(0, count, QUERIES):
        query = first + tl.arange(0, QUERIES)
        asked = query < count
        place = (query // guides) * q_head + (query % guides) * q_token
        q = tl.load(q_at + place[:, None] + channel[None, :], mask=asked[:, None] & inside[None, :], other=0.0)
        top, total = tl.full([QUERIES], -1e30, tl.float32), tl.zeros([QUERIES], tl.float32)
        for at in range(0, length, KEYS):
            key = at + tl.arange(0, KEYS)
            scored, _ = _middle(visual_at, key, length, anchor, until, line, ENDS)
            k = tl.load(k_at + key[:, None] * k_token + channel[None, :], mask=scored[:, None] & inside[None, :], other=0.0)
            score = tl.where(scored[None, :], tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
            higher = tl.maximum(top, tl.max(score, 1))
            total = total * tl.exp2(top - higher) + tl.sum(tl.exp2(score - higher[:, None]), 1)
            top = higher
        share = tl.where(asked, 1 / (tl.maximum(total, 1.0) * count), 0.0)
        tl.debug_barrier()  # the sums of earlier queries are written
        for at in range(0, length, KEYS):
            key = at + tl.arange(0, KEYS)
            scored, _ = _middle(visual_at, key, length, anchor, until, line, ENDS)
            k = tl.load(k_at + key[:, None] * k_token + channel[None, :], mask=scored[:, None] & inside[None, :], other=0.0)
            score = tl.where(scored[None, :], tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
            weight = tl.sum(tl.exp2(score - top[:, None]) * share[:, None], 0)
            earlier = tl.load(out_at + key, mask=(key < length) & (first > 0), other=0.0)
            tl.store(out_at + key, earlier + weight, mask=key < length)
    tl.debug_barrier()
    if POOL:
        spare_at += tl.program_id(0).to(tl.int64) * live
        ranked_at = spare_at + tl.num_programs(0).to(tl.int64) * live
        if SIMILAR:
            _redundant(k_at, visual_at, spare_at, length, k_token, channel, similar, KEYS, HEAD_DIM)
            tl.debug_barrier()
        _pooled(visual_at, out_at, ranked_at, spare_at, length, anchor, until, mix, KEYS, POOL, SIMILAR)
        tl.debug_barrier()
    for at in range(0, live, KEYS):
        key = at + tl.arange(0, KEYS)
        scored, middle = _middle(visual_at, key, length, anchor, until, line, ENDS)
        weight = tl.load(out_at + key, mask=scored, other=float("inf"))
        if ENDS == 2:
            weight = tl.where(middle & (scored == 0), float("-inf"), weight)
        tl.store(out_at + key, weight, mask=key < live)


@triton.jit
def _below(first, second):  # type: ignore[no-untyped-def]
    """Return where one number's score is lower than another's by more than a tie."""
    first, second = _flipped(first).to(tl.float32, bitcast=True), _flipped(second).to(tl.float32, bitcast=True)
    sign = tl.where(second > 0, 1.0, tl.where(second < 0, -1.0, 0.0))
    return (first >= second * (1 - TIE * sign)) == 0


@triton.jit
def _smallest(value, inside, count, low, high):  # type: ignore[no-untyped-def]
    """Return the ``count``-th smallest of integers from ``low`` to ``high``, at most 2³² apart, by bisection."""
    low, high = tl.full([], low, tl.int64), tl.full([], high, tl.int64)
    for _ in range(32):
        middle = (low + high) >> 1
        enough = tl.sum((inside & (value <= middle)).to(tl.int32), 0) >= count
        low, high = tl.where(enough, low, middle + 1), tl.where(enough, middle, high)
    return high


@triton.jit(do_not_specialize=["rows", "live", "count"])
def choose(  # type: ignore[no-untyped-def]
    score_at, visual_at, holes_at, sources_at, lengths_at, score_pair, score_head, visual_pair, visual_head, rows, heads, live, count,
    ENTRIES: tl.constexpr, ONE: tl.constexpr, LENGTHS: tl.constexpr,
):  # fmt: skip
    """Store the places of the ``count`` lowest scores, and which entries move there; ties go by age, and the condition goes last.

    Scores tie in stretches, each with the next one; if one entry goes (``ONE``), with the least. Holes are ascending; those among the last
    ``count`` entries receive nothing. Numbers of entries move at once.
    """
    pair, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    length = _length(lengths_at, pair, rows, live, LENGTHS)
    entry = tl.arange(0, ENTRIES)
    inside = entry < length
    visual_at += pair * visual_pair + head * visual_head
    age = tl.load(visual_at + entry, mask=inside, other=0).to(tl.int64)
    score = tl.load(score_at + pair * score_pair + head * score_head + entry, mask=inside, other=float("inf"))
    score = tl.where(age < 0, float("inf"), tl.where(score > LARGEST, LARGEST, score))
    number = _flipped(score.to(tl.int32, bitcast=True))
    last = _smallest(number, inside, count, LEAST, -1 - LEAST).to(tl.int32)
    low, high = last, last
    if ONE:
        tied = inside & (_below(last, number) == 0)
    else:
        lower = tl.max(tl.where(inside & (number < low), number, LEAST), 0)
        while _below(lower, low) == 0:
            low = lower
            lower = tl.max(tl.where(inside & (number < low), number, LEAST), 0)
        higher = tl.min(tl.where(inside & (number > high), number, -1 - LEAST), 0)
        while _below(high, higher) == 0:
            high = higher
            higher = tl.min(tl.where(inside & (number > high), number, -1 - LEAST), 0)
        tied = inside & (number >= low) & (number <= high)
    lowest = inside & (number < low)
    old = ((age + 2) << 16) | entry.to(tl.int64)
    chosen = lowest | (tied & (old <= _smallest(old, tied, count - tl.sum(lowest.to(tl.int32), 0), 0, 0xFFFFFFFF)))
    tail = length - count
    remains = inside & (chosen == 0) & (entry >= tail)
    holes_at += tl.program_id(0).to(tl.int64) * count
    sources_at += tl.program_id(0).to(tl.int64) * count
    tl.store(holes_at + tl.cumsum(chosen.to(tl.int32), 0) - 1, entry.to(tl.int16), mask=chosen)
    tl.store(sources_at + tl.cumsum(remains.to(tl.int32), 0) - 1, entry.to(tl.int16), mask=remains)
    tl.debug_barrier()
    hole = tl.load(holes_at + entry, mask=entry < count, other=32767).to(tl.int32)
    moves = (entry < count) & (hole < tail)
    numbers = tl.load(visual_at + tl.load(sources_at + entry, mask=moves, other=0), mask=moves, other=0)
    tl.store(visual_at + hole, numbers, mask=moves)


@triton.jit(do_not_specialize=["rows", "live", "count"])
def move(  # type: ignore[no-untyped-def]
    first_at, second_at, holes_at, sources_at, lengths_at, by_pair, by_head, by_entry, rows, heads, live, count,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, BOTH: tl.constexpr, LENGTHS: tl.constexpr,
):  # fmt: skip
    """Move vectors, of two tensors of equal strides or of one, into the holes before the last ``count`` entries."""
    pair, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    tail = _length(lengths_at, pair, rows, live, LENGTHS) - count
    number = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = tl.program_id(0).to(tl.int64) * count + number
    hole = tl.load(holes_at + place, mask=number < count, other=32767).to(tl.int32)
    source = tl.load(sources_at + place, mask=number < count, other=0).to(tl.int32)
    channel = tl.arange(0, PADDED)[None, :]
    moves = (hole < tail)[:, None] & (channel < WIDTH)
    base = pair * by_pair + head * by_head + channel
    vectors = tl.load(first_at + base + source[:, None] * by_entry, mask=moves, other=0)
    tl.store(first_at + base + hole[:, None] * by_entry, vectors, mask=moves)
    if BOTH:
        vectors = tl.load(second_at + base + source[:, None] * by_entry, mask=moves, other=0)
        tl.store(second_at + base + hole[:, None] * by_entry, vectors, mask=moves)
