"""Products with their activation: by the library where it has the activation, else by a kernel of ours.

An activation of its own reads and writes the widest tensor of a block again. cuBLAS has the GELU by tanh, neither the exact GELU nor SiLU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import cycle
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor

from . import fused
from .check import failure, note, remembered
from .fused import launch, off, power

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "gelu": F.gelu}
PRODUCTS = "products with activation"
PROGRAMS = 128  # that a product is divided into if it is large enough: about the multiprocessors of a device
ODD = (592, 64, 1040)  # rows, channels in and out of a product whose last blocks are not full
TIMED = 8192, 1024, 4096  # and of one of MAR-L: the kernel is used where it is not slower there


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return gelu(weight·x + bias) by tanh, (…, hidden); on a GPU the product's library computes the gelu."""
    if not (x.is_cuda or x.is_meta):
        return F.gelu(F.linear(x, weight, bias), approximate="tanh")
    return torch._addmm_activation(bias, x.flatten(0, -2), weight.t(), use_gelu=True).unflatten(0, x.shape[:-1])


def joins(x: Tensor) -> bool:
    """Return whether products of ``x`` are computed with their activation: in 16 bits, since matrix units have no fp32."""
    return fused.fuses(x) and (x.device.type in ("meta", "cpu") or (x.itemsize == 2 and not faults(x.device, x.dtype)))


def product(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
    """Return the activation of weight·x + bias, (…, outs), for ``x`` (…, insides) and ``weight`` (outs, insides)."""
    outs, insides = weight.shape
    rows = x.numel() // insides
    out = x.new_empty(*x.shape[:-1], outs)
    m, n, warps = tile(rows, outs)
    k = 64 if x.itemsize == 2 else 32
    launch("product", (-(-rows // m) * -(-outs // n),), (x, weight, bias, out), rows, outs, insides, warps=warps,
           GELU=int(activation == "gelu"), EVEN=int(insides % k == 0), M=m, N=n, K=k)
    return out


def tile(rows: int, outs: int) -> tuple[int, int, int]:
    """Return rows and outputs of a program and its warps: the largest that leave ``PROGRAMS`` programs."""
    for m, n, warps in ((128, 256, 8), (128, 128, 8), (64, 64, 4)):
        if -(-rows // m) * -(-outs // n) >= PROGRAMS:
            return m, n, warps
    return max(16, min(64, power(rows))), 32, 4


# -- the checks on a device -----------------------------------------------------------------------------------------------
def _check_linear_gelu(device: torch.device, dtype: torch.dtype) -> Iterator[float]:
    x, weight, bias = _drawn((15, 64, 96), device, dtype)
    yield off(linear_gelu(x, weight, bias), F.gelu(F.linear(x, weight, bias), approximate="tanh"))


fused.CHECKS[fused.PASSES]["linear_gelu"] = _check_linear_gelu


def faults(device: torch.device, dtype: torch.dtype) -> str:
    """Return why the kernel is not used on a device, or ""; it is compared and timed once per device class."""
    if reason := _faults(device, dtype):
        note(PRODUCTS, reason, "are")
    return reason


@cache
def _faults(device: torch.device, dtype: torch.dtype) -> str:
    return remembered(f"{PRODUCTS}: {str(dtype).removeprefix('torch.')}", device.type, lambda: compare(device, dtype, [ODD, TIMED]))


def compare(device: torch.device, dtype: torch.dtype, shapes: Sequence[tuple[int, int, int]]) -> str:
    """Compare products of ``shapes`` (rows, insides, outs) with plain operations, and on a GPU the times of the last.

    Returns how the kernel deviates or fails, or by how much it is slower, or "".
    """
    try:
        for shape, (name, activation) in zip(shapes, cycle(ACTIVATIONS.items()), strict=False):
            x, weight, bias = _drawn(shape, device, dtype)
            own, plain = partial(product, x, weight, bias, name), partial(_plain, x, weight, bias, activation)
            if apart := off(own(), plain()):
                return f"{name} deviates from plain operations by {apart:.2g} on this device"
        ours, theirs = (_microseconds(each, device) for each in (own, plain))
    except Exception as error:  # whatever a compiler or driver raises
        return failure(error)
    return f"{name} takes {ours:.0f} µs on this device, the library's product and torch's {name} {theirs:.0f} µs" if ours > theirs else ""


def _plain(x: Tensor, weight: Tensor, bias: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    return activation(F.linear(x, weight, bias))


def _drawn(shape: tuple[int, int, int], device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    rows, insides, outs = shape
    x, weight, bias = (torch.randn(size, device=device) for size in ((rows, insides), (outs, insides), (outs,)))
    return [part.to(dtype) for part in (x, weight / insides**0.5, bias)]


def _microseconds(work: Callable[[], Tensor], device: torch.device, repeats: int = 20) -> float:
    """Return the time of a call on a GPU, the least mean of three series; 0 elsewhere."""
    took = list[float]()
    for _ in range(3 if device.type == "cuda" else 0):
        work()
        torch.cuda.synchronize()
        began = perf_counter()
        for _ in range(repeats):
            work()
        torch.cuda.synchronize()
        took.append((perf_counter() - began) / repeats * 1e6)
    return min(took, default=0.0)
