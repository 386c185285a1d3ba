"""The table of kernels: order, reasons, forced kernels, first-use checks, and FlashInfer."""

import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cachemark.cache.attention import attend
from cachemark.cache.kernels import check, flash_infer, fused, fused_products, table
from cachemark.cache.kernels.plain import SDPA, WRITTEN_OUT, sdpa
from cachemark.cache.kernels.record import HEADS, ROWS, Entries, Kernel, Query, Stored
from cachemark.core.errors import UnknownName
from cachemark.workflows import doctor

QUERY = Query("cpu", torch.float32, 4, 2, 16, 1)
ON_A_GPU = Query("cuda", torch.bfloat16, 4, 2, 64, 1)
KERNEL = """
from cachemark.cache.kernels.plain import sdpa
from cachemark.cache.kernels.record import Kernel, flops

CALLED = []

def run(q, entries, causal, visible, mass):
    (part,) = entries.parts()
    CALLED.append(part.k.size(2))
    return sdpa(q, part.k, part.v, causal), None

MINE = Kernel("mine", lambda query: "it is for one query" if query.tokens > 1 else "", run, flops)
"""


@pytest.fixture
def on_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU stands in for a device: kernels are checked there, and results are stored in a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(table, "_on_a_device", lambda query: True)
    monkeypatch.setattr(check, "_failed", set())
    check._known.cache_clear()
    table._choose.cache_clear()


def test_the_first_kernel_that_accepts_computes_and_a_forced_one_comes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    assert table.choose(QUERY).kernel is SDPA
    choice = table.choose(QUERY._replace(mass=True))
    assert choice.kernel is WRITTEN_OUT
    assert ("triton-with-mass", "it needs a CUDA device") in choice.refused
    other = replace(SDPA, name="other")
    monkeypatch.setattr(table, "TABLE", (*table.TABLE, other))
    assert table.choose(QUERY, "other").kernel is other
    assert table.choose(QUERY._replace(mass=True), "other").kernel is WRITTEN_OUT


def test_a_kernel_costs_one_file_and_one_line_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "added_kernel.py").write_text(KERNEL)
    monkeypatch.syspath_prepend(tmp_path)
    mine = importlib.import_module("added_kernel")
    monkeypatch.setattr(table, "TABLE", (mine.MINE, *table.TABLE))
    monkeypatch.setattr(doctor, "TABLE", table.TABLE)
    q, k = torch.randn(2, 4, 1, 16), torch.randn(2, 2, 5, 16)
    counted: list[int] = []
    with table.counted(counted.append):
        out, _ = attend(q, Entries.of(k, k))
        attend(torch.randn(2, 4, 3, 16), Entries.of(k, k))
    assert mine.CALLED == [5]
    assert counted == [4 * 2 * 4 * 1 * 5 * 16]
    torch.testing.assert_close(out, sdpa(q, k, k, causal=False))
    assert table.refusal("mine", QUERY) == ""
    assert doctor._kernels("cpu", quick=True)["mine"] == "usable"


@pytest.mark.parametrize(("name", "query", "reason"), [
    *((name, QUERY, "it needs a CUDA device") for name in ("triton-decode", "triton-with-mass", "flashinfer")),
    ("triton-decode", ON_A_GPU._replace(head_dim=256), "heads of 256 channels; it has 16, 32"),
    ("triton-decode", ON_A_GPU._replace(heads=64), "32 query heads share a key; it has at most 16"),
    ("triton-decode", ON_A_GPU._replace(dtype=torch.float64), "torch.float64; it computes in fp32"),
    ("triton-decode", ON_A_GPU._replace(tokens=9), "it is for one query per row"), ("triton-decode", ON_A_GPU, "Triton is not installed"),
    ("flashinfer", ON_A_GPU._replace(head_dim=100), "heads of 100 channels; it has 64, 128, 256, 512"),
    ("flashinfer", ON_A_GPU._replace(heads=10), "5 query heads share a key; it has 1, 2, 3, 4, 6, 8"),
    ("flashinfer", ON_A_GPU._replace(dtype=torch.float32), "torch.float32; it has float16 and bfloat16"),
    ("flashinfer", ON_A_GPU._replace(codec="int8"), "the codec int8; it reads native"),
    ("flashinfer", ON_A_GPU._replace(lengths=HEADS), "it is for one query per row"),
    ("flashinfer", ON_A_GPU, "FlashInfer is not installed: pip install 'cachemark[flashinfer]'"),
    ("flashinfer", ON_A_GPU._replace(captured=True), "a CUDA graph cannot contain it; engine = \"eager\" can use it")])  # fmt: skip
