"""A plan: a TOML file that names models, methods and budgets, and the cases it means."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from .. import methods
from ..cache.codec import codec
from ..cache.engine.by_name import GRAPH, refused
from ..cache.layout import Layout
from ..contract.method import Method
from ..core import registry, seeds
from ..core.errors import BadBudget, BadKnob, BadPlan, CachemarkError, unknown
from ..core.limits import Rates
from ..core.spec import FULL, QUALITY_PASS, Budget, Case, Sampling
from ..metrics import quality_presets as presets
from ..models import catalogue
from ..models.protocol import ModelEntry, Request
from .calibration import calibrated
from .plan_errors import Kinds, explained, line
from .reuse import Earlier

MAX_BATCH = "max_batch"  # of a case's evaluation, where its largest batch is what is asked
FIRST, SEEDS = 16, "s10k"  # where the search for it begins, and whose first seeds a batch has, however large

__all__ = ["Plan", "Planned", "catalogue", "expand", "find", "load", "methods", "names"]


class PlanTable(BaseModel):
    """A TOML table in which only known keys are allowed, each with a value of its own type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class SamplingTable(PlanTable):
    """Changes to the model's ``paper`` preset."""

    cfg_scale: float | None = None
    cfg_interval: int | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    steps: Annotated[int, Field(ge=1)] | None = None
    diffusion_steps: Annotated[int, Field(ge=1)] | None = None


class MethodTable(PlanTable):
    """A method with knobs of its own. ``variant`` is a word for them, where a block has the method more than once."""

    model_config = ConfigDict(extra="allow")

    name: str
    variant: Annotated[str, Field(max_length=40, pattern=r"^[\w .+-]*$")] = ""


class Timing(PlanTable):
    """Generations per case: not counted, and counted."""

    warmup: Annotated[int, Field(ge=1)] = 2
    repeats: Annotated[int, Field(ge=3)] = 5


class Fidelity(PlanTable):
    """Which fixed subset of seeds is compared with the full cache, how many samples of it, how many images at once (0: as many as
    are timed), whether LPIPS is wanted, whose weights are not packaged, and the folder of a CLIP model (empty: no CLIP score)."""

    seeds: str = "s64"
    samples: Annotated[int, Field(ge=1)] = 64
    batch: Annotated[int, Field(ge=0)] = 0
    lpips: bool = False
    clip: str = ""


class Quality(PlanTable):
    """Which fixed subset is compared with real images, how many samples of it (0: all), and how many images at once. ``preset`` says with
    which eyes and against what (empty: the model's own); ``extractor_weights`` and ``reference`` are its files where none is packaged."""

    seeds: str = "s2k"
    samples: Annotated[int, Field(ge=0)] = 0
    batch: Annotated[int, Field(ge=1)] = 50
    preset: str = ""
    extractor_weights: str = ""
    reference: str = ""


class AnchorTable(PlanTable):
    """What the full cache must reach before figures on this model compare with published ones: see :mod:`cachemark.gate.anchors`."""

    metric: str
    expected: float
    tolerance: Annotated[float, Field(gt=0)]
    source: Annotated[str, Field(min_length=1)]


class Cells(PlanTable):
    """A block of the matrix: one model, methods × budgets × codecs. ``batch = "max"`` asks for the largest that fits, of the full cache and
    of every arm for itself, and for throughput there: nothing is judged. ``samples`` compares fewer or more with the full cache than the
    plan says; 0 is the plan's own number. ``quality`` says whether the plan's quality pass is made here. With a deadline the lowest
    ``priority`` comes first."""

    model: str
    methods: Annotated[list[str | MethodTable], Field(min_length=1)]
    budgets: Annotated[list[str | float | int | MethodTable], Field(min_length=1)] = ["1/2"]
    codecs: Annotated[list[str], Field(min_length=1)] = ["native"]
    sampling: str | SamplingTable = "paper"
    batch: Annotated[int, Field(ge=1)] | Literal["max"] = 16
    samples: Annotated[int, Field(ge=0)] = 0
    quality: bool = True
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    engine: Literal["eager", "graph", "reference"] = "eager"
    weights: str = ""
    decoder_weights: str = ""
    random_seed: int = 0
    priority: int = 0


