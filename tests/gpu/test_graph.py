"""The graph engine on a CUDA device: everything that the CPU graph emulator covers, and the rest.

With CACHEMARK_REHEARSE in the environment these tests run on a CPU with the emulator, so that no test fails on a device for an unrelated
reason. Tests of the device itself are skipped then.
"""

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from cachemark.cache.arena import Memory
from cachemark.cache.engines import CudaGraphs, Graph, engine
from cachemark.cache.kernels.plain import backend, fused, window, written_out
from cachemark.cache.kernels.record import fold
from cachemark.cache.kernels.table import choose, usual
from cachemark.cache.layout import Site, Step
from cachemark.cache.slot import Slot
from cachemark.contract.decoder import Rehearsal
from cachemark.contract.method import Method
from cachemark.core.errors import Unsupported
from cachemark.decoders.jacobi import Jacobi
from cachemark.kit import masked as kit, next_token
from cachemark.kit.capture import CpuGraphs
from cachemark.methods.full import Full
from cachemark.plans.expand import expand
from cachemark.plans.planned import Prepared
from cachemark.plans.schema import Plan
from cachemark.trial.child.bench import Bench
from contracts import cells as token, masked, scales
from support.measuring import run_case

REHEARSED = bool(os.environ.get("CACHEMARK_REHEARSE"))
DEVICE = "cpu" if REHEARSED else "cuda"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not REHEARSED and not torch.cuda.is_available(), reason="no CUDA device")]
on_the_device = pytest.mark.skipif(REHEARSED, reason="about the device alone")

FIRST, SECOND = (0, 1, 2), (11, 7, 4)
BF16 = 2.0**-6  # of the largest magnitude: four roundings of a bf16 mantissa


# -- the three families -----------------------------------------------------------------------------------------------
@cache
def moved(family: str, dtype: torch.dtype) -> Any:
    """The tiny model of a family's contract tests, on the device."""
    given = {"token": lambda: next_token.model("mha"), "scale": scales.model, "masked": kit.model}[family]()
    model = copy.deepcopy(given).to(DEVICE, dtype)
    if family == "scale":
        model.quantizer.to(DEVICE)
    return model


def cases() -> list[tuple[str, str, Any]]:
    """Family, label and cell of every method and mode, in the native codec."""
    tokens = [c for c in token.cells() if (c.codec, c.attention) == ("native", "mha")]
    by_scale = [c for c in scales.DETERMINISTIC if (c.codec, c.attention, c.square) == ("native", "mha", True)]
    return [*(("token", c.label, c) for c in tokens), *(("scale", c.label, c) for c in by_scale),
            *(("masked", c.label, c) for c in masked.cells() if c.codec == "native")]


CASES = [pytest.param(family, cell, id=f"{family}-{label}") for family, label, cell in cases()]
SAMPLING = {"token": next_token.SAMPLING, "scale": scales.SAMPLING, "masked": kit.SAMPLING}


def generated(
    family: str, cell: Any, memory: Memory, seeds: Sequence[int], *, dtype: torch.dtype = torch.float32, forced: Tensor | None = None,
    method: Method | None = None, **options: Any,
) -> tuple[Tensor, list[Tensor]]:
    """Tokens, and what was seen of each pass."""
    observed: list[Tensor] = []
    labels = torch.tensor([seed % 10 for seed in seeds], device=DEVICE)
    tokens = moved(family, dtype).generate(
        labels, list(seeds), method or cell.tight(), SAMPLING[family], memory, forced=forced,
        see=lambda _, x: observed.append(x.clone()), **options)
    return tokens, observed


def graphed() -> Memory:
    return Memory(DEVICE, engine=Graph(CpuGraphs()) if REHEARSED else engine("graph", "cuda"))


def graph(memory: Memory) -> Graph:
    return memory.engine


