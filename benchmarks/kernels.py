"""Compare attention kernels of one query per row: accuracy against fp64, and on a GPU the rate at which keys and values are read.

The ladder: torch's attention by backend, FlashInfer if it is installed, and our decode kernel with each codec. ``python
benchmarks/kernels.py`` times on a CUDA device. With ``TRITON_INTERPRET=1`` it compares accuracy on a CPU, with few rows. The error of a
codec is mostly its own rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from cachemark.cache.codecs import CODECS
from cachemark.cache.kernels.decode import READABLE
from cachemark.cache.kernels.decode_triton import decode
from cachemark.cache.kernels.flash_infer import FLASHINFER
from cachemark.cache.kernels.plain import sdpa
from cachemark.cache.kernels.record import Entries, Query, Stored

CUDA = torch.cuda.is_available()
DEVICE, DTYPE, REPEATS = ("cuda", torch.bfloat16, 30) if CUDA else ("cpu", torch.float32, 1)


class Shape(NamedTuple):
    """Rows, query heads, K/V heads, keys and head width of a call."""

    rows: int
    heads: int
    kv_heads: int
    keys: int
    width: int


def shapes() -> Iterator[Shape]:
    """Yield LlamaGen-XL at three lengths of its cache, at batch 1 and 256 with guidance, and Emu3 with grouped queries."""
    for rows in (512, 2) if CUDA else (2,):
        for keys in (97, 289, 577):
            yield Shape(rows, 20 if CUDA else 2, 20 if CUDA else 2, keys, 64)
    yield Shape(16 if CUDA else 1, 32 if CUDA else 4, 8 if CUDA else 1, 2048 if CUDA else 130, 128)


def rivals(q: Tensor, k: Tensor, v: Tensor) -> Iterator[tuple[str, Callable[[], Tensor], int]]:
    """Yield each kernel's name, call, and bytes of keys and values that it reads."""
    for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION") if CUDA else ("MATH",):
        def call(name: str = name) -> Tensor:
            with sdpa_kernel(getattr(SDPBackend, name)):
                return sdpa(q, k, v, causal=False)

        yield f"sdpa {name.removesuffix('_ATTENTION').lower()}", call, k.numel() * 2 * k.itemsize
    refused = FLASHINFER.refuses(Query(DEVICE, DTYPE, q.size(1), k.size(1), q.size(-1), 1))

    def paged() -> Tensor:
        if refused:
            raise RuntimeError(refused)
        return FLASHINFER.run(q, Entries.of(k, v), False, None, False)[0]

    yield FLASHINFER.name, paged, k.numel() * 2 * k.itemsize
    for codec in (CODECS[name] for name in READABLE if not CODECS[name].grouped):
        stored = Stored(codec.encode(k), codec.encode(v), k.size(2))
        size = sum(part.nbytes for part in (*stored.k, *stored.v))
        yield f"triton-decode {codec.name}", lambda stored=stored, codec=codec: decode(q, stored, codec.name)[0], size  # type: ignore[misc]


def seconds(call: Callable[[], object]) -> float:
    """Return the median seconds of a call on the device, after a warm-up."""
    for _ in range(3):
        call()
    times = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return sorted(times)[len(times) // 2]


def main() -> None:
    copied = 0.0
    if CUDA:
        source = torch.empty(2**30, dtype=torch.uint8, device=DEVICE)
        target = torch.empty_like(source)
        copied = 2 * source.nbytes / seconds(lambda: target.copy_(source))
        print(f"{torch.cuda.get_device_name()}, copy rate {copied / 1e12:.2f} TB/s\n")
    print("| rows × heads (K/V heads) × keys × width | kernel | largest error | µs | GB/s | of the copy rate |\n|---|---|---|---|---|---|")
    for shape in shapes():
        draw = torch.Generator(DEVICE).manual_seed(0)
        q = torch.randn(shape.rows, shape.heads, 1, shape.width, generator=draw, device=DEVICE).to(DTYPE)
        k, v = torch.randn(2, shape.rows, shape.kv_heads, shape.keys, shape.width, generator=draw, device=DEVICE).to(DTYPE)
        few, row = slice(0, 2), f"| {shape.rows} × {shape.heads} ({shape.kv_heads}) × {shape.keys} × {shape.width} |"
        exact = sdpa(q[few].double(), k[few].double(), v[few].double(), causal=False)
        for name, call, size in rivals(q, k, v):
            try:
                error = float((call()[few].double() - exact).abs().max())
                took = seconds(call) if CUDA else math.nan
            except RuntimeError as reason:
                print(f"{row} {name} | {str(reason).splitlines()[0][:100]} |  |  |  |")
                continue
            speed = f"{took * 1e6:.1f} | {size / took / 1e9:.0f} | {size / took / copied:.0%}" if CUDA else "– | – | –"
            print(f"{row} {name} | {error:.1e} | {speed} |", flush=True)


if __name__ == "__main__":
    main()
