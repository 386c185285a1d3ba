"""Fused passes: several elementwise operations of a model in one kernel, behind one switch.

On a CPU plain operations remain, and the ``reference`` engine leaves the switch off. Each kernel is compared with the plain operations on a
device before its first use there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import random_streams as streams
from .check import failure, note, remembered
from .mass import interpreted, triton_missing

_on: ContextVar[bool] = ContextVar("fused passes", default=False)
_listeners: list[Callable[..., None]] = []
LOG2_E = 1.4426950408889634
Check = Callable[[torch.device, torch.dtype], Iterable[float]]  # yields what `off` returns
PASSES = "fused passes"


@contextmanager
def fusing(on: bool = True) -> Iterator[None]:
    """Use fused passes within, where Triton runs."""
    token = _on.set(on)
    try:
        yield
    finally:
        _on.reset(token)


@contextmanager
def launches(listen: Callable[..., None]) -> Iterator[None]:
    """Call ``listen(name, *tensors)`` for every launch within, with all tensors of the kernel."""
    _listeners.append(listen)
    try:
        yield
    finally:
        _listeners.remove(listen)


def fuses(x: Tensor) -> bool:
    """Return whether a pass over ``x`` is fused: never while gradients are recorded."""
    return x.is_contiguous() and not x.requires_grad and runs(x.device, x.dtype)


def runs(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether fused passes are on, and run on a device."""
    if not _on.get() or device.type == "meta":
        return _on.get()
    return (device.type == "cuda" or interpreted()) and not triton_missing() and not faults(device, dtype)


def faults(device: torch.device, dtype: torch.dtype, group: str = PASSES) -> str:
    """Return why a group of fused passes cannot be trusted on a device, or ""; they are compared once per device class."""
    if reason := _faults(device, dtype, group):
        note(group, reason, "are")
    return reason


@cache
def _faults(device: torch.device, dtype: torch.dtype, group: str) -> str:
    name = f"{group}: {str(dtype).removeprefix('torch.')}"
    return "" if device.type == "cpu" else remembered(name, device.type, lambda: deviations(device, dtype, group))


def deviations(device: torch.device, dtype: torch.dtype, group: str = PASSES) -> str:
    """Compare fused passes with plain operations; return which deviate, and how far, or how they fail, or ""."""
    token = _on.set(False)
    try:
        bad = [f"{name} by {worst:.2g}" for name, check in CHECKS[group].items() if (worst := max(check(device, dtype)))]
    except Exception as error:  # whatever a compiler or driver raises
        return failure(error)
    finally:
        _on.reset(token)
    return f"they deviate from plain operations on this device, {', '.join(bad)}" if bad else ""


def launch(
    name: str, grid: tuple[int, ...], tensors: tuple[Tensor, ...], *numbers: Any, warps: int = 4, exact: bool = False,
    touched: Sequence[Tensor] = (), **constants: Any,
) -> None:
    """Launch a kernel on tensors and numbers; on the meta device, only call the listeners.

    ``exact``: round every operation as torch does, instead of contracting multiplications and additions. ``touched``: what it reads and
    writes, if that is less or more than its tensors.
    """
    for listen in _listeners:
        listen(name, *(touched or tensors))
    if not tensors[0].is_meta:
        from . import fused_norms_triton, fused_products_triton, fused_triton, selection_triton

        modules = fused_triton, selection_triton, fused_norms_triton, fused_products_triton
        kernel = next(getattr(module, name) for module in modules if hasattr(module, name))
        kernel[grid](*tensors, *numbers, **constants, num_warps=warps, enable_fp_fusion=not exact)


def power(number: int) -> int:
    """Return the least power of two that is not below a number."""
    return 1 << (number - 1).bit_length()