def test_a_forced_kernel_that_refuses_says_why_in_one_line(name: str, query: Query, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that leaves the choice to the table gets another kernel, and the same reason among those of the case."""
    monkeypatch.setattr(flash_infer, "flashinfer_missing", lambda: reason if "installed" in reason else "")
    monkeypatch.setattr("cachemark.cache.kernels.decode.triton_missing", lambda: reason if "Triton is" in reason else "")
    refusal = table.refusal(name, query)
    assert refusal.startswith(f"the kernel {name} does not compute the full cache's attention here: {reason}")
    assert "\n" not in refusal
    assert table.refusal("auto", query) == table.refusal("sdpa", query) == ""
    choice = table._choose.__wrapped__(query, name, table.TABLE, checked=False)
    assert choice.kernel.name != name
    assert refusal.endswith(dict(choice.refused)[name])
    with pytest.raises(UnknownName, match="sdap"):
        table.refusal("sdap", QUERY)


def attends_well() -> bool:
    q, k = torch.randn(2, 4, 1, 64), torch.randn(2, 2, 5, 64)
    return torch.equal(attend(q, Entries.of(k, k))[0], sdpa(q, k, k, causal=False))


def counting(kernel: Kernel, calls: list[str]) -> Kernel:
    return replace(kernel, run=lambda *arguments: (calls.append(kernel.name), kernel.run(*arguments))[1], ours=True)


@pytest.mark.usefixtures("on_a_device")
def test_a_kernel_that_deviates_or_fails_is_passed_over_and_the_case_and_doctor_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(SDPA, name="wrong", run=lambda q, *rest: (SDPA.run(q, *rest)[0] * 1.01, None), ours=True)
    broken = replace(SDPA, name="broken", run=lambda *_: 1 / 0, ours=True)
    assert check.fault(SDPA, QUERY) == check.fault(WRITTEN_OUT, QUERY._replace(mass=True, tokens=3)) == ""
    monkeypatch.setattr(table, "TABLE", (wrong, broken, SDPA))
    with check.noting() as notes:
        assert attends_well()
    fails, deviates = sorted(notes)
    assert fails == "broken is not used: it fails on this device: division by zero."
    assert re.fullmatch(r"wrong is not used: it deviates from fp64 by 0\.0\d+ on this device, torch's attention by \S+\.", deviates)
    monkeypatch.setattr(doctor, "TABLE", table.TABLE)
    kernels = doctor._kernels("cpu", quick=True)
    assert kernels["sdpa"] == "usable"
    assert kernels["wrong"].startswith("not used for float32, 64 channels, group 2, one query, one length: it deviates from fp64 by 0.0")
    load = {"average of a minute": None, "cpus": 1, "governor": "performance"}
    advice = list(doctor._advice({"load": load, "gpus": [], "kernels": kernels}, "13.0"))
    assert sum(line.startswith(("wrong is not used", "broken is not used")) for line in advice) == 2


@pytest.mark.usefixtures("on_a_device")
def test_a_check_is_not_repeated_on_a_device_class_unless_it_failed_in_an_earlier_process(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    good, broken = counting(SDPA, calls), counting(replace(SDPA, name="broken", run=lambda *_: 1 / 0), calls)

    def checked(**changes: Any) -> int:
        before = len(calls)
        for kernel in (good, broken):
            check.fault(kernel, QUERY._replace(**changes))
        return len(calls) - before

    assert checked() == len(check.KEYS) + 1
    assert checked(heads=40, kv_heads=20) == 0  # the same kind of call
    assert checked(head_dim=32, lengths=ROWS) == 2
    check._known.cache_clear()  # as in a new process
    check._failed.clear()
    assert checked() == 1
    monkeypatch.setattr(check, "_version", lambda package: "another")
    check._device_class.cache_clear()
    assert checked() == len(check.KEYS) + 1
    check._device_class.cache_clear()


@pytest.mark.usefixtures("on_a_device")
def test_a_kernel_that_fails_after_its_check_falls_back_once_but_not_in_a_timed_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def run(q: Tensor, *rest: Any) -> Any:
        if q.size(0) != check.ROWS:
            raise RuntimeError("no kernel image\nfor this shape")
        return SDPA.run(q, *rest)

    monkeypatch.setattr(table, "TABLE", (counting(replace(SDPA, name="late", run=run), calls), SDPA))
    with check.measuring(True), pytest.raises(RuntimeError, match="no kernel image"):
        attends_well()
    for counted in (len(check.KEYS) + 2, len(check.KEYS) + 2):
        with check.noting() as notes:
            assert attends_well()
        assert notes == {"late is not used: it fails on this device: no kernel image."}
        assert len(calls) == counted


def test_passes_that_deviate_or_are_slower_are_not_used_and_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device stands in for a GPU, and plain operations for a kernel of products."""
    device, ones = torch.device("meta"), torch.ones(2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for cached in (check._known, fused._faults, fused_products._faults):
        cached.cache_clear()
    found = {"good": [fused.off(ones, ones)], "wrong": [0.0, fused.off(1.5 * ones, ones)],
             "lost": [fused.off(torch.tensor([3, 4]), torch.tensor([3, 5]), exact=True)]}
    monkeypatch.setitem(fused.CHECKS, fused.PASSES, {name: lambda *_, some=some: some for name, some in found.items()})
    monkeypatch.setattr(fused_products, "_drawn", lambda shape, *_: [ones[None], torch.eye(2), ones])
    monkeypatch.setattr(fused_products, "product", lambda *given: fused_products.ACTIVATIONS[given[-1]](F.linear(*given[:-1])))
    monkeypatch.setattr(fused_products, "_microseconds", lambda work, device: 61.4 if work.func is fused_products.product else 57.0)
    with check.noting() as notes:
        assert fused.faults(device, torch.bfloat16)
        assert fused_products.faults(device, torch.bfloat16)
    assert notes == {
        "fused passes are not used: they deviate from plain operations on this device, wrong by 0.5, lost by 0.5.",
        "products with activation are not used: gelu takes 61 µs on this device, the library's product and torch's gelu 57 µs."}
    kernels = doctor._kernels("meta", quick=True)
    assert kernels["fused passes"] == "not used for bfloat16: they deviate from plain operations on this device, wrong by 0.5, lost by 0.5"
    monkeypatch.setattr(fused_products, "product", lambda *given: fused_products.ACTIVATIONS[given[-1]](F.linear(*given[:-1])) + 0.25)
    assert fused_products.compare(device, torch.float32, [(1, 2, 2)]) == "silu deviates from plain operations by 0.25 on this device"


class Wrapper:
    """FlashInfer's wrapper with the parameters of its 0.7, which attends in plain operations."""

    plans = 0

    def __init__(
        self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False, use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None, paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None, backend: str = "auto", jit_args: list[Any] | None = None) -> None:
        assert (kv_layout, float_workspace_buffer.dtype) == ("HND", torch.uint8)

    def plan(
        self, indptr: Tensor, indices: Tensor, last_page_len: Tensor, num_qo_heads: int, num_kv_heads: int, head_dim: int, page_size: int,
        *deprecated: Any, q_data_type: torch.dtype, kv_data_type: torch.dtype) -> None:
        assert indptr.dtype == indices.dtype == last_page_len.dtype == torch.int32
        assert not deprecated
        self.sizes, self.dtype = (num_qo_heads, num_kv_heads, head_dim, page_size), q_data_type
        self.pages = indptr, indices, last_page_len
        Wrapper.plans += 1

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        k, v = paged_kv_cache
        assert self.sizes == (q.size(1), k.size(1), q.size(2), k.size(2))
        assert k.stride() == v.stride()
        assert q.dtype == k.dtype == self.dtype
        outs = []
        for row, (first, end, live) in enumerate(zip(self.pages[0], self.pages[0][1:], self.pages[2], strict=False)):
            (page,) = self.pages[1][first:end]
            outs.append(sdpa(q[row : row + 1, :, None], *(part[page : page + 1, :, : int(live)] for part in (k, v)), causal=False)[0, :, 0])
        return torch.stack(outs)


def test_flashinfer_reads_the_rows_of_a_bank_as_pages_and_plans_once_for_the_layers_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=Wrapper))  # type: ignore[misc]
    monkeypatch.setattr(flash_infer, "_planned", {})
    monkeypatch.setattr(flash_infer, "WORKSPACE", 16)
    for query in (QUERY, QUERY._replace(lengths=ROWS, dtype=torch.float16), QUERY._replace(heads=8, head_dim=64)):
        assert check.compare(flash_infer.FLASHINFER, query) == ""
    Wrapper.plans, buffer = 0, torch.randn(3, 2, 2, 2, 9, 16)  # layers, keys and values, rows, K/V heads, capacity, channels
    for longest, rows in ((7, torch.tensor([[5], [7]], dtype=torch.int32)), (8, None)):
        for k, v in buffer:
            stored = Stored((k,), (v,), longest, rows)
            entries = Entries(2, lambda: (), lambda stored=stored: stored)
            flash_infer.FLASHINFER.run(torch.randn(2, 4, 1, 16), entries, False, None, False)
    assert Wrapper.plans == 2


def test_flashinfer_without_its_package_or_a_compiler_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*modules: str, **variables: str) -> str:
        monkeypatch.setattr(flash_infer, "find_spec", lambda name: name in modules or None)
        for name in ("CUDA_HOME", "CUDA_PATH", "FLASHINFER_NVCC"):
            monkeypatch.setenv(name, variables.get(name, ""))
        return flash_infer.flashinfer_missing.__wrapped__()

    monkeypatch.setattr(flash_infer.shutil, "which", lambda name: None)
    monkeypatch.setattr(flash_infer, "TOOLKIT", "")
    assert missing() == "FlashInfer is not installed: pip install 'cachemark[flashinfer]'"
    assert "there is no nvcc: install the CUDA toolkit, or set CUDA_HOME" in missing("flashinfer", CUDA_HOME="/nowhere")
    assert missing("flashinfer", "flashinfer_jit_cache") == missing("flashinfer", FLASHINFER_NVCC=sys.executable) == ""
