"""Attention with the mass of each key: the interpreted Triton kernel against the written-out formula."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cachemark.cache import attention
from cachemark.cache.attention import FUSED_MASS_KERNEL, MASS_KERNEL, mass_kernel, with_mass


def test_the_kernel_is_the_written_out_attention() -> None:
    """Triton itself must be interpreted, so the check has its own process."""
    pytest.importorskip("triton", reason="Triton is not installed")
    script = Path(__file__).with_name("interpreted.py")
    ran = subprocess.run([sys.executable, str(script)], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == 6


def test_the_kernel_is_used_on_a_cuda_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_fused", lambda: lambda *_: pytest.fail("not on a CPU"))
    q = torch.randn(1, 2, 1, 16)
    out, mass = with_mass(q, q, q, causal=False)
    assert out.shape == q.shape
    assert mass.tolist() == [[[1.0], [1.0]]]
    assert (mass_kernel("cpu"), mass_kernel("cuda")) == (MASS_KERNEL, FUSED_MASS_KERNEL)
