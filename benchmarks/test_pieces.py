"""Micro-benchmarks of hot functions with pytest-benchmark.

Run ``pytest benchmarks --benchmark-autosave``, then ``--benchmark-compare``. Each function is a group, for side-by-side comparison.
``cachemark ingest pytest-benchmark`` imports a run.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tracked import pieces

EVICTIONS = ("linear", "h2o", "rkv", "random", "streaming", "window")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("method", EVICTIONS)
@pytest.mark.benchmark(group="eviction at tiny-llamagen's half")
def test_evict(benchmark: Any, method: str) -> None:
    benchmark(pieces.line_end(method))


@pytest.mark.benchmark(group="ams_kv update of a scale")
def test_scale_update(benchmark: Any) -> None:
    benchmark(pieces.scale_update())


@pytest.mark.benchmark(group="lazymar selection")
def test_selection(benchmark: Any) -> None:
    benchmark(pieces.selection())


@pytest.mark.benchmark(group="attention of one token")
def test_attention(benchmark: Any) -> None:
    benchmark(pieces.read())


@pytest.mark.parametrize("cases", [24, 240])
@pytest.mark.benchmark(group="report")
def test_page(benchmark: Any, cases: int) -> None:
    benchmark.pedantic(pieces.page(cases), rounds=3, warmup_rounds=1)


@pytest.mark.parametrize("method", ["full", "linear"])
@pytest.mark.benchmark(group="loop of tiny-llamagen")
def test_loop(benchmark: Any, method: str) -> None:
    run = pieces.generation("tiny-llamagen", lambda: pieces.built("tiny-llamagen", method, "1/2" if method != "full" else None))
    benchmark.pedantic(run, rounds=2, warmup_rounds=1)
