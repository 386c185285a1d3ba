"""Fused passes: several elementwise operations of a model in one kernel, behind one switch.

On a CPU plain operations remain, and the ``reference`` engine leaves the switch off. Each kernel is compared with the plain operations on a
device before its first use there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import random_streams as streams
from .check import failure, note, remembered
from .decode import interpreted
from .mass import triton_missing

_on: ContextVar[bool] = ContextVar("fused passes", default=False)
_listeners: list[Callable[..., None]] = []
Check = Callable[[torch.device, torch.dtype], bool]
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


def faults(device: torch.device, dtype: torch.dtype) -> str:
    """Return why fused passes cannot be trusted on a device, or ""; they are compared once per device class."""
    if reason := _faults(device, dtype):
        note(PASSES, reason)
    return reason


@cache
def _faults(device: torch.device, dtype: torch.dtype) -> str:
    name = f"{PASSES}: {str(dtype).removeprefix('torch.')}"
    return "" if device.type == "cpu" else remembered(name, device.type, lambda: deviations(device, dtype))


def deviations(device: torch.device, dtype: torch.dtype) -> str:
    """Compare fused passes with plain operations; return which deviate, or how they fail, or ""."""
    token = _on.set(False)
    try:
        bad = [name for name, check in CHECKS.items() if not check(device, dtype)]
    except Exception as error:  # whatever a compiler or driver raises
        return failure(error)
    finally:
        _on.reset(token)
    return f"{', '.join(bad)} deviate from plain operations on this device" if bad else ""


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
        from . import fused_norms_triton, fused_triton, selection_triton

        modules = fused_triton, selection_triton, fused_norms_triton
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


def rotate_append(qkv: Tensor, turns: Tensor, heads: int, place: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate queries and keys by channel pairs, and store keys and values at ``place``, or in new tensors.

    ``qkv`` (rows, tokens, heads + 2·groups, head_dim); ``turns`` ([rows,] tokens, head_dim/2) complex64; ``place``: two tensors (rows,
    groups, tokens, head_dim). Returns queries, keys and values, (rows, heads or groups, tokens, head_dim).
    """
    rows, tokens, every, width = qkv.shape
    groups = (every - heads) // 2
    q = qkv.new_empty(rows, heads, tokens, width)
    k, v = place or (qkv.new_empty(rows, groups, tokens, width) for _ in range(2))
    real = torch.view_as_real(turns.contiguous())
    by_row = real.stride(0) if turns.dim() == 3 and turns.size(0) > 1 else 0
    numbers = *k.stride()[:3], *v.stride()[:3], tokens, by_row, heads, groups
    launch("rotate_append", (rows * tokens, every), (qkv, real, q, k, v), *numbers, warps=1, exact=True, PAIRS=width // 2,
            PADDED=power(width // 2))
    return q, k, v


def sample(logits: Tensor, seeds: Tensor, place: Tensor, purpose: int, temperature: float, scale: float | None) -> Tensor:
    """Draw tokens (batch,) int64 from fp32 logits (rows, vocab), guided by ``scale`` if given."""
    batch, vocab = len(seeds), logits.size(-1)
    out = torch.empty_like(seeds)
    launch("sample", (batch,), (logits, seeds, place, out), vocab, scale or 0.0, temperature, purpose, batch, warps=8, exact=True,
            GUIDED=int(scale is not None), BLOCK=min(1024, power(vocab)))
    return out


# -- their checks -----------------------------------------------------------------------------------------------------
def near(a: Tensor, b: Tensor) -> bool:
    """Return whether ``a`` is ``b`` up to some roundings in its dtype."""
    close = 8 * torch.finfo(a.dtype).eps * float(b.float().abs().max().clamp_min(1))
    return float((a.float() - b.float()).abs().max()) <= close


def _check_add_norm(device: torch.device, dtype: torch.dtype) -> bool:
    x, y, weight = (torch.randn(size, device=device).to(dtype) for size in ((3, 1, 100), (3, 1, 100), (100,)))
    total, out = add_norm(x, y, weight, 1e-5)
    return torch.equal(total, x + y) and near(out, F.rms_norm(x + y, (100,), eps=1e-5) * weight)


def _check_silu_mul(device: torch.device, dtype: torch.dtype) -> bool:
    both = torch.randn(5, 2 * 1100, device=device).to(dtype)
    gate, up = both.chunk(2, -1)
    return near(silu_mul(both), F.silu(gate) * up)


def _check_rotate_append(device: torch.device, dtype: torch.dtype) -> bool:
    qkv = torch.randn(3, 2, 7, 48, device=device).to(dtype)
    turns = torch.polar(torch.ones(2, 24, device=device), torch.randn(2, 24, device=device))
    pairs = torch.view_as_complex(qkv[:, :, :5].float().unflatten(-1, (-1, 2))) * turns.unsqueeze(-2)
    turned = torch.view_as_real(pairs).flatten(-2).to(dtype).transpose(1, 2)
    q, k, v = rotate_append(qkv, turns, 3, None)
    return near(q, turned[:, :3]) and near(k, turned[:, 3:]) and torch.equal(v, qkv[:, :, 5:].transpose(1, 2))


def _check_sample(device: torch.device, dtype: torch.dtype) -> bool:
    seeds, place, purpose = torch.arange(32, device=device), torch.tensor([7], device=device), streams.PURPOSES["token"]
    logits = torch.randn(64, 1100, device=device)
    noise = streams.gumbel(streams.keys(seeds, "token", 7), 1100)
    guided = logits[32:] + (logits[:32] - logits[32:]) * 3.0
    return all(torch.equal(sample(logits, seeds, place, purpose, 0.9, scale), (expected / 0.9 + noise).argmax(-1))
               for scale, expected in ((None, logits[:32]), (3.0, guided)))


CHECKS: dict[str, Check] = {
    "add_norm": _check_add_norm, "silu_mul": _check_silu_mul, "rotate_append": _check_rotate_append, "sample": _check_sample,
}
