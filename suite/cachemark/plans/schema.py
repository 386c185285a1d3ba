"""A plan: a TOML file that names models, methods and budgets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from ..core import seeds
from ..core.errors import BadBudget, BadPlan, unknown
from ..core.files import NAME, is_readable
from ..core.spec import FULL, SEQUENTIAL, Budget
from ..plugins import installed
from .plan_errors import Kinds, line, plan_error
from .toml_text import toml_file

LONGEST_NAME, LONGEST_PATH, LONGEST_TEXT = 100, 4096, 10_000  # characters
LARGEST_BATCH = MOST_SAMPLES = max(seeds.SIZES.values())  # images: there are seeds for no more
LONGEST_WAIT = 20 * 24 * 3600.0  # seconds: an operating system counts a wait in milliseconds, and not much further
MOST_CASES = 10_000

Name = Annotated[str, Field(max_length=LONGEST_NAME)]
FilePath = Annotated[str, Field(max_length=LONGEST_PATH, pattern=r"^[^\x00]*$")]
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Integer = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Axis = Field(min_length=1, max_length=1_000)


class PlanTable(BaseModel):
    """A TOML table in which only known keys are allowed, each with a value of its own type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class SamplingTable(PlanTable):
    """Changes to the model's ``paper`` preset."""

    cfg_scale: Annotated[float, Field(ge=-1_000, le=1_000)] | None = None
    cfg_interval: Annotated[int, Field(ge=-1, le=1_000_000)] | None = None
    temperature: Annotated[float, Field(ge=0, le=1_000)] | None = None
    top_k: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    steps: Annotated[int, Field(ge=1, le=10_000)] | None = None
    diffusion_steps: Annotated[int, Field(ge=1, le=10_000)] | None = None


class MethodTable(PlanTable):
    """A method with parameters of its own. ``variant`` is a word for them, where a block has the method more than once."""

    model_config = ConfigDict(extra="allow")

    name: Name
    variant: Annotated[str, Field(max_length=40, pattern=r"^[\w .+-]*$")] = ""


class DecoderTable(PlanTable):
    """A decoder with parameters of its own. ``variant`` is a word for them, where a block has the decoder more than once."""

    model_config = ConfigDict(extra="allow")

    name: Name
    variant: Annotated[str, Field(max_length=40, pattern=r"^[\w .+-]*$")] = ""


