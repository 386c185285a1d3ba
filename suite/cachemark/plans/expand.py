"""Expansion of a plan: the cases that it means, each with what is needed to run it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import torch

from ..cache.codec import NATIVE, Codec, codec
from ..cache.engine.graph import AUTO, GRAPH, refused
from ..cache.layout import Layout
from ..contract.method import Method
from ..core import seeds
from ..core.errors import BadBudget, BadParameter, BadPlan, CachemarkError, unknown
from ..core.limits import Rates
from ..core.spec import FORCED_SAMPLES, FULL, MAX_BATCH, QUALITY_PASS, REFERENCE_SAMPLES, Budget, Case, Sampling
from ..core.units import set_name
from ..methods.base import calibrations
from ..methods.registry import METHODS
from ..metrics.compute import presets
from ..models.protocol import ModelEntry, Request
from ..models.registry import MODELS
from ..plugins import loading as plugins
from ..roofline.idle import idle_reason
from .decoding import check_numbers, decoder_class, refused_decoder, resolved_decoder
from .metrics import KEY, options_of, stated
from .reuse import Earlier
from .schema import Cells, MethodTable, Plan, SamplingTable

FIRST, SEEDS = 16, "s10k"  # where the search for it begins, and whose first seeds a batch has, however large


@dataclass(frozen=True)
class Planned:
    """A case and what is needed to run it. ``unsupported_reason``: why the method cannot, or empty. ``feature_cache``: the folder for the
    finished parts of its quality pass, ``full_features`` that of the full cache of its cell. ``rates``: those of the device, where they
    were measured. ``reusable``: an earlier outcome of the case, whose quality may be reused. ``engine_reason``: why
    ``auto`` is not the graph engine here, or empty. ``needs``: digests of the plug-ins without which it cannot run. ``idle_reason``: why
    the method changes nothing on this model, or empty. ``result_key`` and its ``result_parts`` name the result where it is stored."""

    case: Case
    request: Request
    unsupported_reason: str = ""
    feature_cache: Path | None = None
    full_features: Path | None = None
    rates: Rates | None = None
    priority: int = 0
    reusable: Earlier | None = None
    engine_reason: str = ""
    needs: tuple[str, ...] = ()
    idle_reason: str = ""
    result_key: str = ""
    result_parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def runs_plugin(self) -> bool:
        """True where its method, model or decoder, or one of its metrics, is a plug-in's."""
        return bool(self.needs or self.case.evaluation.get(KEY))

    @property
    def entry(self) -> ModelEntry:
        """The model, with the prompts that it is asked for. Raises what :meth:`~cachemark.models.protocol.ModelEntry.of` raises."""
        entry: ModelEntry = MODELS.get(self.case.model)
        return entry.for_request(self.request)


def expand(plan: Plan, device: str = "cpu") -> list[Planned]:
    """Every case of a plan: for each block the full cache, its two reference rows, then methods × budgets × codecs × decoders."""
    _refuse_too_many(plan)
    _refuse_unread(plan)
    with plugins.answering():
        return _expanded(plan, device)


def _expanded(plan: Plan, device: str) -> list[Planned]:
    cases: dict[str, Planned] = {}
    names: dict[tuple[str, str, str], str] = {}
    for number, cells in enumerate(plan.cells):
        for planned in _with_engine(plan, cells, number, device):
            case = planned.case
            if names.setdefault((case.model, case.cell, case.label), case.key) != case.key:
                raise BadPlan(f"{plan.place('cells', number, 'methods')}: two cases are called {case.label!r}.",
                              remedy="Give each table of that method, or of that decoder, a variant, a word of its own.")
            needs = plugins.needs(METHODS.get(case.method), MODELS.get(case.model), decoder_class(case))
            idle = _idle_reason(planned) if case.role == "candidate" and case.key not in cases else ""
            cases.setdefault(case.key, replace(planned, priority=cells.priority, needs=needs, idle_reason=idle))
    return list(cases.values())


