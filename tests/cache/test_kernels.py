"""The table of kernels: order, reasons, forced kernels, and Triton's kernels in its interpreter."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cachemark.cache.attention import attend
from cachemark.cache.kernels import table
from cachemark.cache.kernels.check import fault
from cachemark.cache.kernels.plain import SDPA, WRITTEN_OUT, sdpa
from cachemark.cache.kernels.record import Entries, Kernel, Query, flops
from cachemark.core.errors import UnknownName
from cachemark.core.files import PACKAGE

QUERY = Query("cpu", torch.float32, 4, 2, 16, 1)


def interpreted(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Triton itself must be interpreted, so the comparison has its own process."""
    pytest.importorskip("triton", reason="Triton is not installed")
    script = Path(__file__).with_name("interpreted.py")
    return subprocess.run([sys.executable, "-W", "ignore", str(script), *arguments], env={**os.environ, "TRITON_INTERPRET": "1"},
                          capture_output=True, text=True)


def test_triton_kernels_are_attention_in_fp64() -> None:
    ran = interpreted()
    assert ran.returncode == 0, ran.stderr


FAULTS = (
    ("live = key < length", "live = key < length - 1"), ("live = key < length", "live = key <= length"),
    ("q_at += row * q_row + head * GROUP * q_head", "q_at += row * q_row + head * q_head"), ("q_row + head * q_head", "q_row"),
    ("kv_head = head // GROUP", "kv_head = head % GROUP"),
    ("mask=key < longest)", "mask=key < length)"), ("for at in range(0, length, KEYS)", "for at in range(0, length - KEYS + 1, KEYS)"),
    ("arrival % GROUP_SIZE", "0 * arrival"), ("(weight * v_scale)", "weight"), ("stride if size > 1", "0 if size > 1"),
)  # fmt: skip


def test_faults_in_the_decode_kernel_are_noticed(tmp_path: Path) -> None:
    """Keys too few and too many, another head's, values that are not written, and ranges of another key."""
    source = (PACKAGE / "cache/kernels/decode_triton.py").read_text()
    copies = [tmp_path / f"fault_{number}.py" for number in range(len(FAULTS))]
    for (right, wrong), copy in zip(FAULTS, copies, strict=True):
        assert right in source
        copy.write_text(source.replace(right, wrong))
    ran = interpreted(*map(str, copies))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [str(copy) for copy in copies]


def test_the_first_kernel_that_accepts_computes_and_the_others_say_why() -> None:
    assert table.choose(QUERY).kernel is SDPA
    choice = table.choose(QUERY._replace(mass=True))
    assert choice.kernel is WRITTEN_OUT
    assert ("triton-with-mass", "it needs a CUDA device") in choice.refused


def test_a_kernel_costs_one_record_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new kernel is used, counted and named without a change elsewhere."""
    called: list[int] = []

    def run(q: Tensor, entries: Entries, causal: bool, visible: Tensor | None, mass: bool) -> tuple[Tensor, None]:
        (part,) = entries.parts()
        called.append(part.k.size(2))
        return sdpa(q, part.k, part.v, causal), None

    mine = Kernel("mine", lambda query: "it is for one query" if query.tokens > 1 else "", run, flops)
    monkeypatch.setattr(table, "TABLE", (mine, *table.TABLE))
    q, k = torch.randn(2, 4, 1, 16), torch.randn(2, 2, 5, 16)
    counted: list[int] = []
    with table.counted(counted.append):
        out, _ = attend(q, Entries.of(k, k))
        attend(torch.randn(2, 4, 3, 16), Entries.of(k, k))
    assert called == [5]
    assert counted == [4 * 2 * 4 * 1 * 5 * 16]
    torch.testing.assert_close(out, sdpa(q, k, k, causal=False))


def test_a_kernel_that_deviates_or_fails_on_a_device_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU stands in for the device: kernels are checked there if asked."""
    wrong = replace(SDPA, name="wrong", run=lambda q, *rest: (SDPA.run(q, *rest)[0] * 1.01, None))
    broken = replace(SDPA, name="broken", run=lambda *_: 1 / 0)
    assert fault(SDPA, QUERY) == fault(WRITTEN_OUT, QUERY._replace(mass=True, tokens=3)) == ""
    assert re.fullmatch(r"it deviates from fp64 by 0\.0\d+ on this device, torch's attention by \S+", fault(wrong, QUERY))
    assert fault(broken, QUERY) == "it fails on this device: division by zero"
    kernels = (replace(wrong, ours=True), replace(broken, ours=True), SDPA)
    choice = table._choose(QUERY, "auto", kernels, checked=True)
    assert choice.kernel is SDPA
    assert [name for name, _ in choice.refused] == ["wrong", "broken"]


def test_a_forced_kernel_that_refuses_says_why_in_one_line() -> None:
    assert table.refusal("sdpa", QUERY) == table.refusal("auto", QUERY) == ""
    reason = table.refusal("triton-with-mass", QUERY)
    assert "the kernel triton-with-mass does not" in reason
    assert "it needs a CUDA device" in reason
    with pytest.raises(UnknownName, match="sdap"):
        table.refusal("sdap", QUERY)


def test_a_forced_kernel_comes_first_where_it_accepts() -> None:
    other = replace(SDPA, name="other")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "TABLE", (*table.TABLE, other))
        assert table.choose(QUERY, "other").kernel is other
        assert table.choose(QUERY._replace(mass=True), "other").kernel is WRITTEN_OUT
