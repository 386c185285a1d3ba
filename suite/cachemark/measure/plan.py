"""A plan: a TOML file that names models, methods and budgets, and the cases it means."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .. import methods, registry, seeds
from ..cache.codec import codec
from ..cache.geometry import Layout
from ..cache.method import Method
from ..errors import BadBudget, BadPlan, CachemarkError, unknown
from ..models import catalogue
from ..models.protocol import Entry, Request
from ..spec import FULL, Budget, Case, Sampling

__all__ = ["Plan", "Planned", "catalogue", "expand", "find", "load", "methods", "names"]


class Table(BaseModel):
    """A TOML table in which only known keys are allowed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SamplingTable(Table):
    """Changes to the model's ``paper`` preset."""

    cfg_scale: float | None = None
    cfg_interval: int | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None


class MethodTable(Table):
    """A method with knobs of its own."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str


class Timing(Table):
    """Generations per case: not counted, and counted."""

    warmup: Annotated[int, Field(ge=1)] = 2
    repeats: Annotated[int, Field(ge=3)] = 5


class Fidelity(Table):
    """Which fixed subset of seeds is compared with the full cache, and how many samples of it."""

    seeds: str = "s64"
    samples: Annotated[int, Field(ge=1)] = 64


class Cells(Table):
    """A block of the matrix: one model, methods × budgets × codecs."""

    model: str
    methods: Annotated[list[str | MethodTable], Field(min_length=1)]
    budgets: Annotated[list[str | float | int], Field(min_length=1)] = ["1/2"]
    codecs: Annotated[list[str], Field(min_length=1)] = ["native"]
    sampling: str | SamplingTable = "paper"
    batch: Annotated[int, Field(ge=1)] = 16
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    engine: Literal["eager", "reference"] = "eager"
    weights: str = ""
    decoder_weights: str = ""
    random_seed: int = 0


class Plan(Table):
    """A matrix of cases. ``timeout`` is seconds per case; ``trial`` says what shares a process: all cases of a model or one
    case; ``unmet`` what a budget is that a method cannot meet: an error of the plan, or the outcome ``unsupported``."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[\w.-]+$")]
    description: str = ""
    timing: Timing = Timing()
    fidelity: Fidelity = Fidelity()
    timeout: Annotated[float, Field(gt=0)] = 600.0
    trial: Literal["model", "case"] = "model"
    unmet: Literal["error", "unsupported"] = "error"
    cells: Annotated[list[Cells], Field(min_length=1)]

    def joined(self, extra: Sequence[str]) -> Plan:
        """This plan with more methods in every block."""
        cells = [c.model_copy(update={"methods": [*c.methods, *(m for m in extra if m not in c.methods)]}) for c in self.cells]
        return self.model_copy(update={"cells": cells})


@dataclass(frozen=True)
class Planned:
    """A case and what is needed to run it. ``unmet`` is the reason why the method cannot, or empty."""

    case: Case
    request: Request
    unmet: str = ""


def names() -> list[str]:
    """Plans that the package carries."""
    return sorted(p.name.removesuffix(".toml") for p in _shipped().iterdir() if p.name.endswith(".toml"))


def find(name_or_path: str) -> Path:
    """The file of a plan given by path or by the name of a shipped one."""
    path = Path(name_or_path)
    if path.suffix == ".toml" or "/" in name_or_path:
        if not path.is_file():
            raise BadPlan(f"Plan {name_or_path!r} is not a file.", remedy=f"Shipped plans: {', '.join(names())}.")
        return path
    if name_or_path not in names():
        raise unknown("plan", name_or_path, names())
    return Path(str(_shipped() / f"{name_or_path}.toml"))


def load(name_or_path: str) -> Plan:
    """Read and validate a plan. BadPlan names the file, the line, what was found and what is expected."""
    path = find(name_or_path)
    try:
        text = path.read_text(encoding="utf-8")
        return Plan.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadPlan(f"{path}: not TOML: {error}.", remedy="Mend the syntax.") from None
    except ValidationError as error:
        raise _explained(path, text, error) from None


def expand(plan: Plan, device: str = "cpu") -> list[Planned]:
    """Every case of a plan: for each block the full cache, its two reference rows, then methods × budgets × codecs."""
    found: dict[str, Planned] = {}
    for cells in plan.cells:
        for planned in _block(plan, cells, device):
            found.setdefault(planned.case.key, planned)
    return list(found.values())