def _refuse_too_many(plan: Plan) -> None:
    """Raise BadPlan where a plan means more cases than anybody would wait for, before they are made one by one."""
    count = sum(3 + len(c.methods) * len(c.budgets) * len(c.codecs) * len(c.decoders) + len(c.decoders) - 1 for c in plan.cells)
    if count > plan.max_cases:
        raise BadPlan(f"{plan.place('cells')}: the plan would mean up to {count} cases, and at most {plan.max_cases} are measured.",
                      remedy=f"Leave some of what its axes list out, or raise the bound above all tables: max_cases = {count}")


def _refuse_unread(plan: Plan) -> None:
    """Raise BadPlan where a plan names prompts and no model of it is given any."""
    named = [MODELS.get(cells.model) for cells in plan.cells if cells.model in MODELS]
    if plan.fidelity.prompts and named and all(entry.asking is None for entry in named):
        readers = [name for name in MODELS if MODELS.get(name).asking is not None]
        raise BadPlan(f"{plan.place('fidelity', 'prompts')}: no model of this plan is given prompts.",
                      remedy=f"Take them out, or name one of: {', '.join(readers)}.")


@contextmanager
def _at(plan: Plan, *keys: str | int) -> Iterator[None]:
    """Errors inside name the file and the line of these keys."""
    with _in(plan.place(*keys)):
        yield


@contextmanager
def _in(place: str) -> Iterator[None]:
    """Errors inside name this place."""
    try:
        yield
    except CachemarkError as error:
        raise type(error)(f"{place}: {error.message}", remedy=error.remedy) from error


def _with_engine(plan: Plan, cells: Cells, number: int, device: str) -> Iterator[Planned]:
    """The cases of a block. ``auto`` becomes graph, and eager where that is refused: candidates that cannot be recorded stand in an eager
    cell,
    beside a full cache of their own, since a speedup over one of another engine would measure the engines."""
    if cells.engine != AUTO:
        yield from _block(plan, cells, number, device)
        return
    eager = cells.model_copy(update={"engine": "eager"})
    if reason := refused(GRAPH, device):
        yield from (replace(planned, engine_reason=reason) for planned in _block(plan, eager, number, device))
        return
    not_recorded: dict[str, str] = {}
    for planned in _block(plan, cells.model_copy(update={"engine": GRAPH}), number, device):
        case = planned.case
        if reason := _left_out(case):
            not_recorded[case.label] = reason
        else:
            yield planned
    for planned in _block(plan, eager, number, device) if not_recorded else ():
        if planned.case.role != "candidate" or planned.case.label in not_recorded:
            yield replace(planned, engine_reason=not_recorded.get(planned.case.label, f"beside {', '.join(not_recorded)}"))


def _left_out(case: Case) -> str:
    """The reason why a candidate does not run on the graph engine, or nothing."""
    return _unrecorded(METHODS.get(case.method), dict(case.parameters)) if case.role == "candidate" and case.parameters else ""