# -- the passes -------------------------------------------------------------------------------------------------------
def add_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x + y and its RMS norm, both (rows, tokens, dim)."""
    total, out = torch.empty_like(x), torch.empty_like(x)
    width = x.size(-1)
    launch("add_norm", (x.numel() // width,), (x, y.contiguous(), weight, total, out), width, eps, WIDTH=power(width))
    return total, out


def silu_mul(both: Tensor) -> Tensor:
    """Return silu(gate)·up (…, hidden) from gate and up side by side (…, 2·hidden)."""
    hidden = both.size(-1) // 2
    out = both.new_empty(*both.shape[:-1], hidden)
    block = min(1024, power(hidden))
    launch("silu_mul", (out.numel() // hidden, -(-hidden // block)), (both, out), hidden, BLOCK=block)
    return out


class Turn(NamedTuple):
    """Rotation of the queries and keys of a pass.

    ``turns`` ([rows,] tokens, pairs) complex64. ``heads``: of the queries. ``halves``: a channel's partner is half of the rotated channels
    away, else its neighbor. ``norms``: weight and bias of the queries' LayerNorm before it, and of the keys'.
    """

    turns: Tensor
    heads: int
    halves: bool = False
    norms: tuple[Tensor, Tensor, Tensor, Tensor] | tuple[()] = ()

    def arguments(self, width: int) -> tuple[tuple[Tensor, ...], int, dict[str, Any]]:
        """Return tensors, the step between rows and constants of a kernel, for heads of ``width`` channels."""
        real = torch.view_as_real(self.turns.contiguous())
        by_row = real.stride(0) if self.turns.dim() == 3 and self.turns.size(0) > 1 else 0
        return (real, *(self.norms or (real,) * 4)), by_row, {
            "HEAD_DIM": width, "WIDTH": max(16, power(width)), "TURNED": 2 * self.turns.size(-1), "HALVES": int(self.halves),
            "NORM": int(bool(self.norms))}


def rotate_append(qkv: Tensor, turn: Turn, place: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate queries and keys, and store keys and values at ``place``, or in new tensors.

    ``qkv`` (rows, tokens, heads + 2·groups, head_dim); ``place``: two tensors (rows, groups, tokens, head_dim). Returns queries, keys and
    values, (rows, heads or groups, tokens, head_dim).
    """
    rows, tokens, every, width = qkv.shape
    groups = (every - turn.heads) // 2
    q = qkv.new_empty(rows, turn.heads, tokens, width)
    k, v = place or (qkv.new_empty(rows, groups, tokens, width) for _ in range(2))
    (real, *norms), by_row, constants = turn.arguments(width)
    launch("rotate_append", (rows * tokens, every), (qkv, real, q, k, v, *norms), *k.stride()[:3], *v.stride()[:3], tokens, by_row,
           turn.heads, groups, warps=1, exact=True, touched=(qkv, real, q, k, v), **constants)
    return q, k, v


