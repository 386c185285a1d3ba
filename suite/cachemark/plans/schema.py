"""A plan: a TOML file that names models, methods and budgets."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from ..core import seeds
from ..core.calls import listed, strict
from ..core.edited import text_of
from ..core.errors import BadBudget, BadPlan, unknown
from ..core.files import NAME, PACKAGE, is_readable
from ..core.spec import FULL, RANGES, SEQUENTIAL, Budget
from ..plugins import installed
from .plan_errors import Kinds, known_metric, line, plan_error, problem_of, shallow

LONGEST_NAME, LONGEST_PATH, LONGEST_TEXT = 100, 4096, 10_000  # characters
LARGEST_BATCH = MOST_SAMPLES = max(seeds.SIZES.values())  # images: the number of available seeds
LARGEST_SIDE = 10_000  # tokens along a side of an image
LONGEST_WAIT = 20 * 24 * 3600.0  # seconds: an operating system counts a wait in milliseconds, and not much further
MOST_CASES = 10_000
SHIPPED = PACKAGE / "data" / "plans"
# Folders of the shipped plans, in the order of `cachemark list plans`.
GROUPS = {
    "tiny": "bundled models, on a CPU",
    "papers": "tables of papers and published FIDs, on a GPU; with random weights unless the plan names files",
    "nightly": "published and bundled models every night, every weekend and before a release, on a GPU",
    "gpu": "studies of published models with random weights, on a GPU",
}

Name = Annotated[str, Field(max_length=LONGEST_NAME)]
FilePath = Annotated[str, Field(max_length=LONGEST_PATH, pattern=r"^[^\x00]*$")]
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Integer = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Axis = Field(min_length=1, max_length=1_000)


class PlanTable(BaseModel):
    """A TOML table with known keys only and strict types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _in_range(setting: str, **stricter: float | None) -> Any:
    """Return the constraint of a sampling setting to its range, or to a part of it."""
    low, high = RANGES[setting]
    bounds: dict[str, Any] = {"ge": low, "le": high, **stricter}
    return Field(**bounds)


class SamplingTable(PlanTable):
    """Changes to the model's ``paper`` preset."""

    cfg_scale: Annotated[float, _in_range("cfg_scale")] | None = None
    cfg_interval: Annotated[int, _in_range("cfg_interval")] | None = None
    temperature: Annotated[float, _in_range("temperature")] | None = None
    top_k: Annotated[int, _in_range("top_k")] | None = None
    top_p: Annotated[float, _in_range("top_p", ge=None, gt=0)] | None = None
    steps: Annotated[int, _in_range("steps", ge=1)] | None = None
    diffusion_steps: Annotated[int, _in_range("diffusion_steps", ge=1)] | None = None


class MethodTable(PlanTable):
    """A method or decoder with parameters of its own. ``variant`` names them if a block repeats it."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[Any, AfterValidator(shallow)]] = Field(init=False)

    name: Name
    variant: Annotated[str, Field(max_length=40, pattern=r"^[\w .+-]*$")] = ""


class MetricTable(PlanTable):
    """A requested metric with the paths of its models and files."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, FilePath] = Field(init=False)

    name: Name

    @property
    def options(self) -> dict[str, str]:
        """The paths by option."""
        return dict(self.model_extra or {})


class Timing(PlanTable):
    """Generations per case: warm-up, and timed."""

    warmup: Annotated[int, Field(ge=1, le=1_000)] = 2
    repeats: Annotated[int, Field(ge=3, le=10_000)] = 5


class Fidelity(PlanTable):
    """Comparison with the full cache.

    ``seeds``: a fixed subset; ``samples``: the number used; ``reference_samples``: the number for reference rows; ``forced_samples``: the
    number compared along the full cache's tokens (0: all); ``batch``: images per batch (0: the timed batch). ``prompts`` of text-to-image
    models: a shipped list or a file (empty: the model's)."""

    seeds: Name = "s256"
    samples: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] = 128
    reference_samples: Annotated[int, Field(ge=0, le=MOST_SAMPLES)] = 0
    forced_samples: Annotated[int, Field(ge=0, le=MOST_SAMPLES)] = 0
    batch: Annotated[int, Field(ge=0, le=LARGEST_BATCH)] = 0
    prompts: FilePath = ""


class Quality(PlanTable):
    """Comparison with real images.

    ``seeds``: a fixed subset; ``samples``: the number used (0: all); ``batch``: images per batch. ``preset`` selects the network and the
    real images (empty: the model's); ``extractor_weights`` and ``reference`` are its files if they are not shipped."""

    seeds: Name = "s2k"
    samples: Annotated[int, Field(ge=0, le=MOST_SAMPLES)] = 0
    batch: Annotated[int, Field(ge=1, le=LARGEST_BATCH)] = 50
    preset: Name = ""
    extractor_weights: FilePath = ""
    reference: FilePath = ""