def _block(plan: Plan, cells: Cells, number: int, device: str) -> Iterator[Planned]:
    request = _request(plan, cells, device)
    with _at(plan, "cells", number, "model"):
        named_entry: ModelEntry = MODELS.get(cells.model)
    with _at(plan, "fidelity", "prompts"):
        entry = named_entry.for_request(request)
    with _at(plan, "cells", number, "sampling"):
        sampling = _sampling(entry, cells.sampling)
    with _at(plan, "fidelity", "seeds"):
        subset = seeds.subset(plan.fidelity.seeds, entry.classes)
    with _at(plan, *(("cells", number, "samples") if cells.samples else ("fidelity", "samples"))):
        subset = subset.first(cells.samples or plan.fidelity.samples)
    searched, batch = cells.batch == "max", FIRST if cells.batch == "max" else cells.batch
    with _at(plan, "cells", number, "batch"):
        subset = seeds.subset(SEEDS, entry.classes).first(batch) if searched else subset
        if batch > len(subset):
            raise BadPlan(f"Batch {batch} is larger than the {len(subset)} samples of {subset.name}.",
                          remedy="Lower batch or raise fidelity.samples.")
    with _at(plan, "cells", number, "weights"):
        identity = entry.identity(request)
    with _at(plan, "cells", number, "codecs"):
        codecs = list(dict.fromkeys(codec(name).name for name in cells.codecs))
    with _at(plan, *(("fidelity", "prompts") if request.prompts else ("cells", number, "model"))):
        layout, absent = entry.shape(sampling, batch), refused(cells.engine, device)
    barred = "the reference engine runs the full cache in the native codec only" if cells.engine == "reference" else absent
    with _at(plan, "cells", number, "budgets"):
        budgets = list(dict.fromkeys(str(_budget(budget, layout, identity)) for budget in cells.budgets))
    with _at(plan, "quality"):
        quality = {} if searched or "random:" in identity else _quality_pass(plan, cells, entry)
    full = Case(
        cells.model, identity, entry.grid, entry.conditions, sampling, FULL,
        batch=batch, seeds=subset.name, samples=len(subset), dtype=cells.dtype, engine=cells.engine,
        device_class=device, warmup=plan.timing.warmup, repeats=plan.timing.repeats, role="baseline",
        evaluation={MAX_BATCH: {"limit": 0}} if searched else _likeness(plan, len(subset), entry, request, quality),
    )
    with_quality = replace(full, evaluation={**full.evaluation, QUALITY_PASS: quality}) if quality else full
    yield Planned(with_quality, request, absent)
    if not searched and not full.weights.startswith("random:"):
        yield Planned(replace(full, role="other_seeds"), request, absent)
        if full.samples > 1:  # one image can only be generated in a batch of one
            yield Planned(replace(full, role="other_batch"), request, absent)
    with _at(plan, "cells", number, "decoders"):
        decoding = [resolved_decoder(each) for each in cells.decoders]
    for decoder, name in product(decoding, codecs):
        base, wrong = replace(with_quality, codec=name, role="candidate", decoder=decoder), barred or _ungrouped(codec(name), layout)
        if name != full.codec or decoder:
            yield Planned(base, request, wrong or refused_decoder(base, METHODS.get(FULL), {}, layout))
        for method in cells.methods:
            with _in(plan.place_of(number, method)):
                candidates = list(_candidates(plan, base, method, budgets, layout))
            yield from (Planned(case, request, wrong or reason) for case, reason in candidates)


def _ungrouped(stored: Codec, layout: Layout) -> str:
    """The reason why a model cannot store its keys in groups of tokens, or nothing."""
    if not stored.grouped or layout.paradigm == "next-token":
        return ""
    return f"{stored.name} groups keys in the order of their arrival, which only next-token models have; int4 stores each by itself"


def _request(plan: Plan, cells: Cells, device: str) -> Request:
    files = (plan.quality.extractor_weights, plan.quality.reference) if plan.quality and cells.quality else ("", "")
    weights = cells.weights, cells.decoder_weights, cells.random_seed
    return Request(device, getattr(torch, cells.dtype), *weights, cells.engine, *files, plan.fidelity.prompts,
                   options_of(plan.metric_tables))