class MetricTable(PlanTable):
    """A metric that a plan asks for, with the paths of the models and files that it needs."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, FilePath] = Field(init=False)

    name: Name

    @property
    def options(self) -> dict[str, str]:
        """The paths by the name of the option."""
        return dict(self.model_extra or {})


class Timing(PlanTable):
    """Generations per case: not counted, and counted."""

    warmup: Annotated[int, Field(ge=1, le=1_000)] = 2
    repeats: Annotated[int, Field(ge=3, le=10_000)] = 5


class Fidelity(PlanTable):
    """Which fixed subset of seeds is compared with the full cache, how many samples of it, how many of these the reference rows take,
    how many are compared along the full cache's own tokens (0: all), and how many images at once (0: as many as are timed). ``prompts``:
    what text-to-image models are asked for, a list of the package by name or a file (empty: each model's own). ``sequential``: seeds are
    added until each method is decided, so claims of quality are judged by the test that allows an interim analysis at every seed."""

    seeds: Name = "s64"
    samples: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] = 64
    reference_samples: Annotated[int, Field(ge=0, le=MOST_SAMPLES)] = 0
    forced_samples: Annotated[int, Field(ge=0, le=MOST_SAMPLES)] = 0
    batch: Annotated[int, Field(ge=0, le=LARGEST_BATCH)] = 0
    prompts: FilePath = ""
    sequential: bool = False


class Quality(PlanTable):
    """Which fixed subset is compared with real images, how many samples of it (0: all), and how many images at once. ``preset`` says with
    which eyes and against what (empty: the model's own); ``extractor_weights`` and ``reference`` are its files where none is packaged."""

    seeds: Name = "s2k"
    samples: Annotated[int, Field(ge=0, le=MOST_SAMPLES)] = 0
    batch: Annotated[int, Field(ge=1, le=LARGEST_BATCH)] = 50
    preset: Name = ""
    extractor_weights: FilePath = ""
    reference: FilePath = ""


class AnchorTable(PlanTable):
    """The value that the full cache must reach before values on this model compare with published ones: see
    :mod:`cachemark.gate.anchors`."""

    metric: Name
    expected: Annotated[float, Field(ge=-1e9, le=1e9)]
    tolerance: Annotated[float, Field(gt=0, le=1e9)]
    source: Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]


class Cells(PlanTable):
    """A block of the matrix: one model, methods × budgets × codecs × decoders. ``decoders`` say how many tokens a pass draws; the full
    cache that all are compared with is always sequential. ``batch = "max"`` asks for the largest that fits, of the full cache and
    of every candidate for itself, and for throughput there: nothing is judged. ``samples`` compares fewer or more with the full cache than
    the
    plan says; 0 is the plan's own number. ``quality`` says whether the plan's quality pass is made here. ``engine = "auto"`` is graph
    where the device and the method allow it, else eager. With a deadline the lowest
    ``priority`` comes first."""

    model: Name
    methods: Annotated[list[Name | MethodTable], Axis]
    budgets: Annotated[list[Name | float | int | MethodTable], Axis] = ["1/2"]
    codecs: Annotated[list[Name], Axis] = ["native"]
    decoders: Annotated[list[Name | DecoderTable], Axis] = [SEQUENTIAL]
    sampling: Name | SamplingTable = "paper"
    batch: Annotated[int, Field(ge=1, le=LARGEST_BATCH)] | Literal["max"] = 16
    samples: Annotated[int, Field(ge=0, le=MOST_SAMPLES)] = 0
    quality: bool = True
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    engine: Literal["auto", "eager", "graph", "reference"] = "eager"
    weights: FilePath = ""
    decoder_weights: FilePath = ""
    random_seed: Integer = 0
    priority: Integer = 0

    _added: Mapping[str, str] = PrivateAttr(default={})  # methods that stand on no line of the plan, and the options that added them

    def with_added(self, extra: Mapping[str, str]) -> Cells:
        """This block with more methods, each with the option that adds it."""
        new = {method: option for method, option in extra.items() if method not in self.methods}
        made = self.model_copy(update={"methods": [*self.methods, *new]})
        made._added = {**self._added, **new}
        return made

    def only(self, models: set[str] | None, methods: set[str] | None, budgets: set[str] | None) -> Cells | None:
        """This block with some of its methods and budgets (None: all), or None where nothing of them is in it."""
        if models is not None and self.model not in models:
            return None
        left = [m for m in self.methods if methods is None or _names(m) & methods]
        axis = [b for b in self.budgets if budgets is None or _budget_name(b) in budgets]
        if not left and methods is not None and FULL in methods:
            left = [FULL]
        return self.model_copy(update={"methods": left, "budgets": axis}) if left and axis else None


class Plan(PlanTable):
    """A matrix of cases. ``timeout`` is seconds per case; ``trial`` says what shares a process: all cases of a model or one
    case; ``on_unsupported`` what a budget becomes that a method cannot meet: an error of the plan, or the outcome
    ``unsupported``. ``plugins`` are Python
    files that register its methods, relative to the plan.
    ``metrics``: those that it asks for beside those that are always measured. ``max_cases`` is how many cases it
    may mean: more are taken for a mistake."""

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
    cells: Annotated[list[Cells], Axis]

    @property
    def searches(self) -> bool:
        """True where a block asks for the largest batch that fits."""
        return any(cells.batch == "max" for cells in self.cells)

    _source: tuple[str, str] = PrivateAttr(default=("", ""))  # the file's path and text, for errors
    _blocks: tuple[int, ...] = PrivateAttr(default=())  # numbers of its blocks in the file, where only some of them are left

    def place(self, *keys: str | int) -> str:
        """``file:line`` of a key, or the plan's name where it was not read from a file."""
        path, text = self._source
        if self._blocks and keys[:1] == ("cells",):
            keys = ("cells", self._blocks[int(keys[1])], *keys[2:])
        return f"{path}:{line(text, keys)}" if path else self.name

    def place_of(self, number: int, method: str | MethodTable) -> str:
        """:meth:`place` of a method of a block, or the option that added it."""
        option = self.cells[number]._added.get(method) if isinstance(method, str) else None
        return option or self.place("cells", number, "methods")

    def stored(self) -> dict[str, Any]:
        """The plan as a store keeps it: with the path of its file, unless it comes with the package."""
        path = self._source[0]
        own = path and Path(path).parent != Path(str(_shipped()))
        return self.model_dump(mode="json") | ({FILE: str(Path(path).resolve())} if own else {})

    @classmethod
    def of_stored(cls, data: Mapping[str, Any]) -> Plan:
        """The plan that a store keeps so. Raises pydantic's ValidationError."""
        return cls.model_validate({name: value for name, value in data.items() if name != FILE})

    def files(self) -> list[Path]:
        """Its plug-ins. Nothing is imported yet."""
        return [Path(self._source[0]).parent / name for name in self.plugins]

    def joined(self, extra: Sequence[str], files: Mapping[str, str | Path] = MappingProxyType({})) -> Plan:
        """This plan with more methods, each in every block whose model it can run on; in all of them where it can on none, which is then
        a mistake of whoever asked for it. ``files``: the plug-in files of those that came with one."""
        options = {m: f"--plugin {files[m]}" if m in files else f"--method {m}" for m in extra}
        places = {m: {c.model for c in self.cells if _runs_on(m, c.model)} or {c.model for c in self.cells} for m in extra}
        return self.model_copy(update={"cells": [c.with_added({m: option for m, option in options.items() if c.model in places[m]})
                                                 for c in self.cells]})

    def judged_by(self, metrics: Sequence[str]) -> Plan:
        """This plan with more metrics of plug-ins."""
        more = [name for name in metrics if name not in {table.name for table in self.metric_tables}]
        return self.model_copy(update={"metrics": [*self.metrics, *more]}) if more else self

    @property
    def metric_tables(self) -> list[MetricTable]:
        """The metrics that the plan asks for, each with its options."""
        return [MetricTable(name=metric) if isinstance(metric, str) else metric for metric in self.metrics]

    def only(
        self, models: Sequence[str] | None = None, methods: Sequence[str] | None = None, budgets: Sequence[str | float] | None = None,
    ) -> Plan:
        """This plan with some of its models, methods and budgets (None: all); the full cache of each block stays. A method is meant by its
        name, its variant, or both (``lazymar: head cache 1``); one with sizes of its own has no budget on the plan's axis and keeps
        them. UnknownName for what the plan does not have, with the nearest that it has; BadPlan where nothing is left."""
        wanted = [_wanted(f"model of plan {self.name}", models, (c.model for c in self.cells), str),
                  _wanted(f"method of plan {self.name}", methods, (n for c in self.cells for m in c.methods for n in _names(m)), str),
                  _wanted(f"budget of plan {self.name}", budgets, (_budget_name(b) for c in self.cells for b in c.budgets), _budget_name)]
        left = {number: cells_left for number, cells in enumerate(self.cells) if (cells_left := cells.only(*wanted))}
        if not left:
            raise BadPlan(f"No block of plan {self.name} has these models, methods and budgets together.",
                          remedy="Ask for fewer at once; see the cases with: cachemark explain PLAN")
        plan = self.model_copy(update={"cells": list(left.values())})
        plan._blocks = tuple(self._blocks[number] if self._blocks else number for number in left)
        return plan


def _runs_on(method: str, model: str) -> bool:
    """True where a method can run on a model, or one of them is unknown, which is said when the plan is expanded."""
    from ..methods.registry import METHODS  # with torch, without which plans are read
    from ..models.registry import MODELS

    return (method not in METHODS or model not in MODELS
            or MODELS.get(model).paradigm in METHODS.get(method).paradigms)


def _names(method: str | MethodTable) -> set[str]:
    """Every name that means a method of a block."""
    if isinstance(method, str):
        return {method}
    return {method.name} | ({method.variant, f"{method.name}: {method.variant}"} if method.variant else set())


def _budget_name(budget: object) -> str:
    """A budget as one spelling: ``1/4`` for 0.25."""
    if isinstance(budget, MethodTable):
        return budget.name
    try:
        return str(Budget.parse(str(budget)))
    except BadBudget:  # the name of a method whose sizes are meant
        return str(budget)


def _wanted(kind: str, given: Sequence[Any] | None, known: Iterable[str], spelt: Callable[[Any], str]) -> set[str] | None:
    """Names in one spelling; None where all are meant. UnknownName for one that is not known."""
    if given is None:
        return None
    names, found = [*dict.fromkeys(known)], {spelt(name) for name in given}
    for name in sorted(found - {*names, FULL}):
        raise unknown(kind, name, names)
    return found


FILE = "file"  # of a stored plan: the path that it was read from
KINDS: Kinds = {"": Plan, "timing": Timing, "fidelity": Fidelity, "quality": Quality, "anchor": AnchorTable, "cells": Cells,
                "sampling": SamplingTable}  # fmt: skip


def names() -> list[str]:
    """Plans that the package carries."""
    return sorted(p.name.removesuffix(".toml") for p in _shipped().iterdir() if p.name.endswith(".toml"))


def find(name_or_path: str) -> Path:
    """The file of a plan given by path, or by the name of a shipped one or of one that an installed package brings."""
    path = Path(name_or_path)
    if path.suffix == ".toml" or "/" in name_or_path:
        if not is_readable(path):
            raise BadPlan(f"Plan {name_or_path!r} is not a file that can be read.", remedy=f"Shipped plans: {', '.join(names())}.")
        return path
    if name_or_path not in names():
        if offer := installed.offer("plans", name_or_path):
            return offer.file
        raise unknown("plan", name_or_path, [*names(), *(each.name for each in installed.offers("plans"))])
    return Path(str(_shipped() / f"{name_or_path}.toml"))


def load(name_or_path: str) -> Plan:
    """Read and validate a plan. BadPlan names the file, the line, what was found and what is expected."""
    path = find(name_or_path)
    text, data = toml_file(path)
    try:
        plan = Plan.model_validate(data)
    except ValidationError as error:
        raise plan_error(path, text, data, error, KINDS) from None
    plan._source = str(path), text
    return plan


def prepare(plan: Plan | str | Path, plugins: Sequence[str | Path] = (), methods: Sequence[str] = ()) -> tuple[Plan, tuple[str, ...]]:
    """A plan (the name of a shipped one, a TOML file, or a plan) with the methods of plug-in files and ``methods`` in every block that
    they can run in, judged by the metrics of plug-in files too, and the absolute paths of the files that a trial must load, those of
    installed packages that the plan asks for by name among them. Raises BadPlan and BadPlugin."""
    from ..plugins import loading
    from .installed_things import asked, require  # with torch, without which plans are read
    from .metrics import is_built_in, metrics_of

    brought_methods = {name: file for file in plugins for name in loading.load(file)}
    loaded = plan if isinstance(plan, Plan) else load(str(plan))
    for file in loaded.files():
        loading.load(file)
    brought = require("models", (cells.model for cells in loaded.cells))
    brought += require("methods", [*methods, *(name for cells in loaded.cells for name in asked([*cells.methods, *cells.budgets]))])
    brought += require("metrics", [table.name for table in loaded.metric_tables if not is_built_in(table.name)])
    joined = loaded.joined([*brought_methods, *methods], brought_methods).judged_by(metrics_of(plugins, of_sets=loaded.quality is not None))
    return joined, tuple(str(Path(file).resolve()) for file in (*plugins, *joined.files(), *dict.fromkeys(brought)))


def _shipped() -> Any:
    return resources.files("cachemark") / "data" / "plans"
