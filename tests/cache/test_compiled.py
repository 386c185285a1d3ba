"""Every Triton kernel compiles for GPUs that are not here, spills nothing, and loads as wide as vectors are aligned."""

from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")
compiled = pytest.importorskip("benchmarks.compiled")

VARIANTS = {variant.name: variant for variant in compiled.variants()}
CASES = [*((name, 90) for name in VARIANTS), *((name, arch) for arch in (80, 100) for name in [*VARIANTS][:4:3])]


@pytest.mark.parametrize(("name", "arch"), CASES)
def test_a_kernel_compiles_without_spills(name: str, arch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    made = compiled.compiled(VARIANTS[name], arch)
    assert made.local == 0
    assert made.wide_loads or not made.variant.widest
    assert made.variant.bytes_in_flight == 0 or made.in_flight >= 2 * made.needed