@contextmanager
def exact() -> Iterator[None]:
    """The written-out attention in fp32: flash exists in 16 bit only."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with sdpa_kernel(SDPBackend.MATH):
        yield


# -- equal to the eager engine ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("family", "cell"), CASES)
def test_tokens_are_those_of_the_eager_engine_in_fp32(family: str, cell: Any) -> None:
    memory = graphed()
    with exact():
        for seeds in (FIRST, SECOND):
            before = memory.pointers()
            result, observed = generated(family, cell, memory, seeds)
            expected, displayed = generated(family, cell, Memory(DEVICE), seeds)
            assert torch.equal(result, expected)
            for a, b in zip(observed, displayed, strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=1e-4 * max(1.0, float(b.abs().max())))
            assert graph(memory).missed == 0
            assert memory.pointers() == before or seeds is FIRST, "storage stays where it is"


@pytest.mark.parametrize(("family", "cell"), CASES)
def test_bf16_agrees_within_its_rounding(family: str, cell: Any) -> None:
    """Along the same tokens, through the fused kernels."""
    memory = graphed()
    with fused(DEVICE):
        forced, displayed = generated(family, cell, Memory(DEVICE), SECOND, dtype=torch.bfloat16)
        generated(family, cell, memory, FIRST, dtype=torch.bfloat16, forced=forced)
        _, observed = generated(family, cell, memory, SECOND, dtype=torch.bfloat16, forced=forced)
    for a, b in zip(observed, displayed, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=BF16 * float(b.abs().max()))


# -- memory -----------------------------------------------------------------------------------------------------------
@on_the_device
@pytest.mark.parametrize("family", ["token", "scale", "masked"])
def test_the_pool_is_counted_and_nothing_is_taken_from_the_device_once_all_is_recorded(family: str) -> None:
    memory, cell = graphed(), next(cell for kind, _, cell in cases() if kind == family)
    torch.cuda.empty_cache()  # what earlier tests have left must not be given back in between
    before = torch.cuda.memory_reserved()
    with exact():
        generated(family, cell, memory, FIRST)
        captured, pool, bytes_ = graph(memory).captured, graph(memory).pool_bytes, graph(memory).nbytes
        assert 0 < pool <= torch.cuda.memory_reserved() - before
        assert bytes_ > pool
        generated(family, cell, memory, SECOND)
        taken = torch.cuda.memory_stats()
        generated(family, cell, memory, FIRST)
        after = torch.cuda.memory_stats()
    assert (graph(memory).captured, graph(memory).pool_bytes, graph(memory).nbytes) == (captured, pool, bytes_)
    for count in ("num_device_alloc", "num_device_free", "num_alloc_retries", "num_ooms"):
        assert after[count] == taken[count], count


# -- what goes wrong --------------------------------------------------------------------------------------------------
class Reads(Method):
    """Broken on purpose: asks the device for a number."""

    def observe(self, site: Site, step: Step, slot: Slot, q: Tensor, mass: Tensor | None) -> None:
        assert q.amax().item() < float("inf")


def test_a_read_on_the_host_is_unsupported_and_harms_nobody_else() -> None:
    cell = next(cell for kind, _, cell in cases() if kind == "token")
    with exact():
        with pytest.raises(Unsupported, match="cannot be captured"):
            generated("token", cell, graphed(), FIRST, method=Reads())
        if not REHEARSED:
            torch.cuda.synchronize()
        result, expected = (generated("token", cell, memory, FIRST)[0] for memory in (graphed(), Memory(DEVICE)))
    assert torch.equal(result, expected)


class Short(CpuGraphs if REHEARSED else CudaGraphs):  # type: ignore[misc]
    """Has room for five graphs: the allocator fails in the middle of recording the sixth."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.left = getattr(self, "left", 5) - 1

        def fails() -> None:
            work()
            if self.left < 0:
                raise torch.OutOfMemoryError("none is left")

        return super().capture(fails)


def test_where_memory_runs_out_passes_run_as_written() -> None:
    short = Short() if REHEARSED else Short("cuda")
    memory, cell = Memory(DEVICE, engine=Graph(short, DEVICE)), next(cell for kind, _, cell in cases() if kind == "token")
    with exact():
        for seeds in (FIRST, SECOND):
            result, expected = (generated("token", cell, given, seeds)[0] for given in (memory, Memory(DEVICE)))
            assert torch.equal(result, expected)
    assert graph(memory).captured == 5
    assert graph(memory).missed > 0


