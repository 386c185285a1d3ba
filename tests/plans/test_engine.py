"""Engines that a plan leaves open: what they become, and beside which full cache."""

from __future__ import annotations

from pathlib import Path

from cachemark.plans.expand import Planned, expand
from cachemark.plans.schema import Plan
from cachemark.plugins import loading as plugins
from cachemark.trial.child.bench import Bench
from support.measuring import probe
from support.stages import forgetting


def planned(engine: str, device: str, decide: str = "profile", model: str = "tiny-var") -> list[Planned]:
    methods = ["streaming", {"name": "ams_kv", "demanding": [1], "decide": decide}] if model == "tiny-var" else ["streaming"]
    block = {"model": model, "methods": methods, "budgets": ["1/2"], "engine": engine, "batch": 2}
    return expand(Plan.model_validate({"name": "p", "fidelity": {"samples": 2}, "cells": [block]}), device)


def test_on_a_cpu_it_is_eager_under_the_same_keys() -> None:
    auto, eager = planned("auto", "cpu"), planned("eager", "cpu")
    assert [p.case.key for p in auto] == [p.case.key for p in eager]
    assert all("captures CUDA graphs" in p.engine_reason for p in auto)
    assert not any(p.engine_reason for p in eager)


def test_on_a_gpu_it_is_graph() -> None:
    auto = planned("auto", "cuda")
    assert [p.case.key for p in auto] == [p.case.key for p in planned("graph", "cuda")]
    assert not any(p.engine_reason or p.unsupported_reason for p in auto)


def test_a_method_bound_to_the_host_is_eager_beside_a_full_cache_of_its_own() -> None:
    auto = planned("auto", "cuda", decide="online")
    (online,) = (p for p in auto if p.case.method == "ams_kv")
    (streaming,) = (p for p in auto if p.case.method == "streaming")
    assert (online.case.engine, streaming.case.engine) == ("eager", "graph")
    assert "decides on the host" in online.engine_reason
    assert not online.unsupported_reason
    for candidate in (online, streaming):
        roles = [p.case.role for p in auto if p.case.cell == candidate.case.cell and p.case.method == "full"]
        assert roles == ["baseline", "other_seeds", "other_batch"]


def test_the_row_says_why_it_is_eager(folder: Path) -> None:
    with forgetting():
        plugins.load(folder / "dot.py")
        full = planned("auto", "cpu", model="dot")[0]
        outcome, _ = probe(full, Bench.load(full))
    assert outcome.ok
    assert outcome.facts.engine_reason == full.engine_reason != ""