class AnchorTable(PlanTable):
    """A published value that the full cache must reach (:mod:`cachemark.gate.anchors`)."""

    metric: Annotated[Name, AfterValidator(known_metric)]
    expected: Annotated[float, Field(ge=-1e9, le=1e9)]
    tolerance: Annotated[float, Field(gt=0, le=1e9)]
    source: Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]


class Cells(PlanTable):
    """A block of the matrix: one model, methods × budgets × codecs × decoders.

    The full cache that all are compared with is always sequential. ``grid``: rows and columns of tokens, for models with several aspect
    ratios (None: the model's own). ``batch = "max"`` searches for the largest batch that fits each case,
    and measures throughput without quality. ``samples`` overrides the plan's number (0: no override). ``quality``: whether the plan's
    quality pass includes this block. ``engine = "auto"`` is graph if device and method allow it, else eager. ``kernel``: the
    attention kernel to use ("auto": the first that accepts). With a deadline the lowest ``priority`` comes first."""

    model: Name
    methods: Annotated[list[Name | MethodTable], Axis]
    budgets: Annotated[list[Name | float | int | MethodTable], Axis] = ["1/2"]
    codecs: Annotated[list[Name], Axis] = ["native"]
    decoders: Annotated[list[Name | MethodTable], Axis] = [SEQUENTIAL]
    sampling: Name | SamplingTable = "paper"
    grid: Annotated[list[Annotated[int, Field(ge=1, le=LARGEST_SIDE)]], Field(min_length=2, max_length=2)] | None = None
    batch: Annotated[int, Field(ge=1, le=LARGEST_BATCH)] | Literal["max"] = 16
    samples: Annotated[int, Field(ge=0, le=MOST_SAMPLES)] = 0
    quality: bool = True
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    engine: Literal["auto", "eager", "graph", "reference"] = "eager"
    kernel: Name = "auto"
    weights: FilePath = ""
    decoder_weights: FilePath = ""
    random_seed: Integer = 0
    priority: Integer = 0

    _added: Mapping[str, str] = PrivateAttr(default={})  # methods that are not in the file, and the options that added them

    def only(self, models: set[str], methods: set[str], budgets: set[str]) -> Cells | None:
        """Return the block with some of its methods and budgets, or None if nothing remains."""
        remaining = [m for m in self.methods if _names(m) & methods] or ([FULL] if FULL in methods else [])
        axis = [b for b in self.budgets if _budget_name(b) in budgets]
        return self.model_copy(update={"methods": remaining, "budgets": axis}) if self.model in models and remaining and axis else None


def _without_repetition(blocks: list[Cells]) -> list[Cells]:
    """Raise ValueError if a block occurs twice: each of its cases would count twice."""
    first: dict[str, int] = {}
    for number, block in enumerate(blocks):
        if (earlier := first.setdefault(block.model_dump_json(), number)) < number:
            raise ValueError(f"block {number + 1} is the same as block {earlier + 1}")
    return blocks


