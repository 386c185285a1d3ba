"""Speed: the full cache beside each candidate on a machine that drifts, progress, honest timing, roofline time and slope of steps."""

import json
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from cachemark.analysis.report_row import derive
from cachemark.cache.arena import Memory
from cachemark.cache.layout import Site, raster_steps
from cachemark.core.limits import Limit, Rates
from cachemark.gate import baseline_check
from cachemark.machine import rates
from cachemark.machine.environment import environment
from cachemark.methods.full import Full
from cachemark.methods.linear import Linear
from cachemark.metrics.compute.speed import ends
from cachemark.models.registry import MODELS
from cachemark.plans import schema as plans
from cachemark.plans.expand import expand
from cachemark.plans.planned import Prepared
from cachemark.plans.price import batches
from cachemark.plugins import loading as plugins
from cachemark.roofline.bill import bill
from cachemark.trial.child import facts as limit, measure
from cachemark.trial.child.bench import Bench, case_job
from cachemark.workflows import run as session
from cachemark.workflows.pending import decide
from support.examples import REPEATS
from support.measuring import planned, run_case

pytestmark = pytest.mark.usefixtures("dot")


def cases(folder: Path, repeats: int = REPEATS) -> dict[str, Prepared]:
    return {p.case.label: p for p in planned(folder, '"streaming"', repeats=repeats)}


def test_a_case_says_of_every_batch_that_it_was_made_and_no_more_than_were_counted(folder: Path) -> None:
    """So that its share of the whole can be told while it runs."""
    for case in cases(folder).values():
        progress: list[int] = []
        bench = Bench.load(case, progress.append)
        bench.reference(case.case, measure._judged_job(case.case, case_job(case.case, bench)))
        made = sum(progress) if case.case.role == "baseline" else 0  # by it, and by the first case of a process else
        progress.clear()
        assert run_case(case, bench)[0].ok
        assert made + sum(progress) == sum(size * times for size, times in batches(case, forced=1.0)), case.case.label


def test_a_slower_machine_is_no_slower_method_for_report_and_gate(folder: Path) -> None:
    """A candidate is measured when everything has become many times as slow."""
    cell, slower = cases(folder), 0.0
    bench = Bench.load(cell["full"])
    decode = bench.loaded.decode

    def slow(tokens: torch.Tensor) -> torch.Tensor:
        time.sleep(slower)
        return decode(tokens)

    bench.loaded = replace(bench.loaded, decode=slow)
    full, _ = run_case(cell["full"], bench)
    slower = 10 * (full.median("latency") or 0.0)
    candidate, _ = run_case(cell["streaming 1/2"], bench)
    assert len(candidate.facts.full_beside) == REPEATS == len(candidate.samples["latency"])
    assert full.facts.full_beside is None
    ratio = baseline_check._ratio("latency", candidate, {full.case.cell: full}) or 0.0
    assert all(0.5 < each < 2 for each in (ratio, derive(candidate, full, {}).speedup.value))
    alone = derive(replace(candidate, facts=replace(candidate.facts, full_beside=None)), full, {})
    assert alone.speedup.value < 0.2  # what a store from before says