def _likeness(plan: Plan, samples: int, entry: ModelEntry, request: Request, quality: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the comparison with the full cache's images, where they are not the usual ones, and the metrics that are asked for."""
    fidelity = plan.fidelity
    with _at(plan, "metrics"):
        image_set = set_name(quality["preset"], quality["samples"]) if quality and "missing" not in quality else ""
        metrics = stated(plan.metric_tables, entry, request, image_set if plan.quality else None)
    fewer = {REFERENCE_SAMPLES: fidelity.reference_samples, FORCED_SAMPLES: fidelity.forced_samples}
    return {**({"batch": fidelity.batch} if fidelity.batch else {}), **({KEY: metrics} if metrics else {}),
            **{name: few for name, few in fewer.items() if 0 < few < samples}}


def _quality_pass(plan: Plan, cells: Cells, entry: ModelEntry) -> dict[str, Any]:
    """The quality pass of a block as it stands in its cases, or nothing."""
    if plan.quality is None or not cells.quality:
        return {}
    table = plan.quality
    subset = seeds.subset(table.seeds, entry.classes)
    identity = presets.identity_of(table.preset or entry.preset, table.extractor_weights, table.reference)
    samples = len(subset.first(table.samples or len(subset)))
    if samples < (least := identity.get("options", {}).get("kid_subset_size", 0)):
        raise BadPlan(f"{samples} images are fewer than the {least} of a subset of KID.", remedy="Raise quality.samples.")
    return {"seeds": table.seeds, "samples": samples, "batch": table.batch, **identity}


def _budget(budget: str | float | int | MethodTable, layout: Layout, weights: str) -> Budget:
    """A share, or that of the sizes of the method that is named: so that others are measured at its bytes. With a codec it is the share
    of the native full cache's bytes that those sizes take in it."""
    if isinstance(budget, str) and budget in METHODS:
        budget = MethodTable(name=budget)
    if not isinstance(budget, MethodTable):
        return _parsed(budget, layout)
    cls: type[Method] = METHODS.get(budget.name)
    parameters = dict(budget.model_extra or {})
    stored = codec(str(parameters.pop("codec", NATIVE.name)))
    if stored is not NATIVE and layout.paradigm == "masked":
        raise BadBudget("A budget of a masked model is a share of its FLOPs, and a codec saves none.", remedy="Give a share, such as 1/2.")
    smaller = Fraction(1) if stored is NATIVE else Fraction(*(_row_bytes(each, layout) for each in (stored, NATIVE)))
    if budget.name == FULL and stored is not NATIVE and not parameters:
        return Budget(smaller)
    if cls.own_budget is Method.own_budget or layout.paradigm not in cls.paradigms:
        raise _not_sized(cls, layout)
    with plugins.answering(cls):
        return Budget(calibrated(cls, parameters, weights).own_budget(layout) * smaller)


def _parsed(budget: str | float, layout: Layout) -> Budget:
    """A share as it is written. BadBudget names the method whose name that may have been."""
    try:
        return Budget.parse(budget)
    except BadBudget as error:
        here = [name for name, cls in _sized().items() if layout.paradigm in cls.paradigms]
        if near := difflib.get_close_matches(str(budget), here, n=1):
            raise BadBudget(error.message, remedy=f"Did you mean {near[0]!r}? {error.remedy}") from None
        raise


def _sized() -> dict[str, type[Method]]:
    """The methods that have sizes of their own, so that their names can stand for a budget on models of their kinds."""
    return {name: cls for name in METHODS if (cls := METHODS.get(name)).own_budget is not Method.own_budget}


def _not_sized(cls: type[Method], layout: Layout) -> BadBudget:
    """The error for the name of a method in the place of a budget, where that method has no sizes on this kind of model."""
    sized = _sized()
    problem = (f"has sizes on {' and '.join(cls.paradigms)} models, and this one is a {layout.paradigm} model" if cls.name in sized else
            "has no sizes of its own")
    here = [name for name, sized_cls in sized.items() if layout.paradigm in sized_cls.paradigms]
    kinds = sorted({kind for sized_cls in sized.values() for kind in sized_cls.paradigms})
    named = (f"the name of a method that has sizes of its own: {', '.join(here)}" if here else
             f"on {' and '.join(kinds)} models the name of a method that has sizes of its own")
    return BadBudget(f"{cls.name} is no budget here: it {problem}.", remedy=f"Give a share of the full cache such as 1/4, or {named}.")


def _row_bytes(stored: Codec, layout: Layout) -> int:
    """Bytes of everything that one row and head of a layer stores."""
    pair, shared = (stored.pair_bytes(layout.head_dim, layout.dtype),
                    stored.shared_bytes(layout.head_dim, layout.dtype, layout.longest_condition + layout.visual))
    return layout.stored * pair + shared


def _candidates(plan: Plan, base: Case, table: str | MethodTable, budgets: list[str], layout: Layout) -> Iterator[tuple[Case, str]]:
    """The cases of a method, one for each budget, each with the reason why the method cannot meet it, or nothing."""
    table = MethodTable(name=table) if isinstance(table, str) else table
    name, parameters = table.name, dict(table.model_extra or {})
    cls: type[Method] = METHODS.get(name)
    if name == FULL:
        return
    if layout.paradigm in cls.paradigms:  # else no size of it is one here, which is said of each budget below
        budgets = _own_size(cls, parameters, layout, base.weights) or budgets
    for budget in budgets:
        try:
            with plugins.answering(cls, decoder_class(base)):
                resolved = resolve(cls, Budget.parse(budget), layout, parameters, base.weights)
                reason = _unrecorded(cls, resolved) if base.engine == GRAPH else ""
                reason = reason or refused_decoder(base, cls, resolved, layout)
        except BadBudget as error:
            if plan.on_unsupported == "error":
                raise
            resolved, reason = {}, str(error)
        yield replace(base, method=name, variant=table.variant, parameters=resolved, budget=budget), reason


def _own_size(cls: type[Method], parameters: dict[str, Any], layout: Layout, weights: str) -> list[str]:
    """The budget that these parameters mean in the place of the plan's axis, or nothing where they mean none."""
    if type(entries := parameters.get("B")) is int:
        return [_share(cls, entries, layout)]
    return [str(Budget(calibrated(cls, parameters, weights).own_budget(layout)))] if set(cls.sizes) & set(parameters) else []


def _idle_reason(planned: Planned) -> str:
    """The reason why the method of a candidate changes nothing on its model, or nothing; nothing too where it cannot run there."""
    case = planned.case
    if planned.unsupported_reason:
        return ""
    cls, layout = METHODS.get(case.method), planned.entry.shape(case.sampling, case.batch)
    with plugins.answering(cls):
        return idle_reason(cls.build(case.parameters), layout)


def _unrecorded(cls: type[Method], parameters: dict[str, Any]) -> str:
    """The reason why the graph engine cannot run a method with these parameters, or nothing."""
    return "" if cls.build(parameters).capturable else f"{cls.name} decides on the host while images are made, which a captured pass cannot"


def _share(cls: type[Method], entries: int, layout: Layout) -> str:
    """The budget that ``entries`` visual entries are."""
    everything = layout.cacheable if layout.scales else layout.visual
    if not 0 < entries <= everything:
        raise BadParameter(f"{cls.name}: B = {entries} does not fit.", remedy=f"Give 1 … {everything} visual entries.")
    return str(Budget(Fraction(entries, everything)))


def resolve(cls: type[Method], budget: Budget, layout: Layout, parameters: dict[str, Any], weights: str = "") -> dict[str, Any]:
    """Every parameter of the method with its value: what is given, else what the budget asks for, else the default. Some follow from what
    was measured of the ``weights``."""
    if layout.paradigm not in cls.paradigms:
        raise BadBudget(f"{cls.name} does not run on {layout.paradigm} models.", remedy=f"It runs on: {', '.join(cls.paradigms)}.")
    check_numbers(cls.name, parameters)
    method = calibrated(cls, {**calibrated(cls, parameters, weights).fit(budget.ratio, layout), **parameters}, weights)
    method.resolve(layout)
    resolved = method.parameters()
    if wrong := plugins.unusable(resolved):
        raise BadParameter(f"{cls.name}: {wrong}.", remedy=plugins.PARAMETERS)
    return resolved


def _sampling(entry: ModelEntry, table: str | SamplingTable) -> Sampling:
    if isinstance(table, SamplingTable):
        return replace(entry.presets["paper"], **table.model_dump(exclude_none=True))
    if table not in entry.presets:
        raise unknown(f"sampling preset of {entry.name}", table, entry.presets)
    return entry.presets[table]


def calibrated(cls: type[Method], parameters: Mapping[str, Any], weights: str) -> Method:
    """An instance that knows the facts measured of these weights; errors are those of :meth:`Method.build`."""
    method = cls.build(parameters)
    method.calibrate(calibrations.measured(cls.name, weights))
    return method