class Plan(PlanTable):
    """A matrix of cases. ``timeout`` is seconds per case; ``trial`` says what shares a process: all cases of a model or one
    case; ``unmet`` what a budget is that a method cannot meet: an error of the plan, or the outcome ``unsupported``. ``plugins`` are Python
    files that register its methods, relative to the plan."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[\w.-]+$")]
    description: str = ""
    timing: Timing = Timing()
    fidelity: Fidelity = Fidelity()
    quality: Quality | None = None
    anchor: AnchorTable | None = None
    plugins: list[str] = []
    timeout: Annotated[float, Field(gt=0)] = 600.0
    trial: Literal["model", "case"] = "model"
    unmet: Literal["error", "unsupported"] = "error"
    cells: Annotated[list[Cells], Field(min_length=1)]

    @property
    def searches(self) -> bool:
        """Whether a block asks for the largest batch that fits."""
        return any(cells.batch == "max" for cells in self.cells)

    _source: tuple[str, str] = PrivateAttr(default=("", ""))  # the file's path and text, for errors

    def place(self, *keys: str | int) -> str:
        """``file:line`` of a key, or the plan's name where it was not read from a file."""
        path, text = self._source
        return f"{path}:{line(text, keys)}" if path else self.name

    def files(self) -> list[Path]:
        """Its plug-ins. Nothing is imported yet."""
        return [Path(self._source[0]).parent / name for name in self.plugins]

    def joined(self, extra: Sequence[str]) -> Plan:
        """This plan with more methods in every block."""
        cells = [c.model_copy(update={"methods": [*c.methods, *(m for m in extra if m not in c.methods)]}) for c in self.cells]
        return self.model_copy(update={"cells": cells})


KINDS: Kinds = {"": Plan, "timing": Timing, "fidelity": Fidelity, "quality": Quality, "anchor": AnchorTable, "cells": Cells,
                "sampling": SamplingTable}  # fmt: skip


@dataclass(frozen=True)
class Planned:
    """A case and what is needed to run it. ``unsupported_reason``: why the method cannot, or empty. ``feature_cache``: the folder for the
    finished parts of its quality pass, ``full_features`` that of the full cache of its cell. ``rates``: those of the device, where they
    were measured. ``reusable``: an earlier outcome of the case, whose quality may be reused."""

    case: Case
    request: Request
    unsupported_reason: str = ""
    feature_cache: Path | None = None
    full_features: Path | None = None
    rates: Rates | None = None
    priority: int = 0
    reusable: Earlier | None = None


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
        plan = Plan.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadPlan(f"{path}: not TOML: {error}.", remedy="Mend the syntax.") from None
    except ValidationError as error:
        raise explained(path, text, error, KINDS) from None
    except OSError as error:
        raise BadPlan(f"{path} cannot be read: {error.strerror}.", remedy="Give the path of a TOML file.") from None
    plan._source = str(path), text
    return plan


def expand(plan: Plan, device: str = "cpu") -> list[Planned]:
    """Every case of a plan: for each block the full cache, its two reference rows, then methods × budgets × codecs."""
    found: dict[str, Planned] = {}
    names: dict[tuple[str, str, str], str] = {}
    for number, cells in enumerate(plan.cells):
        for planned in _block(plan, cells, number, device):
            case = planned.case
            if names.setdefault((case.model, case.cell, case.label), case.key) != case.key:
                raise BadPlan(f"{plan.place('cells', number, 'methods')}: two cases are called {case.label!r}.",
                              remedy="Give each table of that method a variant, a word of its own.")
            found.setdefault(case.key, replace(planned, priority=cells.priority))
    return list(found.values())


@contextmanager
def _at(plan: Plan, *keys: str | int) -> Iterator[None]:
    """Errors inside name the file and the line of these keys."""
    try:
        yield
    except CachemarkError as error:
        raise type(error)(f"{plan.place(*keys)}: {error.message}", remedy=error.remedy) from error


