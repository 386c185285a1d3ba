"""Fused passes of next-scale and masked models, and products with their activation."""

import math
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from interpreting import CLOSE, Checks, any_of, near
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.kernels import fused, fused_norms
from cachemark.cache.kernels.fused_products import ACTIVATIONS, ODD, compare, product, tile
from cachemark.cache.kernels.table import forced
from cachemark.cache.layout import squares
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.methods.registry import METHODS
from cachemark.models.infinity import Infinity
from cachemark.models.mar import MAR
from cachemark.models.var import VAR
from cachemark.models.vision.msvq import MultiScaleQuantizer
from support.tiny_models import INFINITY_SIZES, MAR_SIZES, VAR_SIZES

SMALL = 1e-3  # of numbers whose squares are like eps
HEAD_PASSES, VAR_PASSES = {"gate_norm", "add_silu", "denoise", "product", "numbers"}, {"gate_norm", "unit_append", "numbers"}
MAPS, LINEAR = Sampling(cfg_scale=1.5, cfg_schedule="linear", top_k=9), Sampling(cfg_scale=3.0, cfg_schedule="linear")
GENERATIONS: tuple[tuple[str, str, dict[str, Any], Sampling, set[str]], ...] = (
    ("var", "fastvar", {"shares": (0.5,), "layers": (0, 1)}, MAPS, VAR_PASSES),
    ("infinity", "full", {}, Sampling(cfg_scale=3.0), VAR_PASSES), ("mar", "lazymar", {"layer": 1}, LINEAR, HEAD_PASSES))


def drawn(seed: int, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw).to(dtype) for shape in shapes]


def norms(rows: int, tokens: int, width: int, dtype: torch.dtype, gated: bool, shared: bool, plus: bool) -> None:
    """Gate and scale are parts of a longer tensor, of each token or of each row, and the last row is small."""
    each = (rows, tokens, width)
    x, branch, shift, shades = drawn(width, dtype, each, each, *((rows, 1 if shared else tokens, parts * width) for parts in (1, 3)))
    x[-1], branch[-1] = SMALL * x[-1], SMALL * branch[-1]
    gate, scale, _ = shades.chunk(3, -1)
    wide = [part.double() for part in (x, branch, gate, scale, shift)]
    added = wide[0] + (wide[2] * wide[1] if gated else wide[1])
    total, out = fused_norms.gate_norm(x, branch, gate if gated else None, fused_norms.Shade(scale, shift, 1e-6, plus))
    near(total, added)
    normed = F.layer_norm(total.double(), (width,), eps=1e-6)
    near(out, wide[4] + normed * (wide[3] + plus))
    own = fused_norms.Shade(scale, shift, 1e-6, plus, weight=branch[0, 0], bias=x[0, 0])
    near(fused_norms.gate_norm(x, None, None, own)[1],
         wide[4] + F.layer_norm(wide[0], (width,), wide[1][0, 0], wide[0][0, 0], 1e-6) * (wide[3] + plus))
    only, alone = fused_norms.gate_norm(x, None, None, fused_norms.Shade(scale[0, 0], shift[0, 0], 1e-6, rounds=False), torch.float32)
    assert only is x
    near(alone.to(dtype), F.layer_norm(wide[0], (width,), wide[3][0, 0], wide[4][0, 0], 1e-6))
    assert torch.equal(fused_norms.gate_norm(x, branch, None, None)[0], x + branch)


def units(rows: int, tokens: int, heads: int, pairs: int, dtype: torch.dtype, turned: bool) -> None:
    """Keys and values go into a longer bank, whose other entries stay as they are; one query is zero, and its key small."""
    qkv, steep = drawn(tokens, dtype, (rows, tokens, 3, heads, 2 * pairs), (heads,))
    qkv[0, 0, 0, 0], qkv[0, 0, 1, 0] = 0, SMALL * qkv[0, 0, 1, 0]
    bank = torch.full((2, rows, heads, tokens + 3, 2 * pairs), 7.0, dtype=dtype)
    place = bank[0, :, :, 2 : 2 + tokens], bank[1, :, :, 2 : 2 + tokens]
    turns = torch.polar(torch.ones(tokens, pairs), drawn(1, torch.float32, (tokens, pairs))[0]) if turned else None
    q, k, v = fused_norms.unit_append(qkv, steep, 0.5, turns, place)
    wide = qkv.double().transpose(1, 3).unbind(2)
    steepness = steep.double().clamp_max(0.5).exp()[:, None, None] * math.sqrt(2 * pairs)
    for made, part, scale in ((q, wide[0], steepness), (k, wide[1], 1.0)):
        unit = F.normalize(part, dim=-1) * scale
        if turns is not None:
            unit = torch.view_as_real(torch.view_as_complex(unit.unflatten(-1, (-1, 2))) * turns.to(torch.complex128)).flatten(-2)
        near(made, unit)
    assert torch.equal(v, qkv[:, :, 2].transpose(1, 2))
    assert (k is place[0], v is place[1]) == (True, True)
    assert (bank[:, :, :, [0, 1, -1]] == 7).all()