# -- kernels ----------------------------------------------------------------------------------------------------------
@on_the_device
def test_the_fast_path_has_a_fused_kernel() -> None:
    layout = replace(token.cells()[0].layout, device="cuda")
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert backend(replace(layout, dtype=dtype)) in {"sdpa-flash", "sdpa-cudnn", "sdpa-efficient"}
    with fused(DEVICE), pytest.raises(RuntimeError):  # no fused kernel takes fp64
        torch.nn.functional.scaled_dot_product_attention(*(torch.zeros(1, 1, 4, 16, dtype=torch.float64, device="cuda"),) * 3)


def drawn(tokens: int, groups: int, keys: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of three rows and two K/V heads, in a longer buffer."""
    draw = torch.Generator("cuda").manual_seed(keys * width + tokens)
    q = torch.randn(3, 2 * groups, tokens, width, device="cuda", generator=draw)
    return q, *torch.randn(2, 3, 2, 600, width, device="cuda", generator=draw)[:, :, :, :keys]


@on_the_device
@pytest.mark.parametrize("width", [16, 48, 64, 100])
@pytest.mark.parametrize("keys", [1, 17, 64, 577])
@pytest.mark.parametrize(("tokens", "groups"), [(1, 1), (1, 4), (9, 2), (100, 1)])
def test_the_kernel_with_mass_is_the_written_out_attention(tokens: int, groups: int, keys: int, width: int) -> None:
    from cachemark.cache.kernels.mass_triton import attention_with_mass

    for dtype, close in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        x, y, z = (part.to(dtype) for part in drawn(tokens, groups, keys, width))
        out, mass = attention_with_mass(fold(x, 2), y, z)
        expected, weights = written_out(x, y, z, causal=False)
        torch.testing.assert_close(out.reshape(x.shape), expected, rtol=0, atol=close)
        torch.testing.assert_close(mass, weights, rtol=1e-4, atol=close * tokens)
    layout = replace(token.cells()[0].layout, device="cuda")
    assert choose(usual(layout, mass=True)).kernel.fused


@on_the_device
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("keys", [16, 47, 576])
@pytest.mark.parametrize("tokens", [2, 16])
def test_a_window_has_a_fused_kernel(tokens: int, keys: int, groups: int) -> None:
    for dtype, close in ((torch.float32, 1e-4), (torch.bfloat16, 2e-2)):
        given = [part.to(dtype) for part in drawn(tokens, groups, keys, 64)]
        with fused(DEVICE):
            out = window(*given)
        torch.testing.assert_close(out, written_out(*given, causal=True)[0], rtol=0, atol=close)


def test_windows_are_recorded_beforehand_and_their_tokens_are_those_of_the_eager_engine() -> None:
    memory = graphed()
    with exact():
        generated("token", None, memory, FIRST, method=Full(), decoder=Rehearsal(window=8))
        captured = graph(memory).captured
        for seeds in (FIRST, SECOND):
            both = memory, Memory(DEVICE)
            result, own = (generated("token", None, each, seeds, method=Full(), decoder=Jacobi(window=8)) for each in both)
            assert torch.equal(result[0], own[0])
        assert graph(memory).captured == captured > 0


# -- measuring --------------------------------------------------------------------------------------------------------
@on_the_device
@pytest.mark.parametrize(("model", "methods"), [
    ("tiny-llamagen", ["linear", "h2o"]), ("tiny-var", [{"name": "ams_kv", "demanding": [1]}]),
    ("tiny-mar", [{"name": "marche", "active": 24}]),
])  # fmt: skip
def test_a_case_is_measured_on_the_graph_engine(model: str, methods: list[Any]) -> None:
    table = {"model": model, "methods": methods, "batch": 4, "engine": "graph", "budgets": ["3/4"]}
    plan = Plan.model_validate({"name": "gpu", "timing": {"warmup": 1, "repeats": 3}, "fidelity": {"samples": 4}, "cells": [table]})
    planned = [Prepared.of(p) for p in expand(plan, "cuda") if p.case.role in ("baseline", "candidate")]
    bench = Bench.load(planned[0])
    for case in planned:
        outcome, _ = run_case(case, bench)
        assert outcome.ok, outcome.log
        assert outcome.samples["graph_pool"][0] > 0
        assert outcome.samples["capture_seconds"][0] > 0
        assert outcome.facts.graph.missed == 0
        assert outcome.facts.kernel.startswith(("sdpa-", "triton-"))