def _block(plan: Plan, cells: Cells, number: int, device: str) -> Iterator[Planned]:
    request = _request(plan, cells, device)
    with _at(plan, "cells", number, "model"):
        entry: ModelEntry = registry.models.get(cells.model)
    with _at(plan, "cells", number, "sampling"):
        sampling = _sampling(entry, cells.sampling)
    with _at(plan, "fidelity", "seeds"):
        subset = seeds.subset(plan.fidelity.seeds, entry.classes)
    with _at(plan, *(("cells", number, "samples") if cells.samples else ("fidelity", "samples"))):
        subset = subset.first(cells.samples or plan.fidelity.samples)
    searched, batch = cells.batch == "max", FIRST if cells.batch == "max" else cells.batch
    with _at(plan, "cells", number, "batch"):
        subset = seeds.subset(SEEDS, entry.classes).first(batch) if searched else subset
        _check_batch(batch, subset)
    with _at(plan, "cells", number, "weights"):
        identity = entry.identity(request)
    with _at(plan, "cells", number, "codecs"):
        codecs = list(dict.fromkeys(codec(name).name for name in cells.codecs))
    layout, unmet = entry.shape(sampling, batch), _unmet(cells, device)
    absent = refused(cells.engine, device)
    with _at(plan, "cells", number, "budgets"):
        budgets = list(dict.fromkeys(str(_budget(budget, layout, identity)) for budget in cells.budgets))
    full = Case(
        cells.model, identity, entry.grid, f"{entry.classes} classes, balanced", sampling, FULL,
        batch=batch, seeds=subset.name, samples=len(subset), dtype=cells.dtype, engine=cells.engine,
        device_class=device, warmup=plan.timing.warmup, repeats=plan.timing.repeats, role="baseline",
        evaluation={MAX_BATCH: {"limit": 0}} if searched else _likeness(plan.fidelity),
    )
    with _at(plan, "quality"):
        judged = full if searched else replace(full, evaluation={**full.evaluation, **_evaluation(plan, cells, entry, full)})
    yield Planned(judged, request, absent)
    if not searched and not full.weights.startswith("random:"):
        yield Planned(replace(full, role="floor"), request, absent)
        if full.samples > 1:  # one image can only be generated in a batch of one
            yield Planned(replace(full, role="numerics"), request, absent)
    for name in codecs:
        if name != full.codec:
            yield Planned(replace(judged, codec=name, role="arm"), request, unmet)
        for method in cells.methods:
            with _at(plan, "cells", number, "methods"):
                arms = list(_arms(plan, replace(judged, codec=name, role="arm"), method, budgets, layout))
            yield from (Planned(case, request, unmet or reason) for case, reason in arms)


def _request(plan: Plan, cells: Cells, device: str) -> Request:
    eyes = (plan.quality.extractor_weights, plan.quality.reference) if plan.quality and cells.quality else ("", "")
    weights = cells.weights, cells.decoder_weights, cells.random_seed
    return Request(device, getattr(torch, cells.dtype), *weights, cells.engine, *eyes, plan.fidelity.clip)


def _likeness(given: Fidelity) -> dict[str, Any]:
    """How images are compared with the full cache's, as far as it is not always so."""
    return {**({"batch": given.batch} if given.batch else {}), **(presets.lpips() if given.lpips else {}),
            **(presets.clip(given.clip) if given.clip else {})}


def _evaluation(plan: Plan, cells: Cells, entry: ModelEntry, full: Case) -> dict[str, Any]:
    """The quality pass of a block as it stands in its cases; nothing where weights, of whichever part, are random."""
    if plan.quality is None or not cells.quality or "random:" in full.weights:
        return {}
    given = plan.quality
    subset = seeds.subset(given.seeds, entry.classes)
    stated = presets.stated(given.preset or entry.preset, given.extractor_weights, given.reference)
    samples = len(subset.first(given.samples or len(subset)))
    if samples < (least := stated.get("options", {}).get("kid_subset_size", 0)):
        raise BadPlan(f"{samples} images are fewer than the {least} of a subset of KID.", remedy="Raise quality.samples.")
    return {QUALITY_PASS: {"seeds": given.seeds, "samples": samples, "batch": given.batch, **stated}}