class Plan(PlanTable):
    """A matrix of cases.

    ``timeout``: seconds per case. ``trial``: the cases that share a process, all of a ``model`` or one ``case``. ``on_unsupported``: a
    budget that a method cannot meet is an ``error`` of the plan or gives the outcome ``unsupported``. ``plugins``: Python files with
    methods, relative to the plan. ``metrics``: requested in addition to the default ones. ``max_cases``: the largest accepted number of
    cases."""
    name: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME, pattern=f"^{NAME}$")]
    description: Text = ""
    timing: Timing = Timing()
    fidelity: Fidelity = Fidelity()
    metrics: Annotated[list[Name | MetricTable], Field(max_length=100)] = []
    quality: Quality | None = None
    anchor: AnchorTable | None = None
    plugins: Annotated[list[FilePath], Field(max_length=100)] = []
    timeout: Annotated[float, Field(gt=0, le=LONGEST_WAIT)] = 600.0
    trial: Literal["model", "case"] = "model"
    on_unsupported: Literal["error", "unsupported"] = "error"
    max_cases: Annotated[int, Field(ge=1, le=1_000_000)] = MOST_CASES
    cells: Annotated[list[Cells], Axis, AfterValidator(_without_repetition)]

    @property
    def searches(self) -> bool:
        """True if a block searches for the largest batch."""
        return any(cells.batch == "max" for cells in self.cells)

    def __repr__(self) -> str:
        return f"<plan {self.name}: {', '.join(dict.fromkeys(cells.model for cells in self.cells))}>"

    __str__ = __repr__

    _source: tuple[str, str] = PrivateAttr(default=("", ""))  # the file's path and text, for errors
    _blocks: tuple[int, ...] = PrivateAttr(default=())  # numbers of its blocks in the file, where only some of them are left

    def place(self, *keys: str | int) -> str:
        """Return ``file:line`` of a key, or the plan's name if it has no file."""
        path, text = self._source
        if self._blocks and keys[:1] == ("cells",):
            keys = ("cells", self._blocks[int(keys[1])], *keys[2:])
        return f"{path}:{line(text, keys)}" if path else self.name

    def place_of(self, number: int, method: str | MethodTable) -> str:
        """Return :meth:`place` of a block's method, or the option that added it."""
        option = self.cells[number]._added.get(method) if isinstance(method, str) else None
        return option or self.place("cells", number, "methods")

    def stored(self) -> dict[str, Any]:
        """Return the plan as the store keeps it, with the path of its file unless it is shipped."""
        path = self._source[0]
        own = path and SHIPPED not in Path(path).parents
        return self.model_dump(mode="json") | ({FILE: str(Path(path).resolve())} if own else {})

    @classmethod
    def of_stored(cls, data: Mapping[str, Any]) -> Plan:
        """Return a stored plan. Raises pydantic's ValidationError."""
        return cls.model_validate({name: value for name, value in data.items() if name not in (FILE, PLUGIN_FILES)})

    def files(self) -> list[Path]:
        """Return the paths of its plug-ins, without importing them."""
        return [Path(self._source[0]).parent / name for name in self.plugins]

    def joined(self, extra: Sequence[str], files: Mapping[str, str | Path] = MappingProxyType({})) -> Plan:
        """Return the plan with more methods, each in all blocks whose model supports it.

        A block that names the method keeps it as it is. A method that no model supports is added to all blocks and causes an error there.
        ``files``: the plug-in files of methods."""
        models = {cells.model for cells in self.cells}
        places = {method: {model for model in models if _runs_on(method, model)} or models for method in extra}
        options = {method: f"--plugin {files[method]}" if method in files else f"--method {method}" for method in extra}
        cells = []
        for block in self.cells:
            named = {getattr(each, "name", each) for each in block.methods}
            added = {m: option for m, option in options.items() if block.model in places[m] and m not in named}
            cells.append(block.model_copy(update={"methods": [*block.methods, *added]}))
            cells[-1]._added = {**block._added, **added}
        return self.model_copy(update={"cells": cells})

    @property
    def metric_tables(self) -> list[MetricTable]:
        """The requested metrics, each with its options."""
        return [MetricTable(name=metric) if isinstance(metric, str) else metric for metric in self.metrics]

    @strict("only")
    def only(
        self, models: str | Sequence[str] | None = None, methods: str | Sequence[str] | None = None,
        budgets: str | float | Sequence[str | float] | None = None,
    ) -> Plan:
        """Return the plan with some of its models, methods and budgets (None: all).

        The full cache of each block remains. A method is selected by name, variant, or both (``lazymar: head cache 1``); methods with
        sizes of their own keep them. Raises UnknownName for unknown names, and BadPlan if nothing remains."""
        selected = [
            _selected(f"model of plan {self.name}", models, (c.model for c in self.cells), str),
            _selected(f"method of plan {self.name}", methods, (n for c in self.cells for m in c.methods for n in _names(m)), str),
            _selected(f"budget of plan {self.name}", budgets, (_budget_name(b) for c in self.cells for b in c.budgets), _budget_name),
        ]
        remaining = {number: block for number, cells in enumerate(self.cells) if (block := cells.only(*selected))}
        if not remaining:
            raise BadPlan(f"No block of plan {self.name} has these models, methods and budgets together.",
                          remedy="Run fewer at once; see the cases with: cachemark explain PLAN")
        plan = self.model_copy(update={"cells": list(remaining.values())})
        plan._blocks = tuple(self._blocks[number] if self._blocks else number for number in remaining)
        return plan


def _runs_on(method: str, model: str) -> bool:
    """Return whether a method supports a model, or one is unknown, which the expansion reports."""
    from ..methods.registry import METHODS  # imports torch, which reading a plan does not need
    from ..models.registry import MODELS

    return (method not in METHODS or model not in MODELS
            or MODELS.get(model).paradigm in METHODS.get(method).paradigms)


def _names(method: str | MethodTable) -> set[str]:
    """Return all names of a block's method."""
    if isinstance(method, str):
        return {method}
    return {method.name} | ({method.variant, f"{method.name}: {method.variant}"} if method.variant else set())


def _budget_name(budget: object) -> str:
    """Return a budget in canonical spelling: ``1/4`` for 0.25."""
    if isinstance(budget, MethodTable):
        return budget.name
    try:
        return str(Budget.parse(str(budget)))
    except BadBudget:  # the name of a method with its own sizes
        return str(budget)