def _block(plan: Plan, cells: Cells, device: str) -> Iterator[Planned]:
    entry: Entry = registry.models.get(cells.model)
    sampling = _sampling(entry, cells.sampling)
    request = Request(device, getattr(torch, cells.dtype), cells.weights, cells.decoder_weights, cells.random_seed)
    layout = entry.shape(sampling, cells.batch)
    _check_sizes(plan, cells, entry)
    full = Case(
        cells.model, entry.identity(request), entry.grid, f"{entry.classes} classes, balanced", sampling, FULL,
        batch=cells.batch, seeds=plan.fidelity.seeds, samples=plan.fidelity.samples, dtype=cells.dtype, engine=cells.engine,
        device_class=device, warmup=plan.timing.warmup, repeats=plan.timing.repeats, role="baseline",
    )
    yield Planned(full, request)
    if not full.weights.startswith("random:"):
        yield Planned(replace(full, role="floor"), request)
        yield Planned(replace(full, role="numerics"), request)
    for name in dict.fromkeys(codec(c).name for c in cells.codecs):
        if name != full.codec:
            yield Planned(replace(full, codec=name, role="arm"), request)
        for method in cells.methods:
            yield from _arms(plan, cells, replace(full, codec=name, role="arm"), method, layout, request)


def _arms(plan: Plan, cells: Cells, base: Case, given: str | MethodTable, layout: Layout, request: Request) -> Iterator[Planned]:
    name, knobs = (given, {}) if isinstance(given, str) else (given.name, dict(given.model_extra or {}))
    cls: type[Method] = registry.methods.get(name)
    if name == FULL:
        return
    for budget in dict.fromkeys(str(Budget.parse(b)) for b in cells.budgets):
        try:
            resolved = resolve(cls, Budget.parse(budget), layout, knobs)
            unmet = "" if cells.engine == "eager" else f"the {cells.engine} engine runs the full cache only"
        except BadBudget as error:
            if plan.unmet == "error":
                raise
            resolved, unmet = {}, str(error)
        yield Planned(replace(base, method=name, knobs=resolved, budget=budget), request, unmet)


def resolve(cls: type[Method], budget: Budget, layout: Layout, knobs: dict[str, Any]) -> dict[str, Any]:
    """Every knob of the method with its value: what is given, else what the budget asks for, else the default."""
    if layout.paradigm not in cls.paradigms:
        raise BadBudget(f"{cls.name} does not run on {layout.paradigm} models.", remedy=f"It runs on: {', '.join(cls.paradigms)}.")
    method = cls.build({**cls.knobs_for(budget.ratio, layout), **knobs})
    method.resolve(layout)
    return method.knobs()


def _sampling(entry: Entry, given: str | SamplingTable) -> Sampling:
    if isinstance(given, SamplingTable):
        return replace(entry.presets["paper"], **given.model_dump(exclude_none=True))
    if given not in entry.presets:
        raise unknown(f"sampling preset of {entry.name}", given, entry.presets)
    return entry.presets[given]


def _check_sizes(plan: Plan, cells: Cells, entry: Entry) -> None:
    subset = seeds.subset(plan.fidelity.seeds, entry.classes).first(plan.fidelity.samples)
    if cells.batch > len(subset):
        raise BadPlan(f"{plan.name}: batch {cells.batch} is larger than the {len(subset)} samples of {subset.name}.",
                      remedy="Lower batch or raise fidelity.samples.")


def _shipped() -> Any:
    return resources.files("cachemark") / "data" / "plans"


def _explained(path: Path, text: str, error: ValidationError) -> CachemarkError:
    """The first fault of a plan with its line."""
    fault = error.errors()[0]
    keys = [part for part in fault["loc"] if not (isinstance(part, str) and re.search(r"[\[(A-Z]|^(str|float|int)$", part))]
    where = f"{path}:{_line(text, keys)}"
    if fault["type"] == "extra_forbidden":
        known = _known([k for k in keys[:-1] if isinstance(k, str)])
        near = difflib.get_close_matches(str(keys[-1]), known, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        return BadPlan(f"{where}: unknown key {keys[-1]!r}.", remedy=f"{hint}Known here: {', '.join(known)}.")
    given = "" if fault["type"] == "missing" else f" It is {str(fault['input'])[:80]!r}."
    return BadPlan(f"{where}: {'.'.join(map(str, keys))}: {fault['msg'].lower()}.{given}", remedy="See docs/guide/plans.md.")


def _known(tables: list[str]) -> list[str]:
    kinds: dict[str, type[Table]] = {"timing": Timing, "fidelity": Fidelity, "cells": Cells, "sampling": SamplingTable}
    return sorted(kinds[tables[-1]].model_fields if tables and tables[-1] in kinds else Plan.model_fields)


def _line(text: str, keys: list[Any]) -> int:
    """The line on which the last of ``keys`` that is written in the file stands."""
    lines, at = text.splitlines(), 0
    for number, key in enumerate(keys):
        if isinstance(key, int) and number and isinstance(keys[number - 1], str):
            heads = [i for i, line in enumerate(lines) if re.match(rf"\s*\[\[\s*{keys[number - 1]}\s*\]\]", line)]
            at = heads[key] if key < len(heads) else at
        elif isinstance(key, str):
            pattern = rf"""\s*(\[\s*{re.escape(key)}\s*\]|["']?{re.escape(key)}["']?\s*=)"""
            at = next((i for i in range(at, len(lines)) if re.match(pattern, lines[i])), at)
    return at + 1
