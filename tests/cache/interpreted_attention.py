"""Attention of one query per row, and with mass; generations with fused passes."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import strategies as st
from interpreting import Checks, any_of
from torch import Tensor

from cachemark.cache import kernels
from cachemark.cache.arena import Memory
from cachemark.cache.codec import Codec
from cachemark.cache.codecs import CODECS
from cachemark.cache.grouped_keys import banks
from cachemark.cache.kernels import fused
from cachemark.cache.kernels.check import compare
from cachemark.cache.kernels.decode import DECODE_WITH_MASS, READABLE, WIDTHS
from cachemark.cache.kernels.record import HEADS, ONE, ROWS, Part, Query, fold
from cachemark.cache.layout import Layout, Site, Step
from cachemark.cache.ragged import RaggedSlot, RaggedWorkspace
from cachemark.core.spec import Sampling
from cachemark.kit import next_token
from cachemark.methods.linear import Linear
from cachemark.methods.rkv import RKV
from cachemark.methods.snapkv import SnapKV
from cachemark.models.lined import ImageIds, LinedLlama
from cachemark.models.sampling import draw, draw_fused, guide

# Rounding of a vector's codes to the dtype is left out in place, so both sides differ by it.
CLOSE = {torch.float32: 2e-6, torch.float16: 3e-3}
FIXED: tuple[tuple[Any, ...], ...] = (  # codec, head_dim, K/V heads, heads that share one, lengths, dtype, mass
    ("native", 64, 2, 1, (70, 97, 97), torch.float32, True), ("native", 100, 1, 3, (5, 40), torch.float16, True),
    ("int8", 80, 2, 2, (33, 64), torch.float32, True), ("fp8", 48, 2, 1, (31, 200), torch.float32, False),
    ("int4", 96, 2, 2, (9, 65), torch.float32, True), ("int4", 100, 1, 1, (33,), torch.float32, False),
    ("kivi4", 64, 2, 1, (31, 70), torch.float32, True), ("kivi4", 16, 1, 2, (64, 63), torch.float16, False),
    ("kivi4", 100, 1, 1, (33,), torch.float32, False))
# queries, heads that share a key, keys, width of a head: below, at and beyond the blocks of the kernel
SHAPES = ((1, 1, 1, 16), (1, 4, 130, 16), (9, 2, 17, 20), (40, 1, 70, 64))


def expected(q: Tensor, parts: list[Part], longest: int) -> tuple[Tensor, Tensor]:
    """Return attention in fp64 and the mass of each key, (rows, kv_heads, longest)."""
    kv_heads = sum(len(part.heads or range(part.k.size(1))) for part in parts if part.rows.start in (None, parts[0].rows.start))
    out, mass = torch.zeros(q.shape, dtype=torch.float64), torch.zeros(q.size(0), kv_heads, longest, dtype=torch.float64)
    queries, answers = fold(q.double(), kv_heads), fold(out, kv_heads)
    for part in parts:
        heads = list(part.heads or range(kv_heads))
        weights = (queries[part.rows][:, heads] @ part.k.double().mT * q.size(-1) ** -0.5).softmax(-1)
        rows = torch.arange(q.size(0))[part.rows]
        answers[rows[:, None], torch.tensor(heads)] = weights @ part.v.double()
        mass[rows[:, None], torch.tensor(heads), : part.k.size(2)] = weights.sum(2)
    return answers.reshape(q.shape), mass


def agree(q: Tensor, stored: Any, codec: Codec, parts: list[Part], mass: bool) -> None:
    out, weights = kernels.decode_triton.decode(q, stored, codec.name, mass=mass)
    right, right_mass = expected(q, parts, stored.longest)
    torch.testing.assert_close(out.double(), right, rtol=0, atol=CLOSE[q.dtype] * float(right.abs().max().clamp_min(1)))
    if mass:
        torch.testing.assert_close(weights.double(), right_mass, rtol=0, atol=CLOSE[q.dtype] * q.size(1))


def rows_of_a_bank(codec: str, head_dim: int, kv_heads: int, group: int, lengths: Sequence[int], dtype: torch.dtype, mass: bool) -> None:
    """A bank whose rows have their own lengths; what is after them must not be read."""
    draw = torch.Generator().manual_seed(sum(lengths) + head_dim)
    layout = Layout("next-token", tuple(lengths), 4, 8, kv_heads * group, kv_heads, head_dim, 2, dtype=dtype)
    (bank,) = banks(layout, {Site("decoder", layer): max(lengths) + 3 for layer in range(2)}, Memory("cpu", CODECS[codec]))
    k, v = (torch.randn(len(lengths), kv_heads, max(lengths), head_dim, generator=draw).to(dtype) for _ in range(2))
    for slot in bank.slots:
        slot.append(k, v, condition=True)
    bank.end_step(Step(0, 32))
    token = torch.randn(2, len(lengths), kv_heads, 1, head_dim, generator=draw).to(dtype)
    slot = bank.slots[1]
    slot.append(*token)
    for part in (*slot.k, *slot.v):
        for rows, n in zip(slot.runs, slot.live, strict=True):
            part[rows.rows, :, n:] = float("nan") if part.is_floating_point() else 113
    q = torch.randn(len(lengths), kv_heads * group, 1, head_dim, generator=draw).to(dtype)
    parts = [Part(rows.rows, None, *slot.read(rows, n)) for rows, n in zip(slot.runs, slot.live, strict=True)]
    agree(q, slot.stored(slot), bank.codec, parts, mass)


def heads_of_a_row(head_dim: int, group: int, lengths: tuple[int, ...]) -> None:
    draw, rows = torch.Generator().manual_seed(sum(lengths)), 2
    layout = Layout("next-scale", (0,) * rows, 0, 0, len(lengths) * group, len(lengths), head_dim, 1, scales=((1, 1), (1, 1)))
    memory = Memory()
    slot = RaggedSlot(layout, Site("decoder", 0), sum(lengths), memory)
    slot.lengths[:] = lengths
    for part in (*slot.k, *slot.v):
        part.copy_(torch.randn(part.shape, generator=draw))
    workspace = RaggedWorkspace(layout, sum(lengths) + len(lengths), memory)
    k, v = torch.randn(2, rows, len(lengths), 1, head_dim, generator=draw)
    workspace.put(slot, 0, k, v)
    q = torch.randn(rows, len(lengths) * group, 1, head_dim, generator=draw)
    agree(q, workspace.stored(), CODECS["native"], list(workspace.parts()), mass=True)


def banks_and_heads() -> None:
    for case in FIXED:
        rows_of_a_bank(*case)
    heads_of_a_row(32, 1, (3, 70, 3))
    heads_of_a_row(16, 2, (65, 1))


def with_mass(tokens: int, groups: int, keys: int, width: int, dtype: torch.dtype) -> None:
    """Keys and values lie in a longer buffer, tokens of all heads side by side, whose end must not be read."""
    draw = torch.Generator().manual_seed(keys)
    q = torch.randn(2, 2 * groups, tokens, width, generator=draw).to(dtype)
    buffers = torch.randn(2, 2, 160, 2, width, generator=draw).to(dtype).transpose(2, 3)
    buffers[..., keys:, :] = float("nan")
    k, v = buffers[:, :, :, :keys]
    out, mass = kernels.mass_triton.attention_with_mass(fold(q, 2), k, v)
    right, weights = expected(q, [Part(slice(None), None, k, v)], keys)
    torch.testing.assert_close(out.reshape(q.shape).double(), right, rtol=0, atol=CLOSE[dtype])
    torch.testing.assert_close(mass.double(), weights, rtol=0, atol=CLOSE[dtype] * tokens * groups)


def masses() -> None:
    for shape in SHAPES:
        with_mass(*shape, torch.float32)


def draws(night: bool) -> None:
    logits, seeds = (3 * torch.randn(10, 1500, generator=torch.Generator().manual_seed(0))).round(decimals=1), torch.arange(5) * 77
    lined: Any = SimpleNamespace(config=SimpleNamespace(ids=ImageIds(4, 1000, 1042), line=7))
    for sampling, rows, place, codes in (
        (Sampling(cfg_scale=1.75, temperature=0.9), 10, 9, None), (Sampling(), 5, 9, None), (Sampling(cfg_scale=2.0, top_k=9), 10, 9, None),
        (Sampling(top_k=7), 5, 9, (4, 1000, 1042, 7)), (Sampling(cfg_scale=3.0, top_k=2000), 10, 6, (4, 1000, 1042, 7))):  # fmt: skip
        places = torch.tensor([place])
        with fused.fusing():
            tokens = draw_fused(logits[:rows], sampling, seeds, places, place, codes)
        guided = guide(logits[:rows], sampling, place)
        assert torch.equal(tokens, draw(LinedLlama.allowed(lined, guided, places) if codes else guided, sampling, seeds, places))


def generations(night: bool) -> None:
    """A generation with fused passes has the same tokens; by day that of one method, which launches every kernel."""
    labels, launched, line = torch.tensor([1]), list[str](), {"B": 6}
    methods = (2, "gqa", Linear(**line)), (1, "gqa", SnapKV(**line, alpha=2)), (1, "mha", RKV(**line, alpha=2))
    chosen = methods if night else methods[-1:]
    for layers, heads, method in chosen:
        tiny = next_token.model(heads, 3, layers, 4 if heads == "gqa" else 2)
        plain = tiny.generate(labels, [5], replace(method), next_token.SAMPLING, Memory())
        with fused.fusing(), fused.launches(lambda name, *tensors: launched.append(name)):
            assert torch.equal(tiny.generate(labels, [5], replace(method), next_token.SAMPLING, Memory()), plain), method
    assert launched.count("attended") == launched.count("choose") == launched.count("move") == len(chosen)  # once for all layers
    assert {*launched} == {"add_norm", "silu_mul", "rotate_append", "attend_turned", "sample", "attended", "choose", "move"}


def checks(night: bool) -> None:
    """The check before a first use on a device agrees; its stored result is not asked for. By day that of one codec."""
    for codec in READABLE if night else READABLE[:1]:
        for lengths in (ONE, ROWS, HEADS) if codec == "native" else (ROWS,):
            query = Query("cpu", torch.float32, 4, 2, 64, 1, mass=True, codec=codec, lengths=lengths)
            assert compare(DECODE_WITH_MASS, query) == "", (codec, lengths)


anything = (
    any_of(rows_of_a_bank, st.sampled_from(READABLE), st.sampled_from(WIDTHS), st.integers(1, 2), st.sampled_from((1, 2, 3, 5)),
           st.lists(st.integers(1, 140), min_size=1, max_size=3), st.sampled_from([*CLOSE]), st.booleans(), examples=30),
    any_of(with_mass, st.integers(1, 40), st.integers(1, 4), st.integers(1, 140), st.sampled_from((16, 20, 48, 64)),
           st.sampled_from([*CLOSE]), examples=30))
CHECKS = Checks({"decode_triton": banks_and_heads, "mass_triton": masses}, draws, generations, checks, anything=anything)