def _selected(kind: str, requested: Any, valid: Iterable[str], spell: Callable[[Any], str]) -> set[str]:
    """Return names in canonical spelling, all that are ``valid`` by default. Raises UnknownName."""
    names = [*dict.fromkeys(valid)]
    chosen = set(names) if requested is None else {spell(name) for name in listed(requested)}
    for name in sorted(chosen - {*names, FULL}):
        raise unknown(kind, name, names)
    return chosen


FILE, PLUGIN_FILES = "file", "plugin_files"  # of a stored plan: the path that it was read from, and digests of plug-in files by path
KINDS: Kinds = {"": Plan, "timing": Timing, "fidelity": Fidelity, "quality": Quality, "anchor": AnchorTable, "cells": Cells,
                "sampling": SamplingTable}  # fmt: skip


def shipped() -> dict[str, Path]:
    """Return the files of the shipped plans by name; the folder of each is its group (:data:`GROUPS`)."""
    return {path.stem: path for group in GROUPS for path in sorted((SHIPPED / group).glob("*.toml"))}


def group(name: str) -> str:
    """Return the group of a shipped plan."""
    return shipped()[name].parent.name


def names() -> list[str]:
    """Return the shipped plans."""
    return list(shipped())


def find(name_or_path: str) -> Path:
    """Return the file of a plan: a path, or the name of a plan of this or an installed package."""
    path = Path(name_or_path)
    if path.suffix == ".toml" or "/" in name_or_path:
        if not is_readable(path):
            raise BadPlan(f"Plan {name_or_path!r} is not a file that can be read.", remedy=f"Shipped plans: {', '.join(names())}.")
        return path
    if file := shipped().get(name_or_path):
        return file
    if offer := installed.offer("plans", name_or_path):
        return offer.file
    raise unknown("plan", name_or_path, [*names(), *(each.name for each in installed.offers("plans"))])


@strict("plan", {name: f"cm.plan(…).only({name}=…)" for name in ("models", "methods", "budgets")})
def load(name_or_path: str | Path | Mapping[str, Any]) -> Plan:
    """Read and validate a plan: a shipped name, a TOML file, or a mapping as in the file. Raises BadPlan with file and line."""
    if isinstance(name_or_path, Mapping):
        try:
            return Plan.model_validate(dict(name_or_path))
        except ValidationError as error:
            raise BadPlan(f"plan: {problem_of(name_or_path, error)}", remedy="See docs/reference/plan-file.md.") from None
    path = find(str(name_or_path))
    text = text_of(path, BadPlan)
    try:
        data = tomllib.loads(text)
        plan = Plan.model_validate(data)
    except RecursionError:
        raise BadPlan(f"{path}: lists and tables are nested too deep.", remedy="See docs/reference/plan-file.md.") from None
    except ValidationError as error:
        raise plan_error(path, text, data, error, KINDS) from None
    except ValueError as error:  # not TOML, or an integer with more digits than Python reads
        raise BadPlan(f"{path}: not TOML: {error}.", remedy="Fix the syntax.") from None
    plan._source = str(path), text
    return plan


def prepare(plan: Plan | str | Path, plugins: Sequence[str | Path] = (), methods: Sequence[str] = ()) -> tuple[Plan, tuple[str, ...]]:
    """Return a plan with the methods of plug-in files, and the files that a trial must load.

    ``plan``: a shipped name, a TOML file, or a plan. The methods of plug-in files and ``methods`` are added to every block that supports
    them, and plug-in metrics are requested. The returned absolute paths include files of installed packages that the plan names. Raises
    BadPlan and BadPlugin."""
    from ..plugins import loading  # imports torch, which plans do not need
    from .metrics import is_built_in, metrics_of

    plugins, methods = listed(plugins), listed(methods)
    brought_methods = {name: file for file in plugins for name in loading.load(file)}
    loaded = plan if isinstance(plan, Plan) else load(plan)
    for file in loaded.files():
        loading.load(file)
    named = [getattr(each, "name", each) for cells in loaded.cells for each in (*cells.methods, *cells.budgets)]
    brought = loading.require("models", (cells.model for cells in loaded.cells))
    brought += loading.require("methods", [*methods, *(name for name in named if isinstance(name, str))])
    brought += loading.require("metrics", [table.name for table in loaded.metric_tables if not is_built_in(table.name)])
    requested = {table.name for table in loaded.metric_tables}
    more = [name for name in metrics_of(plugins, of_sets=loaded.quality is not None) if name not in requested]
    joined = loaded.joined([*brought_methods, *methods], brought_methods).model_copy(update={"metrics": [*loaded.metrics, *more]})
    return joined, tuple(dict.fromkeys(str(Path(file).resolve()) for file in (*plugins, *joined.files(), *brought)))