def head(batch: int, tokens: int, channels: int, dtype: torch.dtype, scale: float | None) -> None:
    """The reverse step of MAR's head, and silu(time + condition)."""
    (out,), (x, noise) = drawn(tokens, dtype, (2 * batch, tokens, 2 * channels)), drawn(3, torch.float32, *[(batch, tokens, channels)] * 2)
    out = out if scale is not None else out[:batch]
    (eps, v), free = out[:batch].double().chunk(2, -1), out.double().chunk(2, -1)[0][-batch:]
    eps = eps if scale is None else free + scale * (eps - free)
    right = 1.25 * x.double() - 0.5 * eps + torch.exp(0.3 * v - 1) * noise.double()
    guidance = None if scale is None else torch.tensor(scale)
    following, fed = fused_norms.denoise(out, x, noise, guidance, (1.25, 0.5, -1.0, 0.3))
    near(following, right)
    assert torch.equal(fed, following.to(dtype).repeat(len(out) // batch, 1, 1))
    near(fused_norms.denoise(out, x, None, guidance, (1.25, 0.5, 0.0, 0.0))[0], 1.25 * x.double() - 0.5 * eps)
    cond, time = drawn(channels, dtype, (batch, tokens, 40 * channels + 1), (40 * channels + 1,))
    near(fused_norms.add_silu(cond, time), F.silu(time.double() + cond.double()))


def sums(rows: int, tokens: int, width: int, dtype: torch.dtype) -> None:
    """Residual with RMS norm, of which the last row is small, and silu(gate)·up."""
    x, y, weight, both = drawn(width, dtype, *[(rows, tokens, width)] * 2, (width,), (rows, tokens, 2 * width))
    x[-1], y[-1] = SMALL * x[-1], SMALL * y[-1]
    total, out = fused.add_norm(x, y, weight, 1e-5)
    assert torch.equal(total, x + y)
    near(out, F.rms_norm(total.double(), (width,), weight.double(), 1e-5))
    gate, up = both.double().chunk(2, -1)
    near(fused.silu_mul(both), F.silu(gate) * up)


def products(rows: int, outs: int, insides: int, dtype: torch.dtype, activation: str) -> None:
    """The library rounds between product and activation, and so does the kernel; fp64 does not."""
    x, weight, bias = drawn(rows, torch.float32, (rows, 1, insides), (outs, insides), (outs,))
    x, weight, bias = (part.to(dtype) for part in (x, weight / insides**0.5, bias))
    near(product(x, weight, bias, activation), ACTIVATIONS[activation](F.linear(x.double(), weight.double(), bias.double())))


def fixed_sums() -> None:
    for dtype in CLOSE:
        sums(2, 3, 37, dtype)


def fixed() -> None:
    for dtype in CLOSE:
        norms(2, 3, 37, dtype, gated=True, shared=True, plus=False)
        norms(3, 2, 64, dtype, gated=False, shared=False, plus=True)
        units(2, 3, 3, 12, dtype, turned=True)
        head(2, 5, 7, dtype, 2.5)
        head(3, 1, 4, dtype, 0.3)


def fixed_products() -> None:
    for dtype, activation in zip(CLOSE, ACTIVATIONS, strict=True):
        products(70, 45, 100, dtype, activation)
        products(600, 70, 16, dtype, activation)  # more blocks of rows than share the weights


FEW, DTYPES = st.integers(1, 4), st.sampled_from([*CLOSE])
anything = (
    any_of(norms, FEW, FEW, st.integers(2, 200), DTYPES, st.booleans(), st.booleans(), st.booleans(), examples=6),
    any_of(units, FEW, FEW, st.integers(1, 9), st.integers(1, 40), DTYPES, st.booleans(), examples=6),
    any_of(head, FEW, FEW, st.integers(1, 20), DTYPES, st.sampled_from((None, 0.0, 0.3, 1.0, 3.0)), examples=6),
    any_of(sums, FEW, FEW, st.integers(1, 1100), DTYPES, examples=6),
    any_of(products, *[st.integers(1, 150)] * 3, DTYPES, st.sampled_from([*ACTIVATIONS]), examples=5))


def generations(night: bool) -> None:
    """Generations with fused passes draw the same tokens as with plain operations; by day those of MAR."""
    texts = drawn(0, torch.float32, (3, INFINITY_SIZES.text), (2, INFINITY_SIZES.text))
    maps = replace(VAR_SIZES, depth=2, sides=(1, 2, 3))
    models: dict[str, Any] = {
        "var": VAR(maps, MultiScaleQuantizer(maps.sides, maps.vocab, maps.width)),
        "infinity": Infinity(replace(INFINITY_SIZES, scales=squares((1, 2))), texts),
        "mar": MAR(replace(MAR_SIZES, depth=(1, 2), grid=2, steps=2, head_depth=2, diffusion=(4,)))}
    for family, name, parameters, sampling, expected in GENERATIONS if night else GENERATIONS[2:]:
        model, launched, made = models[family].initialise(1).eval().requires_grad_(False), set[str](), []
        cls: type[Method] = METHODS.get(name)
        for on in (False, True):
            with fused.fusing(on), fused.launches(lambda name, *tensors, launched=launched: launched.add(name)), forced("sdpa"):
                made.append(model.generate(torch.tensor([0, 1]), [5, 6], cls.build(parameters), sampling, Memory()))
        torch.testing.assert_close(made[0], made[1], rtol=1e-4, atol=1e-4)
        assert launched >= expected, (family, name, launched)


def checks(night: bool) -> None:
    """Those before a first use on a device find nothing, by day of pooled scores; products have the tiles that were measured."""
    groups = [*fused.CHECKS][not night:]
    assert [fused.deviations(torch.device("cpu"), torch.float32, group) for group in groups] == [""] * len(groups)
    sizes = (2048, 2048), (2048, 1024), (600, 1040), (600, 70), (5, 70)
    assert [tile(*size) for size in sizes] == [(128, 256, 8), (128, 128, 8), (64, 64, 4), (64, 32, 4), (16, 32, 4)]
    assert not night or compare(torch.device("cpu"), torch.float16, [ODD]) == ""


KERNELS = {"fused_norms_triton": fixed, "fused_triton": fixed_sums, "fused_products_triton": fixed_products}
CHECKS = Checks(KERNELS, checks, generations, anything=anything)
