"""Measure methods × budgets on one model, without a plan file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..contract.method import Method
from ..core.calls import listed, strict
from ..core.errors import BadPlan, BadPlugin, Unsupported
from ..core.files import output, writing
from ..core.seeds import smallest_subset
from ..methods.registry import METHODS
from ..plans.plan_errors import problem_of
from ..plans.schema import Cells, Plan
from ..plugins import loading
from . import arguments
from .results import Run
from .run import HINTS, run
from .session import DEFAULT_STORE, Machine, RunWatcher

Methods = str | Method | type[Method] | Sequence[str | Method | type[Method]]
OF_PLAN = ("model", "budgets", "seeds", "batch", "weights", "decoder_weights", "dtype", "engine")
Budgets = str | float | Sequence[str | float]


@strict("measure", HINTS)
def measure(
    model: str, methods: Methods, budgets: Budgets = ("1/2",), *, seeds: int = 128, batch: int = 16, weights: str | Path = "",
    decoder_weights: str | Path = "", dtype: str = "float32", engine: str = "eager", fetch: bool = False,
    store: str | Path = DEFAULT_STORE, machine: Machine | str = "cpu", plugins: Sequence[str | Path] = (),
    progress: bool | RunWatcher = True,
) -> Run:
    """Measure methods × budgets on one model and its full cache without a plan file, and return the run.

    ``methods``: names, classes or objects such as ``Window(B=100)``. ``seeds``: images compared with the full cache's, ``batch`` at a time.
    ``progress``: as in :func:`run`. A budget that a method cannot meet is an outcome with the reason. Each case runs in its own process,
    so your own method must be in one of the files ``plugins``. Raises Unsupported for a method of a notebook or script, and the errors of
    :func:`run`.
    """
    for file in listed(plugins):
        loading.load(file)
    plan = plan_of(model, methods, budgets, seeds=seeds, batch=batch, weights=weights, decoder_weights=decoder_weights, dtype=dtype,
                   engine=engine)
    return run(plan, store, machine=machine, plugins=plugins, fetch=fetch, progress=progress)


def measure_files(methods: Sequence[str], **request: Any) -> Run:
    """Measure as :func:`measure`, where a method that ends in ``.py`` stands for those of a plug-in file."""
    names, files = _methods_of(methods)
    return measure(methods=names, plugins=files, **request)


def saved_plan(path: Path | None, methods: Sequence[str], **request: Any) -> str:
    """Return the plan of :func:`measure_files` as TOML, and write it to ``path`` if given."""
    names, files = _methods_of(methods)
    wanted = {key: value for key, value in request.items() if key in OF_PLAN}
    plan = plan_of(methods=names, **wanted).model_dump(mode="json", exclude_unset=True)
    text = "# Written by cachemark measure.\n" + toml(plan | ({"plugins": [str(Path(file).resolve()) for file in files]} if files else {}))
    if path is not None:
        with writing(path), output(path, "plan") as part:
            part.write_text(text, encoding="utf-8")
    return text


def _methods_of(methods: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return names of methods, and plug-in files. Raises BadPlugin for a file without a method."""
    names, files = list[str](), list[str]()
    for method in methods:
        if not method.endswith(".py"):
            names.append(method)
            continue
        files.append(method)
        brought = loading.load(method)
        if not brought:
            raise BadPlugin(f"{method} registers no method.", remedy='Decorate a class with @cm.method("a name").')
        names += brought
    return names, files


def toml(plan: Mapping[str, Any]) -> str:
    """Return a plan as a TOML file: plain keys, then tables, then blocks."""
    plain = [f"{key} = {_toml(value)}" for key, value in plan.items() if not isinstance(value, dict) and key != "cells"]
    tables = [[f"[{key}]", *(f"{name} = {_toml(item)}" for name, item in value.items())] for key, value in plan.items()
              if isinstance(value, dict)]
    blocks = [["[[cells]]", *(f"{name} = {_toml(item)}" for name, item in cells.items())] for cells in plan["cells"]]
    return "\n\n".join("\n".join(lines) for lines in (plain, *tables, *blocks)) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, list) else json.dumps(value, ensure_ascii=False)


def plan_of(
    model: str, methods: Methods, budgets: Budgets = ("1/2",), *, seeds: int = 128, batch: int = 16, weights: str | Path = "",
    decoder_weights: str | Path = "", dtype: str = "float32", engine: str = "eager",
) -> Plan:
    """Return the plan of :func:`measure`.

    Raises BadPlan for wrong values, and Unsupported for a method of a notebook or script.
    """
    tables = [arguments.method_table(method) for method in listed(methods)]
    for name in (table["name"] for table in tables if table["name"] in METHODS):
        if not _loads(METHODS.get(name)):
            raise Unsupported(f"Method {name} is defined in a notebook or script, which the process of a case does not load.",
                              remedy="Write it to a file and pass that: plugins=[\"my_method.py\"].")
    settings = {"weights": str(weights), "decoder_weights": str(decoder_weights), "dtype": dtype, "engine": engine}
    settings = {name: value for name, value in settings.items() if value != Cells.model_fields[name].default}
    try:
        data = {
            "name": f"measure-{model}", "on_unsupported": "unsupported", "fidelity": {"seeds": smallest_subset(seeds), "samples": seeds},
            "cells": [{"model": model, "methods": [table["name"] if len(table) == 1 else table for table in tables],
                       "budgets": list(listed(budgets)), "batch": min(batch, seeds), **settings}],
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