def _budget(given: str | float | int | MethodTable, layout: Layout, weights: str) -> Budget:
    """A share, or that of the sizes of the method that is named: so that others are measured at its bytes."""
    if isinstance(given, str) and given in registry.methods:
        given = MethodTable(name=given)
    if isinstance(given, MethodTable):
        return Budget(calibrated(registry.methods.get(given.name), given.model_extra or {}, weights).own_budget(layout))
    return Budget.parse(given)


def _unmet(cells: Cells, device: str) -> str:
    """Why nothing but the full cache in its native codec runs here, or nothing."""
    if cells.engine == "reference":
        return "the reference engine runs the full cache in the native codec only"
    return refused(cells.engine, device)


def _arms(plan: Plan, base: Case, given: str | MethodTable, budgets: list[str], layout: Layout) -> Iterator[tuple[Case, str]]:
    """The cases of a method, one for each budget, each with the reason why the method cannot meet it, or nothing."""
    given = MethodTable(name=given) if isinstance(given, str) else given
    name, knobs = given.name, dict(given.model_extra or {})
    cls: type[Method] = registry.methods.get(name)
    if name == FULL:
        return
    if type(entries := knobs.get("B")) is int:  # then it, and not the plan's axis, is the budget
        budgets = [_share(cls, entries, layout)]
    elif set(cls.sizes) & set(knobs):
        budgets = [str(Budget(calibrated(cls, knobs, base.weights).own_budget(layout)))]
    for budget in budgets:
        try:
            resolved = resolve(cls, Budget.parse(budget), layout, knobs, base.weights)
            unmet = _unrecorded(cls, resolved) if base.engine == GRAPH else ""
        except BadBudget as error:
            if plan.unmet == "error":
                raise
            resolved, unmet = {}, str(error)
        yield replace(base, method=name, variant=given.variant, knobs=resolved, budget=budget), unmet


def _unrecorded(cls: type[Method], knobs: dict[str, Any]) -> str:
    """Why the graph engine cannot run a method with these knobs, or nothing."""
    return "" if cls.build(knobs).capturable else f"{cls.name} decides on the host while images are made, which a recorded pass cannot"


def _share(cls: type[Method], entries: int, layout: Layout) -> str:
    """The budget that ``entries`` visual entries are."""
    everything = layout.cacheable if layout.scales else layout.visual
    if not 0 < entries <= everything:
        raise BadKnob(f"{cls.name}: B = {entries} does not fit.", remedy=f"Give 1 … {everything} visual entries.")
    return str(Budget(Fraction(entries, everything)))


def resolve(cls: type[Method], budget: Budget, layout: Layout, knobs: dict[str, Any], weights: str = "") -> dict[str, Any]:
    """Every knob of the method with its value: what is given, else what the budget asks for, else the default. Some follow from what was
    measured of the ``weights``."""
    if layout.paradigm not in cls.paradigms:
        raise BadBudget(f"{cls.name} does not run on {layout.paradigm} models.", remedy=f"It runs on: {', '.join(cls.paradigms)}.")
    for knob, value in knobs.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise BadKnob(f"{cls.name}: {knob} = {value} is not finite.", remedy="Give a number.")
    method = calibrated(cls, {**calibrated(cls, knobs, weights).fit(budget.ratio, layout), **knobs}, weights)
    method.resolve(layout)
    return method.knobs()


def _sampling(entry: ModelEntry, given: str | SamplingTable) -> Sampling:
    if isinstance(given, SamplingTable):
        return replace(entry.presets["paper"], **given.model_dump(exclude_none=True))
    if given not in entry.presets:
        raise unknown(f"sampling preset of {entry.name}", given, entry.presets)
    return entry.presets[given]


def _check_batch(batch: int, subset: seeds.Subset) -> None:
    if batch > len(subset):
        raise BadPlan(f"Batch {batch} is larger than the {len(subset)} samples of {subset.name}.",
                      remedy="Lower batch or raise fidelity.samples.")


def _shipped() -> Any:
    return resources.files("cachemark") / "data" / "plans"
