"""Selection at a line's end, rotation and sampling; generations of prompted models."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from interpreting import CLOSE, Checks, any_of, near

from cachemark.cache import random_streams as streams
from cachemark.cache.arena import Memory
from cachemark.cache.kernels import fused, selection
from cachemark.core.spec import Sampling
from cachemark.methods.linear import Linear
from cachemark.methods.registry import METHODS
from cachemark.methods.rkv import RKV
from cachemark.methods.snapkv import SnapKV
from cachemark.models.emu3 import Emu3, Emu3Config
from cachemark.models.glm_image import GlmImage
from cachemark.models.janus import Janus, JanusConfig
from cachemark.models.lumina import Lumina
from support.tiny_models import DECODER, EMU3_SIZES, GLM_IMAGE_SIZES, LUMINA_SIZES, PROMPTS

ONE, ALONE = replace(DECODER, layers=1), replace(DECODER, layers=1, heads=2, dim=32, kv_heads=None)
ALL = {"add_norm", "silu_mul", "rotate_append", "sample"}  # the condition rotates alone
FAMILIES: dict[str, tuple[Callable[[], Any], set[str]]] = {  # heads have their own keys or share them, as in the published models
    "janus": (lambda: Janus(JanusConfig(ALONE, codes=48, grid=3), PROMPTS), ALL | {"attend_turned"}),
    "emu3": (lambda: Emu3(Emu3Config(ONE, 2, 3, EMU3_SIZES.ids), PROMPTS), ALL),
    "lumina": (lambda: Lumina(replace(LUMINA_SIZES, decoder=replace(ALONE, qk_norm=True), height=1, width=1), PROMPTS),
               ALL | {"attend_turned"}),
    "glm-image": (lambda: GlmImage(replace(GLM_IMAGE_SIZES, decoder=replace(ONE, qkv_bias=True), grid=2, preview=2), PROMPTS), ALL)}


def line(group: int, queries: int, live: int, shorter: int, count: int, width: int, dtype: torch.dtype, ends: int) -> None:
    """Two layers of two rows, the second ``shorter``; some keys are equal, so that their scores tie. What is after a row is NaN."""
    heads, anchor, draw = 2, 3, torch.Generator().manual_seed(live + count)
    lengths = torch.tensor([live, live - shorter], dtype=torch.int32)
    q = torch.randn(2, 2, heads * group, queries + 1, width, generator=draw).to(dtype)[:, :, :, :queries]
    k, v = torch.randn(2, 2, 2, heads, live + 2, width, generator=draw).to(dtype)
    k[..., 4:8, :] = k[..., 3:4, :]
    for row, n in enumerate(lengths.tolist()):
        k[:, row, :, n:] = float("nan")
    visual = (torch.rand(2, 2, heads, live, generator=draw).argsort(-1) - 1).to(torch.int16)
    until = live - 3
    inside = torch.arange(live) < lengths[:, None, None]
    middle = (visual >= anchor) & (visual < until) & inside
    scored = middle & (visual % 5 != 4) if ends else middle
    logits = q.double().flatten(2, 3).unflatten(2, (heads, -1)) @ k[..., :live, :].double().nan_to_num().mT * width**-0.5
    right = logits.masked_fill(~scored[..., None, :], float("-inf")).softmax(-1).mean(-2)
    score = selection.attended(q, k[..., :live, :], visual, lengths, range(anchor, until), line=5, ends=ends)
    near(score[scored], right[scored])
    assert (score[~middle] == float("inf")).all()
    assert (score[middle & ~scored] == (float("-inf") if ends == 2 else float("inf"))).all()
    ages, parts, table = visual.clone(), torch.stack((k, v)), torch.rand(2, 2, heads, live + 2, 1, generator=draw)
    expected, moved = [x.clone() for x in (ages, *parts, table)], [visual, *parts, table]
    for at in torch.cartesian_prod(*map(torch.arange, (2, 2, heads))).tolist():
        site, row, head = at
        n = int(lengths[row])
        holes = sorted(selection.lowest(score[site, row, head, :n], ages[site, row, head, :n], count).tolist())
        sources = [place for place in range(n - count, n) if place not in holes]
        for tensor in expected:
            cells = tensor[site, row, head]
            cells[[hole for hole in holes if hole < n - count]] = cells[sources].clone()
    places, sources = selection.choose(score, visual, lengths, count)
    for tensors in ([*parts], [table]):
        selection.move(tensors, places, sources, lengths, live)
    for made, wanted in zip(moved, expected, strict=True):
        for row, n in enumerate(lengths.tolist()):
            assert torch.equal(made[:, row, :, : n - count], wanted[:, row, :, : n - count])


def pooled(group: int, live: int, shorter: int, alpha: int, pool: int, width: int, dtype: torch.dtype) -> None:
    """SnapKV's and R-KV's scores, whose own code has the keys in the order of age; a row has a shorter condition, some keys are alike."""
    heads, count, draw = 2, live - 2 - shorter, torch.Generator().manual_seed(live)
    lengths = torch.tensor([live, live - shorter], dtype=torch.int32)
    q, k = (torch.randn(1, 2, *sizes, width, generator=draw).to(dtype) for sizes in ((heads * group, alpha), (heads, live + 2)))
    k[..., 5:9, :] = k[..., 4:5, :] + 0.1 * k[..., 5:9, :]
    visual = torch.full((1, 2, heads, live), -1, dtype=torch.int16)
    for row, n in enumerate(lengths.tolist()):
        k[:, row, :, n:] = float("nan")
        visual[:, row, :, :n] = (torch.rand(1, heads, n, generator=draw).argsort(-1) - (n - count)).clamp_min(-1).to(torch.int16)
    methods: list[tuple[Any, selection.Pool]] = [(SnapKV(alpha=alpha, pool=pool), selection.Pool(pool))]
    methods += [(RKV(alpha=alpha, mix_lambda=0.4), selection.Pool(7, 0.5, 0.4))] * (group == 1)
    for method, kind in methods:
        (score,) = selection.attended(q, k[..., :live, :], visual, lengths, range(count - alpha), pool=kind)
        for row, n in enumerate(lengths.tolist()):
            order = visual[0, row, :, :n].argsort(dim=-1, stable=True)[:, -count:]
            keys = k[0, row].gather(1, order[..., None].expand(-1, -1, width)).double()
            right = method.scored(q[0, row][None].double(), keys[None])[0] / (alpha if isinstance(method, SnapKV) else 1)
            near(score[row].gather(1, order)[:, :-alpha].to(dtype), right)
            assert (score[row].gather(1, order)[:, -alpha:] == float("inf")).all()
            assert (score[row][visual[0, row] < 0] == float("inf")).all()


def turn(rows: int, heads: int, live: int, pairs: int, rest: int, dtype: torch.dtype, halves: bool, by_row: bool) -> None:
    """Rotation of some channels, after a norm or not, then attention; eps counts in the small last row. ``by_row``: angles differ."""
    width, draw = 2 * pairs + 2 * rest, torch.Generator().manual_seed(live)
    qkv = torch.randn(rows, 1, 3 * heads, width, generator=draw).to(dtype)
    qkv[-1] *= 1e-2
    turns = torch.polar(torch.ones(()), torch.randn(rows if by_row else 1, 1, pairs, generator=draw))
    norms: Any = tuple(torch.randn(4, width, generator=draw).to(dtype)) if halves else ()
    cache = torch.randn(2, rows, heads, live + 3, width, generator=draw).to(dtype)
    parts = [part.double().transpose(1, 2) for part in qkv.split(heads, 2)]
    for number in range(2):
        own = parts[number]
        if halves:
            own = F.layer_norm(own, (width,), norms[2 * number].double(), norms[2 * number + 1].double(), 1e-5)
        x = own[..., : 2 * pairs]
        x = x.unflatten(-1, (2, pairs)).transpose(-1, -2) if halves else x.unflatten(-1, (pairs, 2))
        turned = torch.view_as_real(torch.view_as_complex(x.contiguous()) * turns[:, None].to(torch.complex128))
        parts[number] = torch.cat(((turned.transpose(-1, -2) if halves else turned).flatten(-2), own[..., 2 * pairs :]), -1)
    k, v = cache.clone()
    lengths = [max(0, live - row) if by_row else live for row in range(rows)]
    stored = torch.tensor(lengths, dtype=torch.int32)[:, None] if by_row else None
    out, q = fused.attend_turned(qkv, fused.Turn(turns, heads, halves, norms), k, v, live, asked=True, lengths=stored)
    near(q, parts[0])
    for row, n in enumerate(lengths):
        near(k[row, :, n : n + 1], parts[1][row])
        assert torch.equal(v[row, :, n : n + 1], qkv[row, :, 2 * heads :].transpose(0, 1))
        for made, before in zip((k, v), cache, strict=True):
            assert torch.equal(made[row, :, :n], before[row, :, :n])
            assert torch.equal(made[row, :, n + 1 :], before[row, :, n + 1 :])
        near(out[row], F.scaled_dot_product_attention(q[row].double(), *(part[row, :, : n + 1].double() for part in (k, v))))


def drawn(batch: int, vocab: int, top_k: int, scale: float | None, at: int) -> None:
    """Many logits tie. Lines have three codes and an end."""
    draw, codes = torch.Generator().manual_seed(vocab), (1, vocab - 3, vocab - 1, 4)
    logits, seeds = torch.randn(2 * batch, vocab, generator=draw).round(decimals=1), torch.arange(batch) * 31
    wanted = logits[:batch] if scale is None else logits[batch:] + (logits[:batch] - logits[batch:]) * scale
    entry = torch.arange(vocab)
    allowed = entry == codes[2] if (at + 1) % 4 == 0 else (entry >= 1) & (entry < vocab - 2)
    wanted = wanted.masked_fill(~allowed, -1e9) / 0.7
    if top_k:
        wanted = wanted.masked_fill(wanted < wanted.topk(min(top_k, vocab)).values[:, -1:], float("-inf"))
    tokens = fused.sample(logits, seeds, torch.tensor([at]), streams.PURPOSES["token"], 0.7, scale, top_k, codes)
    assert torch.equal(tokens, (wanted + streams.gumbel(streams.keys(seeds, "token", at), vocab)).argmax(-1))


def numbers(samples: int, places: int, count: int, gumbel: bool) -> None:
    """Numbers of samples and positions that broadcast; logarithms differ in their last bit."""
    seeds, place = torch.arange(samples)[:, None] * 31, torch.arange(places) ** 5
    expected = (streams.gumbel if gumbel else streams.uniform)(streams.keys(seeds, "noise", place), count)
    made = fused.numbers(seeds, "noise", place, count, gumbel=gumbel)
    torch.testing.assert_close(made, expected, rtol=0, atol=2e-6 * gumbel)


def lines() -> None:
    line(2, 9, 40, 3, 9, 20, torch.float32, 1)
    line(1, 5, 66, 0, 1, 16, torch.float16, 2)
    pooled(1, 60, 3, 4, 3, 20, torch.float32)


def turns() -> None:
    turn(2, 2, 66, 8, 0, torch.float32, halves=False, by_row=True)
    turn(2, 2, 5, 6, 3, torch.float16, halves=True, by_row=False)
    for at in (6, 7):
        drawn(4, 40, 3, 1.5, at)
    numbers(2, 3, 1100, gumbel=True)


def families() -> None:
    """Rows of different conditions draw the same tokens as by plain operations, also where entries go."""
    for name, (build, expected) in FAMILIES.items():
        model = build().initialise(0).eval().requires_grad_(False)
        for parameter in model.parameters():
            parameter.data *= 4 if parameter.dim() > 1 else 1  # so that attention is far from uniform
        method = Linear(B=6) if name == "janus" else METHODS.get("full").build({})
        sampling, launched, made = Sampling(cfg_scale=3.0, top_k=20), set[str](), []
        for on in (False, True):
            with fused.fusing(on), fused.launches(lambda name, *tensors, launched=launched: launched.add(name)):
                made.append(model.generate(torch.tensor([0, 1]), [3, 4], replace(method), sampling, Memory()))
        assert torch.equal(*made), name
        assert launched == expected | ({"attended", "choose", "move"} if name == "janus" else set()), (name, launched)


upto = partial(st.integers, 1)
FEW, WIDTHS, DTYPES = upto(3), st.integers(8, 40), st.sampled_from([*CLOSE])
anything = (
    any_of(line, FEW, upto(20), st.integers(30, 70), st.integers(0, 5), upto(12), WIDTHS, DTYPES, st.integers(0, 2), examples=8),
    any_of(turn, FEW, FEW, st.integers(0, 140), upto(20), st.integers(0, 5), DTYPES, st.booleans(), st.booleans(), examples=8),
    any_of(drawn, FEW, st.integers(5, 100), st.integers(0, 120), st.sampled_from((None, 2.0)), st.integers(0, 9), examples=8),
    any_of(pooled, FEW, st.integers(20, 140), st.integers(0, 5), upto(9), st.sampled_from((1, 5, 7)), WIDTHS, DTYPES, examples=8),
    any_of(numbers, FEW, FEW, upto(2100), st.booleans(), examples=8), families)
CHECKS = Checks({"selection_triton": lines, "fused_triton": turns}, anything=anything)
