"""The first batch of models that are still to come: of which it is drawn, and that it never ends a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from cachemark.core.limits import Rates
from cachemark.plans.expand import Planned, expand
from cachemark.plans.schema import Plan
from cachemark.trial.child.bench import Bench
from cachemark.workflows import paces
from cachemark.workflows.time_left import TimeLeft

LONG = 100 * paces.LONG  # so that a busy machine does not take too long


def cases(*models: str) -> list[Planned]:
    plan = Plan.model_validate({"name": "p", "cells": [{"model": name, "methods": ["full"]} for name in models]})
    return [replace(each, rates=Rates(3e10, 1e11)) for each in expand(plan)]


def drawn(planned: Sequence[Planned], paper: float = 0.1, whole: float = LONG) -> dict[str, float]:
    return paces.paces(planned, lambda one: paper, whole, threads=1)


def test_one_batch_is_drawn_of_each_model_but_the_first() -> None:
    found = drawn(cases("tiny-llamagen", "tiny-var"))
    assert list(found) == ["tiny-var"]
    assert found["tiny-var"] > 0


@pytest.mark.parametrize(("change", "paper", "whole"), [
    ({}, 0.1, paces.LONG - 1), ({}, 2 * paces.SHARE * LONG, LONG), ({"rates": None}, 0.1, LONG), ({"needs": ("mine.py",)}, 0.1, LONG),
], ids=["a short run", "a batch that takes long", "a device without rates", "a plug-in"])
def test_nothing_is_drawn_where_it_is_not_worth_it_or_not_ours(
    change: dict[str, object], paper: float, whole: float, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Bench, "load", lambda planned: pytest.fail("a model was loaded"))
    assert drawn([replace(each, **change) for each in cases("tiny-llamagen", "tiny-var")], paper, whole) == {}  # type: ignore[arg-type]


def test_a_batch_that_fails_or_takes_too_long_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = cases("tiny-llamagen", "tiny-var")
    with monkeypatch.context() as patch:
        patch.setattr(paces, "PATIENCE", 0.0)
        assert drawn(planned) == {}
    monkeypatch.setattr(Bench, "load", lambda planned: 1 / 0)
    assert drawn(planned) == {}


def test_an_estimate_asks_for_what_nothing_is_stored_of() -> None:
    planned, asked = cases("tiny-llamagen", "tiny-var", "tiny-mar"), list[str]()

    def first(new: Sequence[Planned], paper: object, whole: float) -> dict[str, float]:
        asked.extend(each.case.model for each in new)
        return {}

    TimeLeft(planned, lambda key: None if key == planned[-1].case.key else 1.0, first=first)
    assert asked == ["tiny-mar"]
