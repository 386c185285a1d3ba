"""Rates of a device, and what they make of a case: its roofline time and the slope of its steps."""

import json
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cachemark.cache.layout import Site, raster_steps
from cachemark.core.limits import Limit, Rates
from cachemark.core.spec import Case
from cachemark.machine import rates
from cachemark.machine.environment import environment
from cachemark.methods.full import Full
from cachemark.methods.linear import Linear
from cachemark.metrics.compute.speed import ends
from cachemark.models.protocol import ModelEntry
from cachemark.models.registry import MODELS
from cachemark.plans import schema as plans
from cachemark.plans.expand import expand
from cachemark.roofline.bill import bill
from cachemark.trial.child import facts as limit
from cachemark.workflows import run as session
from cachemark.workflows.pending import decide

RATES = Rates(bandwidth=1e10, peak_flops=1e11)
PLAN = plans.Plan.model_validate({
    "name": "small", "timing": {"warmup": 1, "repeats": 3}, "fidelity": {"samples": 2},
    "cells": [{"model": "llamagen-b", "methods": ["linear"], "budgets": ["1/4"], "batch": 2, "dtype": "bfloat16"}],
})


def entry(name: str = "llamagen-b") -> ModelEntry:
    return MODELS.get(name)


def case(label: str) -> Case:
    return next(p.case for p in expand(PLAN) if p.case.label == label)


def test_a_device_that_cannot_be_measured_has_no_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process fails, for want of memory perhaps."""
    monkeypatch.setattr(rates.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1, stdout=""))
    here = environment("cpu", 1)
    cases = decide(expand(PLAN), None, here)

    rated, todo = session._rated(here, cases, lambda dtypes: rates.rates("meta", 1, dtypes))
    assert rated.facts["rates"] == {}
    assert {planned.rates for planned in todo} == {None}


def test_the_limit_is_that_of_the_bill_in_the_case_s_own_dtype() -> None:
    candidate = case("linear 1/4")
    method = Linear.build(candidate.parameters)
    found_limit = limit.roofline(candidate, entry(), method, RATES)
    layout = replace(entry().shape(candidate.sampling, 2), dtype=torch.bfloat16)
    assert Limit.from_json(json.loads(json.dumps(found_limit.to_json()))) == bill(method, layout, entry().parameter_counts()).limit(RATES)
    single = limit.roofline(replace(candidate, dtype="float32"), entry(), method, RATES)
    assert single.nbytes == 2 * found_limit.nbytes


def test_rates_are_measured_where_something_is_run_and_stand_in_the_environment() -> None:
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


@pytest.mark.parametrize("method", [Full(), Linear(B=64)], ids=lambda m: m.name)
def test_the_slope_is_the_time_of_an_entry(method: Full | Linear) -> None:
    """Steps of 2 ms and 30 µs for each entry, in one generation of three; the others are slower or faster throughout."""
    layout = entry("tiny-llamagen").shape(entry("tiny-llamagen").presets["paper"], 2)
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
    assert slope.bytes_per_s == pytest.approx(entry_bytes / 3e-5)
    assert slope.lines == 15
