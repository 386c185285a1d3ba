"""Measure methods × budgets on one model, without a plan file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from ..contract.method import Method
from ..core.calls import listed, strict
from ..core.errors import BadPlan, Unsupported
from ..core.seeds import smallest_subset
from ..methods.registry import METHODS
from ..plans.plan_errors import problem_of
from ..plans.schema import Plan
from ..plugins import loading
from . import arguments
from .results import Run
from .run import HINTS, run
from .session import DEFAULT_STORE, Machine, RunWatcher

Methods = str | Method | type[Method] | Sequence[str | Method | type[Method]]
Budgets = str | float | Sequence[str | float]


@strict("measure", HINTS)
def measure(
    model: str, methods: Methods, budgets: Budgets = ("1/2",), *, seeds: int = 128, batch: int = 16, weights: str | Path = "",
    decoder_weights: str | Path = "", store: str | Path = DEFAULT_STORE, machine: Machine | str = "cpu",
    plugins: Sequence[str | Path] = (), progress: bool | RunWatcher = True,
) -> Run:
    """Measure methods × budgets on one model and its full cache without a plan file, and return the run.

    ``methods``: names, classes or objects such as ``Window(B=100)``. ``seeds``: images compared with the full cache's, ``batch`` at a time.
    ``progress``: as in :func:`run`. A budget that a method cannot meet is an outcome with the reason. Each case runs in its own process,
    so your own method must be in one of the files ``plugins``. Raises Unsupported for a method of a notebook or script, and the errors of
    :func:`run`.
    """
    plan = plan_of(model, methods, budgets, seeds=seeds, batch=batch, weights=weights, decoder_weights=decoder_weights)
    return run(plan, store, machine=machine, plugins=plugins, progress=progress)


def plan_of(
    model: str, methods: Methods, budgets: Budgets = ("1/2",), *, seeds: int = 128, batch: int = 16, weights: str | Path = "",
    decoder_weights: str | Path = "",
) -> Plan:
    """Return the plan of :func:`measure`. Raises BadPlan for wrong values, and Unsupported for a method of a notebook or script."""
    tables = [arguments.method_table(method) for method in listed(methods)]
    for name in (table["name"] for table in tables if table["name"] in METHODS):
        if not _loads(METHODS.get(name)):
            raise Unsupported(f"Method {name} is defined in a notebook or script, which the process of a case does not load.",
                              remedy="Write it to a file and pass that: plugins=[\"my_method.py\"].")
    files = {"weights": str(weights), "decoder_weights": str(decoder_weights)}
    try:
        data = {
            "name": f"measure-{model}", "on_unsupported": "unsupported", "fidelity": {"seeds": smallest_subset(seeds), "samples": seeds},
            "cells": [{"model": model, "methods": [table["name"] if len(table) == 1 else table for table in tables],
                       "budgets": list(listed(budgets)), "batch": min(batch, seeds), **files}],
        }
    except TypeError:
        raise BadPlan(f"seeds and batch are whole numbers, not {seeds!r} and {batch!r}.", remedy="Write seeds=64, batch=16.") from None
    try:
        return Plan.model_validate(data)
    except ValidationError as error:
        raise BadPlan(f"measure: {problem_of(data, error, skipped=('cells', 0))}", remedy="See docs/how-to/use-from-python.md.") from None


def _loads(cls: type[Method]) -> bool:
    """Return whether the process of a case has a method: one of this package, or of a plug-in."""
    return cls.__module__.startswith("cachemark.") or loading.origin(cls) is not None
