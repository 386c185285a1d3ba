"""The Triton kernel of a product with its bias and activation, rounded where torch rounds."""

from __future__ import annotations

import triton
import triton.language as tl

RAISED = tl.constexpr(8)  # blocks of rows that share the weights in the L2 cache


@triton.jit
def product(  # type: ignore[no-untyped-def]
    x_at, weight_at, bias_at, out_at, rows, outs, insides,
    GELU: tl.constexpr, EVEN: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Store act(x·weightᵀ + bias): ``x`` (rows, insides), ``weight`` (outs, insides), ``out`` (rows, outs).

    The activation is the exact GELU, or SiLU. A program has M rows and N outputs. ``EVEN``: K divides ``insides``.
    """
    across, down = tl.cdiv(outs, N), tl.cdiv(rows, M)
    band = tl.program_id(0) // (RAISED * across)
    high = tl.minimum(down - band * RAISED, RAISED)
    within = tl.program_id(0) % (RAISED * across)
    row = (band * RAISED + within % high) * M + tl.arange(0, M)
    column = within // high * N + tl.arange(0, N)
    inside = tl.arange(0, K)
    x_at += (row % rows).to(tl.int64)[:, None] * insides + inside[None, :]  # rows after the last one are computed, not stored
    weight_at += (column % outs).to(tl.int64)[None, :] * insides + inside[:, None]
    total = tl.zeros([M, N], tl.float32)
    for at in range(0, insides, K):
        if EVEN:
            x, weight = tl.load(x_at), tl.load(weight_at)
        else:
            x = tl.load(x_at, mask=inside[None, :] < insides - at, other=0.0)
            weight = tl.load(weight_at, mask=inside[:, None] < insides - at, other=0.0)
        total = tl.dot(x, weight, total, input_precision="ieee")
        x_at += K
        weight_at += K
    kind = out_at.dtype.element_ty
    total = (total + tl.load(bias_at + column % outs).to(tl.float32)[None, :]).to(kind).to(tl.float32)
    inner = 0.5 * (1 + tl.erf(total * 0.7071067811865476)) if GELU else 1 / (1 + tl.exp(-total))
    place = row.to(tl.int64)[:, None] * outs + column[None, :]
    tl.store(out_at + place, (total * inner).to(kind), mask=(row < rows)[:, None] & (column < outs)[None, :])
