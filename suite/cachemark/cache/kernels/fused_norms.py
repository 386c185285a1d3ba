"""Fused passes of next-scale and masked models: gates, norms and modulation, unit queries and keys, and MAR's reverse step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .fused import CHECKS, PASSES, launch, off, power


class Shade(NamedTuple):
    """Scale and shift after a layer norm, which broadcast to (rows, tokens, dim).

    ``weight``, ``bias`` (dim,): the norm's own, before them. ``plus``: 1 is added to the scale. ``rounds``: torch rounds norm and scale to
    the model's dtype before it multiplies them; it does not inside of ``layer_norm``.
    """

    scale: Tensor
    shift: Tensor
    eps: float
    plus: bool = False
    rounds: bool = True
    weight: Tensor | None = None
    bias: Tensor | None = None


def _once(tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """Return the tensors without those that stand in for an absent one."""
    return [*{id(tensor): tensor for tensor in tensors}.values()]


def gate_norm(
    x: Tensor, branch: Tensor | None, gate: Tensor | None, shade: Shade | None, dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Return x + gate·branch and its shaded layer norm in ``dtype``, both (rows, tokens, dim).

    Without ``branch`` the sum is x, without ``gate`` the gate is 1, and without ``shade`` the norm is the sum.
    """
    rows, tokens, width = x.shape
    total = x if branch is None else torch.empty_like(x)
    out = total if shade is None else torch.empty_like(x, dtype=dtype)
    used = [None] * 4 if shade is None else [shade.scale, shade.shift, shade.weight, shade.bias]
    parts = [x if part is None else part for part in (gate, *used)]
    strides = [stride for part in parts[:3] for stride in part.expand(x.shape).stride()[:2]]
    tensors = x, x if branch is None else branch.contiguous(), *parts, total, out
    added = [] if branch is None else [branch, total, *([] if gate is None else [gate])]
    touched = [x, *added, *(part for part in used if part is not None), *([out] if shade else [])]
    launch("gate_norm", (rows * tokens,), tensors, width, tokens, *strides, shade.eps if shade else 0.0, touched=touched,
           warps=8 if width > 2048 else 4, ADDS=branch is not None, GATED=gate is not None, NORMS=shade is not None,
           AFFINE=shade is not None and shade.weight is not None,
           PLUS=shade is not None and shade.plus, ROUNDS=shade is not None and shade.rounds, WIDTH=power(width))
    return total, out