def attend_turned(
    qkv: Tensor, turn: Turn, k: Tensor, v: Tensor, live: int, asked: bool, lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Rotate a token's query and key, append key and value to ``k`` and ``v`` after ``live`` entries, and attend to all of them.

    ``qkv`` (rows, 1, 3·heads, head_dim); ``k``, ``v`` (rows, heads, capacity, head_dim), contiguous; ``lengths`` (rows, 1) int32: the
    entries of each row, where these differ. Returns the output (rows, heads, 1, head_dim) and, if ``asked`` for, the rotated queries.
    """
    rows, _, _, width = qkv.shape
    assert k.is_contiguous(), "keys are not contiguous"
    out = qkv.new_empty(rows, turn.heads, 1, width)
    q = torch.empty_like(out) if asked else None
    (real, *norms), by_row, constants = turn.arguments(width)
    keys = min(128, max(16, 8192 // (constants["WIDTH"] * qkv.element_size())))
    tensors = qkv, real, k, v, out if q is None else q, out, *norms, real if lengths is None else lengths
    launch("attend_turned", (rows * turn.heads,), tensors, by_row, turn.heads, k.size(2), live, width**-0.5 * LOG2_E, warps=2, KEYS=keys,
           ASKED=int(asked), LENGTHS=int(lengths is not None), **constants)
    return out, q


def sample(
    logits: Tensor, seeds: Tensor, place: Tensor, purpose: int, temperature: float, scale: float | None, top_k: int = 0,
    lined: tuple[int, int, int, int] | None = None,
) -> Tensor:
    """Draw tokens (batch,) int64 from fp32 logits (rows, vocab), guided by ``scale`` if given.

    ``lined``: the first of the codes, how many there are, the token that ends lines, and how long these are; None for any token anywhere.
    """
    batch, vocab = len(seeds), logits.size(-1)
    out, scaled = torch.empty_like(seeds), logits.new_empty(batch, vocab)
    launch("sample", (batch,), (logits, seeds, place, scaled, out), vocab, scale or 0.0, temperature, purpose, batch, min(top_k, vocab),
           *(lined or (0, 0, 0, 1)), warps=8, exact=True, GUIDED=int(scale is not None), TOP_K=int(top_k > 0), LINED=int(lined is not None),
           BLOCK=min(4096, power(vocab)))
    return out


def numbers(seeds: Tensor, purpose: str, places: Tensor, count: int, *, gumbel: bool) -> Tensor:
    """Return ``count`` uniform numbers in (0, 1), or Gumbel's, for each seed at each place, (…, count) fp32.

    ``seeds`` and ``places`` int64 broadcast. The numbers are those of :mod:`~cachemark.cache.random_streams`.
    """
    shape = torch.broadcast_shapes(seeds.shape, places.shape)
    seeds, places = (each.expand(shape).contiguous() for each in (seeds, places))
    out = torch.empty(*shape, count, device=seeds.device)
    block = min(1024, power(count))
    launch("numbers", (seeds.numel(), -(-count // block)), (seeds, places, out), streams.PURPOSES[purpose], count, exact=True,
           GUMBEL=int(gumbel), BLOCK=block)
    return out


def random_numbers(seeds: Tensor, purpose: str, place: int | Tensor, count: int, *, gumbel: bool = False) -> Tensor:
    """Return random numbers, see :func:`numbers`, in one kernel where passes are fused."""
    if not runs(seeds.device, torch.float32):
        return (streams.gumbel if gumbel else streams.uniform)(streams.keys(seeds, purpose, place), count)
    places = place if isinstance(place, Tensor) else torch.full((), place, device=seeds.device)
    return numbers(seeds, purpose, places, count, gumbel=gumbel)


# -- their checks -----------------------------------------------------------------------------------------------------
def off(made: Tensor, right: Tensor, *, exact: bool = False) -> float:
    """Return how far ``made`` is from ``right``, 0 within some roundings in its dtype; if ``exact``, the share of numbers that differ."""
    if exact:
        return float((made != right).double().mean())
    apart = float((made.double() - right.double()).abs().max())
    limit = 8 * torch.finfo(made.dtype).eps * float(right.double().abs().max().clamp_min(1))
    return 0.0 if apart <= limit else apart if apart == apart else math.inf


def _check_add_norm(device: torch.device, dtype: torch.dtype) -> Iterator[float]:
    x, y, weight = (torch.randn(size, device=device).to(dtype) for size in ((3, 1, 100), (3, 1, 100), (100,)))
    total, out = add_norm(x, y, weight, 1e-5)
    yield off(total, x + y, exact=True)
    yield off(out, F.rms_norm(x + y, (100,), eps=1e-5) * weight)


def _check_silu_mul(device: torch.device, dtype: torch.dtype) -> Iterator[float]:
    both = torch.randn(5, 2 * 1100, device=device).to(dtype)
    gate, up = both.chunk(2, -1)
    yield off(silu_mul(both), F.silu(gate) * up)


def _check_rotate_append(device: torch.device, dtype: torch.dtype) -> Iterator[float]:
    """Compare neighbors that are rotated, and 40 channels by halves after a norm."""
    qkv, wide = torch.randn(3, 2, 7, 48, device=device).to(dtype), (3, 2, 5, 48)
    turns = torch.polar(torch.ones(3, 2, 24, device=device), torch.randn(3, 2, 24, device=device))
    pairs = torch.view_as_complex(qkv[:, :, :5].float().unflatten(-1, (-1, 2))) * turns.unsqueeze(-2)
    q_weight, q_bias, k_weight, k_bias = norms = tuple(torch.randn(4, 1, 48, device=device).to(dtype))
    weight, bias = (torch.cat((q.expand(3, 48), k.expand(2, 48))) for q, k in ((q_weight, k_weight), (q_bias, k_bias)))
    normed = F.layer_norm(qkv[:, :, :5], (48,), eps=1e-5) * weight + bias
    first, second, rest = normed.float().split((20, 20, 8), -1)
    cos, sin = turns[..., None, :20].real, turns[..., None, :20].imag
    halves = torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)
    for turn, right in ((Turn(turns, 3), torch.view_as_real(pairs).reshape(wide)), (Turn(turns[..., :20], 3, True, norms), halves)):
        q, k, v = rotate_append(qkv, turn, None)
        turned = right.to(dtype).transpose(1, 2)
        yield from (off(q, turned[:, :3]), off(k, turned[:, 3:]), off(v, qkv[:, :, 5:].transpose(1, 2), exact=True))


def _check_attend_turned(device: torch.device, dtype: torch.dtype) -> Iterator[float]:
    """Compare one kernel with rotation and attention in two, by halves and after norms, with one length and with several."""
    for live, halves in ((70, False), (3, True)):
        lengths = torch.full((3, 1), live, dtype=torch.int32, device=device) if halves else None
        qkv, cache = torch.randn(3, 1, 6, 48, device=device).to(dtype), torch.randn(2, 3, 2, live + 2, 48, device=device).to(dtype)
        turns = torch.polar(torch.ones(3, 1, 20, device=device), torch.randn(3, 1, 20, device=device))
        turn = Turn(turns, 2, halves, tuple(torch.randn(4, 48, device=device).to(dtype)) if halves else ())
        (k, v), (right_k, right_v) = cache, cache.clone()
        q, *_ = rotate_append(qkv, turn, (right_k[:, :, live : live + 1], right_v[:, :, live : live + 1]))
        out, asked = attend_turned(qkv, turn, k, v, live, asked=True, lengths=lengths)
        right = F.scaled_dot_product_attention(q, right_k[:, :, : live + 1], right_v[:, :, : live + 1])
        assert asked is not None
        yield from (off(out, right), off(asked, q), off(k, right_k), off(v, right_v, exact=True))


def _check_sample(device: torch.device, dtype: torch.dtype) -> Iterator[float]:
    seeds, place, purpose = torch.arange(8, device=device), torch.tensor([7], device=device), streams.PURPOSES["token"]
    logits, entry = torch.randn(16, 1100, device=device), torch.arange(1100, device=device)
    noise = streams.gumbel(streams.keys(seeds, "token", 7), 1100)
    guided = logits[8:] + (logits[:8] - logits[8:]) * 3.0
    lined = guided.masked_fill((entry < 5) | (entry >= 1005), -1e9) / 0.9
    kept = lined.masked_fill(lined < lined.topk(20).values[:, -1:], float("-inf"))
    cases = (None, 0, None, logits[:8] / 0.9), (3.0, 0, None, guided / 0.9), (3.0, 20, (5, 1000, 2, 9), kept)
    for scale, top_k, codes, expected in cases:
        yield off(sample(logits, seeds, place, purpose, 0.9, scale, top_k, codes), (expected + noise).argmax(-1), exact=True)


def _check_numbers(device: torch.device, dtype: torch.dtype) -> Iterator[float]:
    seeds, places = torch.arange(3, device=device)[:, None], torch.tensor([0, 7], device=device)
    key = streams.keys(seeds, "noise", places)
    yield off(numbers(seeds, "noise", places, 1100, gumbel=False), streams.uniform(key, 1100), exact=True)
    yield off(numbers(seeds, "noise", places, 1100, gumbel=True), streams.gumbel(key, 1100))


CHECKS: dict[str, dict[str, Check]] = {PASSES: {
    "add_norm": _check_add_norm, "silu_mul": _check_silu_mul, "rotate_append": _check_rotate_append,
    "attend_turned": _check_attend_turned, "numbers": _check_numbers, "sample": _check_sample,
}}