def test_a_full_cache_that_does_not_fit_beside_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    candidate = cases(folder, 1)["streaming 1/2"]
    exhausted = type("Exhausted", (Memory,), {"zeros": Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory"))})
    monkeypatch.setattr(measure, "Memory", exhausted)
    outcome, _ = run_case(candidate, Bench.load(candidate))
    assert (outcome.ok, outcome.facts.full_beside) == (True, None)


PLUGIN = """
from dataclasses import dataclass
from typing import ClassVar
import cachemark as cm
from cachemark.methods.window import Window

@cm.method("NAME")
@dataclass
class Hurries(Window):
    made: ClassVar[int] = 0
    source: ClassVar[str] = "the tests"

    def begin(self, layout, sites, memory):
        super().begin(layout, sites, memory)
        type(self).made += 1
        if type(self).made <= FIRST:
            self.B = 1
"""


@pytest.mark.parametrize("first", [0, 1 + REPEATS])
def test_a_plug_in_that_hurries_while_it_is_timed_has_no_speed(first: int, folder: Path, tmp_path: Path) -> None:
    """The generations before the judged ones: one in which bytes are counted, which warms up, and the timed ones."""
    name = f"hurries_{first}"
    (tmp_path / "hurries.py").write_text(PLUGIN.replace("FIRST", str(first)).replace("NAME", name))
    plugins.load(tmp_path / "hurries.py")
    cell = planned(folder, f'"{name}", "window"')
    bench = Bench.load(cell[0])
    outcomes = {p.case.method: run_case(p, bench)[0] for p in cell if p.case.method in (name, "window")}
    assert outcomes[name].output_hash == outcomes["window"].output_hash, "what is judged is the same"
    assert outcomes["window"].facts.quality_only is None
    reason = outcomes[name].facts.quality_only or ""
    assert reason == ("Timed generations gave other tokens than the evaluated ones in 1 of 1 batches." if first else "")


RATES = Rates(bandwidth=1e10, peak_flops=1e11)
PLAN = plans.Plan.model_validate({
    "name": "small", "timing": {"warmup": 1, "repeats": 3}, "fidelity": {"samples": 2},
    "cells": [{"model": "tiny-llamagen", "methods": ["linear"], "budgets": ["1/4"], "batch": 2, "dtype": "bfloat16"}]})


def test_the_limit_is_that_of_the_bill_in_the_case_s_own_dtype() -> None:
    candidate, entry = next(p.case for p in expand(PLAN) if p.case.label == "linear 1/4"), MODELS.get("tiny-llamagen")
    method = Linear.build(candidate.parameters)
    found_limit = limit.roofline(candidate, entry, method, RATES)
    layout = replace(entry.shape(candidate.sampling, 2), dtype=torch.bfloat16)
    assert Limit.from_json(json.loads(json.dumps(found_limit.to_json()))) == bill(method, layout, entry.parameter_counts()).limit(RATES)
    single = limit.roofline(replace(candidate, dtype="float32"), entry, method, RATES)
    assert single.nbytes == 2 * found_limit.nbytes


def test_rates_are_measured_where_something_is_run_and_a_device_without_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def measured(dtypes: Iterable[str]) -> dict[str, Rates]:
        asked.append(sorted(dtypes))
        return dict.fromkeys(dtypes, RATES)

    here = environment("cpu", 1)
    cases = decide(expand(PLAN), None, here)
    rated, todo = session._rated(here, cases, measured)
    assert rated.facts["rates"] == {"bfloat16": {"bandwidth": 1e10, "peak_flops": 1e11}}
    assert rated.fingerprint == here.fingerprint
    assert all(planned.rates == RATES for planned in todo)
    done = [replace(planned, stored=True) for planned in cases]
    assert session._rated(here, done, measured) == (here, done)
    assert asked == [["bfloat16"]]
    monkeypatch.setattr(rates.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1, stdout=""))
    rated, todo = session._rated(here, decide(expand(PLAN), None, here), lambda dtypes: rates.rates("meta", 1, dtypes))
    assert (rated.facts["rates"], {planned.rates for planned in todo}) == ({}, {None})


@pytest.mark.parametrize("method", [Full(), Linear(B=64)], ids=lambda m: m.name)
def test_the_slope_is_the_time_of_an_entry(method: Full | Linear) -> None:
    """Steps of 2 ms and 30 µs for each entry, in one generation of three; the others are slower or faster throughout."""
    entry = MODELS.get("tiny-llamagen")
    layout = entry.shape(entry.presets["paper"], 2)
    method.resolve(layout)
    site, at, marks = Site("decoder", 0), 0.0, {}
    for step in raster_steps(layout):
        at += 2e-3 + 3e-5 * method.attended(layout, site, step)
        marks[step.index] = at
    watched = {end: marks[end] for end in ends(layout)}
    generations = [{end: factor * value for end, value in watched.items()} for factor in (1.0, 3.0, 0.2)]
    slope = limit.slope(generations, layout, method)
    assert (slope.slope, slope.intercept, slope.r2) == pytest.approx((3e-5, 2e-3, 1.0))
    entry_bytes = 2 * 4 * 5 * 32 * 4 * 6  # K and V, rows, heads, width of a head, fp32, layers
    assert (slope.bytes_per_s, slope.lines) == (pytest.approx(entry_bytes / 3e-5), 15)
