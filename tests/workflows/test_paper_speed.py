"""Roofline speedups for the report's answer map."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from cachemark.core.limits import GPUS, roofline_speedup
from cachemark.core.spec import Case
from cachemark.models.costs import case_bill
from cachemark.models.registry import MODELS
from cachemark.plans.expand import expand
from cachemark.plans.schema import Plan
from cachemark.trial.child.bench import method_factory
from cachemark.workflows.paper_speed import PaperSpeed

RATES = GPUS["h100"]


def pair(model: str = "llamagen-b", method: str = "streaming", batch: int = 8) -> tuple[Case, Case]:
    cell = {"model": model, "methods": [method], "budgets": ["1/4"], "batch": batch}
    cases = [planned.case for planned in expand(Plan.model_validate({"name": "p", "cells": [cell]}))]
    return cases[0], cases[-1]


@pytest.mark.parametrize(("model", "method"), [("llamagen-b", "streaming"), ("tiny-var", "window")])
def test_on_the_models_own_grid_it_is_what_the_limits_of_a_run_allow(model: str, method: str) -> None:
    cases = pair(model, method)
    bills = [case_bill(case, MODELS.get(model), method_factory(case)()) for case in cases]
    full, candidate = (found.limit(RATES) for found in bills if found is not None)
    tokens = cases[0].grid[0] * cases[0].grid[1]
    assert PaperSpeed().allowed(*cases, RATES, full.by["decode"] / 8, 8, tokens) == pytest.approx(roofline_speedup(full, candidate))


def test_more_images_and_longer_sequences_allow_more() -> None:
    full, candidate = pair()
    paper = PaperSpeed()
    assert paper.lengths(full) == (64, 256, 1024)
    by_batch = [paper.allowed(full, candidate, RATES, 0.0, batch, 256) or 0 for batch in (1, 16, 64)]
    by_length = [paper.allowed(full, candidate, RATES, 0.0, 16, tokens) or 0 for tokens in paper.lengths(full)]
    assert by_batch == sorted(by_batch)
    assert by_length == sorted(by_length)
    assert by_length[-1] > 1.1 * by_length[0] > 1.1


def test_the_image_decoder_takes_its_part_of_the_gain() -> None:
    full, candidate = pair()
    bare, decoded = (PaperSpeed().allowed(full, candidate, RATES, image, 64, 256) or 0 for image in (0.0, 1.0))
    assert bare > decoded > 1.0
    assert decoded < 1.01


def test_another_length_is_asked_of_next_token_models_alone() -> None:
    full, _ = pair("tiny-var", "window")
    assert len(PaperSpeed().lengths(full)) == 1


def test_nothing_is_said_of_a_model_that_is_not_here_or_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    full, candidate = pair()
    gone = replace(full, model="no-such-model")
    assert PaperSpeed().lengths(gone) == ()
    assert PaperSpeed().allowed(gone, replace(candidate, model="no-such-model"), RATES, 0.0, 1, 256) is None
    monkeypatch.setitem(sys.modules, "cachemark.models.registry", None)
    assert PaperSpeed().lengths(full) == ()
