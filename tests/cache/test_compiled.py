"""Every Triton kernel compiles for GPUs that are not here, spills nothing, and loads as wide as vectors are aligned."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed")
compiled = pytest.importorskip("benchmarks.compiled")

ARCHS = (80, 90, 100)
VARIANTS = {variant.name: variant for variant in compiled.attention()}
# By day the first variants, which compile fastest, of every other kernel.
DAILY = list({variant.kernel: name for name, variant in reversed(VARIANTS.items())}.values())[::2]


@pytest.fixture(autouse=True)
def compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def check(made: Any) -> None:
    assert made.local == 0
    unaligned = made.variant.widest == 16  # 50 bytes of codes: no loads ahead of their use, which take 4 bytes at least
    assert made.wide_loads or unaligned or not made.variant.widest
    assert made.variant.bytes_in_flight == 0 or made.arch == 100 or unaligned or made.in_flight >= 2 * made.needed


@pytest.mark.parametrize(("name", "arch"), [
    pytest.param(name, arch, marks=[pytest.mark.slow] * (arch != 90 or name not in DAILY)) for name in VARIANTS for arch in ARCHS])
def test_a_kernel_of_attention_compiles_without_spills(name: str, arch: int) -> None:
    check(compiled.compiled(VARIANTS[name], arch))


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_fused_kernels_compile_without_spills(arch: int) -> None:
    """Those that passes of published models launch, with their arguments."""
    others = {variant.kernel for variant in VARIANTS.values()}
    variants = {variant.kernel.fn.__name__: variant for variant in compiled.passes() if variant.kernel not in others}
    assert {"add_norm", "silu_mul", "gate_norm", "denoise", "product"} <= variants.keys()
    for variant in variants.values():
        check(compiled.compiled(variant, arch))
