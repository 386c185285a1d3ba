"""Compile every Triton kernel for GPUs that are not there, and count what decides its speed.

``python benchmarks/compiled.py`` prints one row for each variant and architecture: registers, spills, shared memory, loads of 128 bits,
programs per multiprocessor, and the bytes that these keep in flight, against what Little's law asks for to use the memory's bandwidth.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.launched import launched
from cachemark.cache import kernels
from cachemark.cache.codec import INT4
from cachemark.cache.kernels import fused_triton, mass_triton, selection_triton
from cachemark.cache.kernels.decode_triton import CODES, STAGES, plan

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
REGISTERS, WARPS, SHARED, BLOCKS = 65536, {80: 64, 90: 64, 100: 64}, {80: 164, 90: 228, 100: 228}, 32  # of a multiprocessor; KiB
# Bytes per second, multiprocessors and seconds of latency of A100, H200 and B200: bandwidths and counts of the data sheets, a latency of
# 0.8 µs under load (0.6 µs for the A100).
MEMORY = {80: (2.0e12, 108, 0.6e-6), 90: (4.8e12, 132, 0.8e-6), 100: (8.0e12, 148, 0.8e-6)}
ELEMENTS = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.bool: "i1"}
DTYPES = {"bfloat16": ("bf16", 2), "float16": ("fp16", 2), "float32": ("fp32", 4)}


@dataclass(frozen=True)
class Variant:
    """One compiled form of a kernel: ``types`` of its parameters, those divisible by 16, its constants and warps.

    ``bytes_in_flight``: what a program loads from keys and values before it waits.
    """

    name: str
    kernel: Any
    types: Mapping[str, str]
    even: frozenset[str]
    constants: Mapping[str, int]
    warps: int
    bytes_in_flight: int = 0
    widest: int = 128  # bits that the alignment of a vector allows in one load; 0 where it reads numbers
    exact: bool = False  # no contraction of multiplications and additions


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a variant for an architecture."""

    variant: Variant
    arch: int
    registers: int
    local: int
    shared: int
    wide_loads: int
    ahead: int

    @property
    def programs(self) -> int:
        """Programs that run on a multiprocessor at once, by warps, registers and shared memory."""
        by_registers = REGISTERS // (32 * self.variant.warps * -(-self.registers // 8) * 8)
        by_memory = SHARED[self.arch] * 1024 // (self.shared + 1024)
        return min(WARPS[self.arch] // self.variant.warps, by_registers, by_memory, BLOCKS)

    @property
    def in_flight(self) -> int:
        """Bytes that a multiprocessor waits for at once; asynchronous copies load several blocks ahead."""
        return self.programs * self.variant.bytes_in_flight * self.ahead

    @property
    def filling(self) -> int:
        """Programs on the whole device whose bytes in flight hide the memory's latency; 0 if they are not counted."""
        each = self.variant.bytes_in_flight * self.ahead
        return math.ceil(self.needed * MEMORY[self.arch][1] / each) if each else 0

    @property
    def needed(self) -> float:
        """Bytes in flight on a multiprocessor that hide the memory's latency: bandwidth × latency / multiprocessors."""
        rate, count, latency = MEMORY[self.arch]
        return rate * latency / count


def decodes() -> Iterator[Variant]:
    """Yield the variants of the decode kernels: every codec, width and group that a catalogue's model has, with and without mass."""
    for head_dim, group, dtype, codec, mass in (
        *((width, 1, "bfloat16", codec, False) for width in (64, 128) for codec in ("native", "int8", "fp8", "int4", "kivi4")),
        *((width, 1, "bfloat16", "native", False) for width in (80, 96, 100)),
        *((100, 1, "bfloat16", codec, False) for codec in ("int4", "kivi4")), (64, 1, "float32", "native", False),
        (64, 1, "bfloat16", "native", True), (64, 1, "bfloat16", "int8", True), (64, 1, "bfloat16", "kivi4", True),
        (128, 4, "bfloat16", "native", False), (128, 16, "bfloat16", "native", True), (128, 4, "bfloat16", "int8", False),
    ):
        yield decode_variant(head_dim, group, dtype, codec, mass)


def decode_variant(head_dim: int, group: int, dtype: str, codec: str, mass: bool) -> Variant:
    """Return the variant that a call with one length compiles."""
    name, itemsize = DTYPES[dtype]
    of_codes = head_dim if codec in CODES else head_dim // 2
    chosen = plan(head_dim, group, itemsize, codec, INT4.widths(head_dim, torch.float16)[1][0], math.gcd(16, of_codes), mass, False, False)
    element = {"native": name, "int8": "i8"}.get(codec, "u8")
    width = of_codes * (itemsize if codec == "native" else 1)
    pointers = {"k_at": element, "v_at": element, "k_scale_at": "fp16" if codec == "fp8" else "fp32", "mass_at": "fp32",
                "lengths_at": "i32", "starts_at": "i32", "arrival_at": "i16", "arrived_at": "i64"}
    pointers |= dict.fromkeys(("k_step_at", "k_least_at", "v_step_at", "v_least_at"), "fp16") | {"v_scale_at": pointers["k_scale_at"]}
    if codec == "native":
        pointers |= {"k_scale_at": name, "v_scale_at": name}
    types = {parameter: f"*{pointers.get(parameter, name)}" if parameter.endswith("_at") else "fp32" if parameter == "scale" else "i32"
             for parameter in chosen.kernel.arg_names if parameter not in chosen.constants}
    odd = {"k_token", "v_token", "k_head", "v_head", "k_row", "v_row"}  # in units of the power of two that divides them
    even = {parameter for parameter in types if parameter.endswith(("_at", "_row", "_head", "_token"))} - odd
    if codec != "native":
        even -= {"ks_token", "vs_token", "a_token", "length_row", "length_head"}
    widest = next(bits for bits in (128, 64, 32, 16) if width * 8 % bits == 0)
    return Variant(f"decode d {head_dim}, group {group}, {dtype}, {codec}{', mass' * mass}", chosen.kernel, types, frozenset(even),
                   chosen.constants, chosen.warps, 2 * chosen.constants["KEYS"] * width, widest)


def masses() -> Iterator[Variant]:
    """Yield the variant of the kernel with mass for many queries."""
    kernel, constants = mass_triton._kernel, {"QUERIES": mass_triton.QUERIES, "KEYS": mass_triton.KEYS, "WIDTH": 64}
    types = {name: "*fp32" if name == "mass_at" else "*bf16" if name.endswith("_at") else "fp32" if name == "scale" else "i32"
             for name in kernel.arg_names if name not in constants}
    even = frozenset(types) - {"scale", "heads", "tokens", "keys"}
    yield Variant("mass of many queries, d 64, bfloat16", kernel, types, even, constants, 4)


def selections() -> Iterator[Variant]:
    """Yield the kernels that select entries at a line's end, for LlamaGen-XL and, with two K/V heads, GLM-Image."""
    shape, numbers = {"QUERIES": 16, "KEYS": 64, "ENDS": 0, "LENGTHS": 0}, {"out_at": "fp32", "spare_at": "fp32"}
    for head_dim, group in ((64, 1), (128, 16)):
        for pool, similar in ((0, 0), (5, 0), *[(7, 1)] * (group == 1)):
            name = f"scores of a line{', pooled' * (pool > 0)}{', less redundant ones' * similar}, d {head_dim}, group {group}"
            yield variant(name, selection_triton.attended, 4, numbers, **shape, GROUP=group, WIDTH=head_dim, HEAD_DIM=head_dim,
                          POOL=pool, SIMILAR=similar)
        yield variant(f"moves, d {head_dim}", selection_triton.move, 4, {}, BLOCK=32, WIDTH=head_dim, PADDED=head_dim, BOTH=1, LENGTHS=0)
    for entries, one in ((128, 0), (1024, 0), (1024, 1), (4096, 0)):
        yield variant(f"choice of {entries}{', one goes' * one}", selection_triton.choose, 4 if entries <= 1024 else 8,
                      {"score_at": "fp32"}, widest=0, ENTRIES=entries, ONE=one, LENGTHS=0)


def turns() -> Iterator[Variant]:
    """Yield the kernels that rotate, with and without attention: by neighbors, and by halves after norms; and the one that samples."""
    for head_dim, halves in ((64, 0), (100, 0), (128, 1)):
        shape = {"HEAD_DIM": head_dim, "WIDTH": head_dim if head_dim != 100 else 128, "TURNED": head_dim, "HALVES": halves, "NORM": halves}
        keys, widest = 8192 // (2 * shape["WIDTH"]), 128 if head_dim != 100 else 64
        name = f"d {head_dim}{', by halves' * halves}"
        yield variant(f"rotation, {name}", fused_triton.rotate_append, 1, {"turns_at": "fp32"}, widest=0, **shape)
        one = variant(f"rotation and attention, {name}", fused_triton.attend_turned, 2, {"turns_at": "fp32"}, widest, KEYS=keys, ASKED=1,
                      LENGTHS=0, **shape)
        yield replace(one, bytes_in_flight=4 * keys * head_dim)
    pointers = {"logits_at": "fp32", "seeds_at": "i64", "place_at": "i64", "scaled_at": "fp32", "out_at": "i64"}
    draws = variant("sampling with top-k, in lines", fused_triton.sample, 8, pointers, GUIDED=1, TOP_K=1, LINED=1, BLOCK=4096)
    yield replace(draws, exact=True)


FLOATS = {"scale", "eps", "temperature", "similar", "mix"}
TABLES = {"visual_at": "i16", "holes_at": "i16", "sources_at": "i16", "lengths_at": "i32"}


def variant(name: str, kernel: Any, warps: int, pointers: Mapping[str, str], widest: int = 128, **constants: int) -> Variant:
    """Return a variant whose other pointers are to bf16 and whose strides are even."""
    kinds = {**TABLES, **pointers}
    types = {each: f"*{kinds.get(each, 'bf16')}" if each.endswith("_at") else "fp32" if each in FLOATS else "i32"
             for each in kernel.arg_names if each not in constants}
    even = frozenset(each for each in types if each.endswith(("_at", "_pair", "_head", "_token", "_row", "_entry")) or each == "vocab")
    return Variant(name, kernel, types, even, constants, warps, widest=widest)


def passes() -> Iterator[Variant]:
    """Yield the kernels that passes of published models launch, as Triton specializes them for these arguments."""
    names = [module.name for module in iter_modules(kernels.__path__) if module.name.endswith("_triton")]
    modules = [import_module(f"{kernels.__name__}.{name}") for name in names]
    for launch in launched():
        kernel = next(getattr(module, launch.name) for module in modules if hasattr(module, launch.name))
        values = dict(zip(kernel.arg_names, (*launch.tensors, *launch.numbers), strict=False))
        ones = {name: 1 for name, value in values.items() if not isinstance(value, Tensor | float) and value == 1}
        types = {name: f"*{ELEMENTS[value.dtype]}" if isinstance(value, Tensor) else "fp32" if isinstance(value, float) else "i32"
                 for name, value in values.items() if name not in ones}
        even = {name for name in types if isinstance(value := values[name], Tensor) or (isinstance(value, int) and value % 16 == 0)}
        flags = ", ".join(f"{name} {value}" for name, value in launch.constants.items())
        enough = max(launch.constants.values()) * launch.tensors[0].itemsize >= 16 * 32 * launch.warps  # for 16 bytes of each thread
        yield Variant(f"{launch.name} ({flags})", kernel, types, frozenset(even), {**ones, **launch.constants}, launch.warps,
                      widest=128 * enough, exact=launch.exact)


def attention() -> list[Variant]:
    """Return the variants of attention, selection and rotation with attention."""
    return [*decodes(), *masses(), *selections(), *turns()]


def compiled(variant: Variant, arch: int) -> Compiled:
    """Compile a variant and read its machine code."""
    names = variant.kernel.arg_names
    types = {name: variant.types.get(name, "constexpr") for name in names}
    attributes = {(number,): [["tt.divisibility", 16]] for number, name in enumerate(names) if name in variant.even}
    source = ASTSource(fn=variant.kernel, signature=types, constexprs=dict(variant.constants), attrs=attributes)
    options = {"num_warps": variant.warps, "num_stages": int(STAGES), "enable_fp_fusion": not variant.exact}
    built = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(built.asm["cubin"])
        usage, code = (subprocess.run([str(TOOLS / "cuobjdump"), flag, file.name], capture_output=True, text=True, check=True).stdout
                       for flag in ("-res-usage", "-sass"))
    registers, local = (int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "LOCAL"))  # type: ignore[index]
    wide, ahead = (len(re.findall(pattern, code)) for pattern in (rf"LDG\S*\.{variant.widest}\b", r"LDGSTS\S*"))
    return Compiled(variant, arch, registers, local, built.metadata.shared, wide, int(STAGES) - 1 if ahead else 1)


def main() -> None:
    archs = [int(arch) for arch in sys.argv[1:]] or [80, 90, 100]
    print(f"triton {triton.__version__}\n")
    columns = ("kernel", "sm", "warps", "registers", "spilled bytes", "shared bytes", "wide loads", "programs", "KiB in flight", "× Little",
               "programs that fill the device")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for variant in [*attention(), *passes()]:
        for arch in archs:
            made = compiled(variant, arch)
            little = f"{made.in_flight / made.needed:.1f}" if made.in_flight else "–"
            print(f"| {variant.name} | {arch} | {variant.warps} | {made.registers} | {made.local} | {made.shared} | "
                  f"{made.wide_loads} × {variant.widest} bit | {made.programs} | {made.in_flight / 1024:.0f} | {little} | "
                  f"{made.filling or '–'} |", flush=True)


if __name__ == "__main__":
    main()
