"""Fused passes of next-scale and masked models, in Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cachemark.core.files import PACKAGE

FAULTS = (
    ("inside = place // tokens, place % tokens, channel < width", "inside = place // tokens, place % tokens, channel < width - 1"),
    ("row * gate_row", "0 * gate_row"), ("token * scale_token", "0 * scale_token"), ("tl.where(inside, total -", "tl.where(True, total -"),
    ("scale += 1", "scale += 0"),
    ("bias_at + channel", "weight_at + channel"),
    ("place * 3 + part", "place * 3"), ("minimum(steep", "maximum(steep"), ("token * PAIRS + pair", "pair"),
    ("inside = entry < count", "inside = entry < count - 1"), ("row * v_row", "row * k_row + 1"), ("out_at + 2 * count", "out_at"),
    ("copy * count", "0 * count"), ("total + branch", "total - branch"),
)  # fmt: skip


def interpreted(*arguments: str) -> list[str]:
    pytest.importorskip("triton", reason="Triton is not installed")
    script = Path(__file__).with_name("interpreted_norms.py")
    ran = subprocess.run([sys.executable, "-W", "ignore", str(script), *arguments], capture_output=True, text=True,
                         env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(script.parents[1])})
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


def test_fused_passes_are_plain_operations_in_fp64_and_draw_the_same_tokens() -> None:
    assert not interpreted()


def test_faults_in_fused_passes_are_noticed(tmp_path: Path) -> None:
    """Other rows, tokens, copies and channels, norms over what is masked, and values that are not written."""
    source = (PACKAGE / "cache/kernels/fused_norms_triton.py").read_text()
    copies = [tmp_path / f"fault_{number}.py" for number in range(len(FAULTS))]
    for (right, wrong), copy in zip(FAULTS, copies, strict=True):
        assert right in source, right
        copy.write_text(source.replace(right, wrong))
    assert interpreted(*map(str, copies)) == [str(copy) for copy in copies]