def unit_append(
    qkv: Tensor, steepness: Tensor, steepest: float, turns: Tensor | None, place: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Divide queries and keys by their norms, scale queries, rotate both, and store keys and values at ``place`` or in new tensors.

    ``qkv`` (rows, tokens, 3, heads, head_dim); ``steepness`` (heads,): logarithms of the queries' scale, at most ``steepest``; ``turns``
    (tokens, head_dim/2) complex64. Returns three tensors (rows, heads, tokens, head_dim).
    """
    rows, tokens, _, heads, width = qkv.shape
    q = qkv.new_empty(rows, heads, tokens, width)
    k, v = place or (torch.empty_like(q) for _ in range(2))
    real = steepness if turns is None else torch.view_as_real(turns.contiguous())
    numbers = *k.stride()[:3], *v.stride()[:3], tokens, heads, steepest, math.sqrt(width)
    tensors = qkv, steepness, real, q, k, v
    launch("unit_append", (rows * tokens, 3), tensors, *numbers, exact=True, touched=_once(tensors),
           TURNS=turns is not None, HEADS=power(heads), PAIRS=width // 2, PADDED=power(width // 2))
    return q, k, v


def add_silu(x: Tensor, time: Tensor) -> Tensor:
    """Return silu(time + x) for ``x`` (…, width) and ``time`` (width,)."""
    out, width = torch.empty_like(x), x.size(-1)
    block = min(1024, power(width))
    launch("add_silu", (x.numel() // width, -(-width // block)), (x, time, out), width, BLOCK=block)
    return out


def denoise(
    out: Tensor, x: Tensor, noise: Tensor | None, guidance: Tensor | None, numbers: tuple[float, float, float, float],
) -> tuple[Tensor, Tensor]:
    """Take one reverse step: keep·x − drop·ε + exp(base + slope·v)·noise, with ``numbers`` = (keep, drop, base, slope).

    ``out`` (rows, n, 2·C): ε and v; with ``guidance``, a number on the device, unconditional rows follow, and ε is guided. ``x`` and
    ``noise`` (batch, n, C) fp32. Returns the next x, and as the network reads it: (rows, n, C) in the dtype of ``out``.
    """
    following, fed = torch.empty_like(x), out.new_empty(out.size(0), *x.shape[1:])
    block = min(256, power(x.numel()))
    tensors = out.contiguous(), x, x if noise is None else noise, x if guidance is None else guidance, following, fed
    launch("denoise", (-(-x.numel() // block),), tensors, x.numel(), x.size(-1), *numbers, exact=True,
           touched=_once(tensors),
           GUIDED=guidance is not None, NOISY=noise is not None, COPIES=out.size(0) // x.size(0), BLOCK=block)
    return following, fed


# -- their checks on a device -------------------------------------------------------------------------------------------
def _check_gate_norm(device: torch.device, dtype: torch.dtype) -> Iterator[float]:
    x, branch, gate, scale, shift = (torch.randn(3, 5, 100, device=device).to(dtype) for _ in range(5))
    added, plain = torch.addcmul(x, gate, branch), x + branch
    total, out = gate_norm(x, branch, gate, Shade(scale, shift, 1e-6, plus=True))
    shaded = torch.addcmul(shift, F.layer_norm(added, (100,), eps=1e-6), 1 + scale)
    affine = gate_norm(x, branch, None, Shade(scale[0, 0], shift[0, 0], 1e-6, rounds=False))
    yield from (off(total, added), off(out, shaded), off(affine[0], plain, exact=True))
    yield off(affine[1], F.layer_norm(plain, (100,), scale[0, 0], shift[0, 0], 1e-6))


def _check_unit_append(device: torch.device, dtype: torch.dtype) -> Iterator[float]:
    qkv, steepness = torch.randn(2, 3, 3, 5, 48, device=device).to(dtype), torch.rand(5, device=device).to(dtype)
    turns = torch.polar(torch.ones(3, 24, device=device), torch.randn(3, 24, device=device))
    q, k, v = qkv.float().transpose(1, 3).unbind(2)
    steep = steepness.float().clamp_max(0.5).exp()[:, None, None] * math.sqrt(48)
    units = [(F.normalize(part, dim=-1) * scale).to(dtype) for part, scale in ((q, steep), (k, 1.0))]
    turned = [torch.view_as_real(torch.view_as_complex(part.float().unflatten(-1, (-1, 2))) * turns).flatten(-2) for part in units]
    made, rotated = unit_append(qkv, steepness, 0.5, None, None), unit_append(qkv, steepness, 0.5, turns, None)
    yield from (off(*pair) for pair in zip((*made, *rotated[:2]), (*units, v, *turned), strict=True))
    yield off(rotated[2].float(), v, exact=True)


def _check_add_silu(device: torch.device, dtype: torch.dtype) -> Iterator[float]:
    x, time = (torch.randn(size, device=device).to(dtype) for size in ((3, 5, 1100), (1100,)))
    yield off(add_silu(x, time), F.silu(time + x))


def _check_denoise(device: torch.device, dtype: torch.dtype) -> Iterator[float]:
    out, (x, noise) = torch.randn(6, 5, 14, device=device).to(dtype), torch.randn(2, 3, 5, 7, device=device)
    scale, wide = torch.tensor(2.5, device=device), out.float()
    eps = torch.lerp(wide[3:, :, :7], wide[:3, :, :7], scale)
    expected = 1.1 * x - 0.3 * eps + torch.exp(0.4 * wide[:3, :, 7:] - 2) * noise
    following, fed = denoise(out, x, noise, scale, (1.1, 0.3, -2.0, 0.4))
    last, _ = denoise(out[:3], x, None, None, (1.1, 0.3, -2.0, 0.4))
    plain = 1.1 * x - 0.3 * wide[:3, :, :7]
    yield from (off(following, expected), off(last, plain), off(fed, following.to(dtype).repeat(2, 1, 1), exact=True))


CHECKS[PASSES].update(gate_norm=_check_gate_norm, unit_append=_check_unit_append, add_silu=_check_add_silu, denoise=_check_denoise)
