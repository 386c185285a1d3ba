"""Expansion of a plan into cases, each with everything needed to run it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import torch

from ..cache.codecs import NATIVE, Codec, codec
from ..cache.engines import AUTO, GRAPH, refused
from ..cache.kernels.table import refusal, usual
from ..cache.layout import Layout
from ..contract.method import Method
from ..core import seeds
from ..core.errors import BadBudget, BadParameter, BadPlan, CachemarkError, unknown
from ..core.outside_metrics import KEY
from ..core.spec import FLOPS, FORCED_SAMPLES, FULL, MAX_BATCH, QUALITY_PASS, REFERENCE_SAMPLES, SAMPLING_OF, Budget, Case, Sampling
from ..core.units import set_name
from ..methods.base import calibrations
from ..methods.base.profiles import stated_scales
from ..methods.registry import METHODS
from ..metrics.compute import presets
from ..models.protocol import ModelEntry, Request
from ..models.registry import MODELS
from ..plugins import loading as plugins
from ..roofline.bill import idle_reason
from .decoding import check_model, check_numbers, decoder_class, refused_codec, refused_decoder, resolved_decoder
from .metrics import options_of, stated
from .planned import Planned
from .schema import Cells, MethodTable, Plan

FIRST, SEEDS = 16, "s10k"  # first batch size of a search for the largest one, and the subset of its seeds


def expand(plan: Plan, device: str = "cpu") -> list[Planned]:
    """Return every case of a plan.

    For each block the full cache and two reference rows, then methods × budgets × codecs × decoders."""
    count = sum(3 + len(c.methods) * len(c.budgets) * len(c.codecs) * len(c.decoders) + len(c.decoders) - 1 for c in plan.cells)
    if count > plan.max_cases:
        raise BadPlan(f"{plan.place('cells')}: the plan would mean up to {count} cases, and at most {plan.max_cases} are measured.",
                      remedy=f"Remove values from its axes, or raise the bound above all tables: max_cases = {count}")
    entries = [MODELS.get(cells.model) for cells in plan.cells if cells.model in MODELS]
    if plan.fidelity.prompts and entries and all(entry.asking is None for entry in entries):
        readers = [name for name in MODELS if MODELS.get(name).asking is not None]
        raise BadPlan(f"{plan.place('fidelity', 'prompts')}: no model of this plan is given prompts.",
                      remedy=f"Take them out, or name one of: {', '.join(readers)}.")
    cases: dict[str, Planned] = {}
    labels: dict[tuple[str, str, str], str] = {}
    with plugins.answering():
        for number, cells in enumerate(plan.cells):
            for planned in _with_engine(plan, cells, number, device):
                case = planned.case
                if labels.setdefault((case.model, case.cell, case.label), case.key) != case.key:
                    raise BadPlan(f"{plan.place('cells', number, 'methods')}: two cases are called {case.label!r}.",
                                  remedy="Add a different variant to each table of that method or decoder.")
                if case.key not in cases:
                    needs = plugins.needs(METHODS.get(case.method), MODELS.get(case.model), decoder_class(case), codec(case.codec).encode)
                    cases[case.key] = replace(planned, priority=cells.priority, needs=needs, idle_reason=_idle_reason(planned))
    return list(cases.values())


@contextmanager
def _at(plan: Plan, *keys: str | int, place: str = "") -> Iterator[None]:
    """Add the file and line of these keys, or ``place``, to errors inside the block."""
    try:
        yield
    except CachemarkError as error:
        raise type(error)(f"{place or plan.place(*keys)}: {error.message}", remedy=error.remedy) from error


def _with_engine(plan: Plan, cells: Cells, number: int, device: str) -> Iterator[Planned]:
    """Yield the cases of a block, with ``auto`` resolved to graph, or to eager if that is unsupported.

    Candidates that cannot be captured run eagerly with an eager full cache, because a speedup across engines would compare the engines."""
    if cells.engine != AUTO:
        yield from _block(plan, cells, number, device)
        return
    eager = cells.model_copy(update={"engine": "eager"})
    if reason := refused(GRAPH, device):
        yield from (replace(planned, engine_reason=reason) for planned in _block(plan, eager, number, device))
        return
    uncaptured: dict[str, str] = {}
    for planned in _block(plan, cells.model_copy(update={"engine": GRAPH}), number, device):
        case = planned.case
        candidate = case.role == "candidate" and case.parameters
        if reason := _not_capturable(METHODS.get(case.method), dict(case.parameters)) if candidate else "":
            uncaptured[case.label] = reason
        else:
            yield planned
    for planned in _block(plan, eager, number, device) if uncaptured else ():
        if planned.case.role != "candidate" or planned.case.label in uncaptured:
            yield replace(planned, engine_reason=uncaptured.get(planned.case.label, f"compared with {', '.join(uncaptured)}"))


def _block(plan: Plan, cells: Cells, number: int, device: str) -> Iterator[Planned]:
    with _at(plan, "cells", number, "weights"):
        request = _request(plan, cells, device)
    with _at(plan, "cells", number, "model"):
        named_entry: ModelEntry = MODELS.get(cells.model)
    with _at(plan, "cells", number, "grid"):
        named_entry = named_entry.of_grid(request.grid or named_entry.grid)
    with _at(plan, "fidelity", "prompts"):
        entry = named_entry.for_request(request)
    with _at(plan, "cells", number, "sampling"):
        sampling = _sampling(cells, entry)
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
        layout = replace(entry.shape(sampling, batch), dtype=request.dtype, device=device)
        absent = refused(cells.engine, device) or refusal(cells.kernel, usual(layout, captured=cells.engine == GRAPH))
    barred = "the reference engine runs the full cache in the native codec only" if cells.engine == "reference" else absent
    with _at(plan, "cells", number, "budgets"):
        budgets = list(dict.fromkeys(str(_budget(budget, layout, identity)) for budget in cells.budgets))
    with _at(plan, "cells", number, "methods"):
        _check_kinds(cells, layout)
    with _at(plan, "quality"):
        quality = {} if searched or "random:" in identity else _quality_pass(plan, cells, entry)
    full = Case(
        cells.model, identity, entry.grid, entry.conditions, sampling, FULL,
        batch=batch, seeds=subset.name, samples=len(subset), dtype=cells.dtype, engine=cells.engine,
        kernel=cells.kernel, device_class=device, warmup=plan.timing.warmup, repeats=plan.timing.repeats, role="baseline",
        evaluation={MAX_BATCH: {"limit": 0}} if searched else _likeness(plan, len(subset), entry, request, quality),
    )
    with_quality = replace(full, evaluation={**full.evaluation, QUALITY_PASS: quality}) if quality else full
    yield Planned(with_quality, request, absent)
    if not searched and not full.weights.startswith("random:"):
        for role in ("other_seeds", "other_batch")[: min(2, full.samples)]:  # one image can only be generated in a batch of one
            yield Planned(replace(full, role=role), request, absent)
    with _at(plan, "cells", number, "decoders"):
        decoding = [resolved_decoder(each) for each in cells.decoders]
    for decoder, name in product(decoding, codecs):
        base, wrong = replace(with_quality, codec=name, role="candidate", decoder=decoder), barred or refused_codec(codec(name), layout)
        if name != full.codec or decoder:
            yield Planned(base, request, wrong or refused_decoder(base, METHODS.get(FULL), {}, layout))
        for method in cells.methods:
            with _at(plan, place=plan.place_of(number, method)):
                candidates = list(_candidates(plan, base, method, budgets, layout))
            yield from (Planned(case, request, wrong or reason) for case, reason in candidates)


def _sampling(cells: Cells, entry: ModelEntry) -> Sampling:
    """Return the sampling of a block.

    Raises UnknownName for a preset, and BadPlan for a setting without effect on the model.
    """
    if isinstance(cells.sampling, str):
        if cells.sampling not in entry.presets:
            raise unknown(f"sampling preset of {entry.name}", cells.sampling, entry.presets)
        return entry.presets[cells.sampling]
    paper, changes, read = entry.presets["paper"], cells.sampling.model_dump(exclude_none=True), SAMPLING_OF[entry.paradigm]
    if idle := [name for name, value in changes.items() if value != getattr(paper, name) and name not in read]:
        raise BadPlan(f"sampling.{idle[0]} has no effect on {entry.name}, a {entry.paradigm} model.", remedy=f"Use: {', '.join(read)}.")
    return replace(paper, **changes)


def _request(plan: Plan, cells: Cells, device: str) -> Request:
    files = (plan.quality.extractor_weights, plan.quality.reference) if plan.quality and cells.quality else ("", "")
    return Request.of(
        cells.model, cells.weights, cells.decoder_weights, device=device, dtype=getattr(torch, cells.dtype), seed=cells.random_seed,
        engine=cells.engine, extractor=files[0], reference=files[1], prompts=plan.fidelity.prompts,
        metrics=options_of(plan.metric_tables), grid=(cells.grid[0], cells.grid[1]) if cells.grid else ())


def _likeness(plan: Plan, samples: int, entry: ModelEntry, request: Request, quality: Mapping[str, Any]) -> dict[str, Any]:
    """Return non-default settings of the comparison with the full cache, and the requested metrics."""
    fidelity = plan.fidelity
    with _at(plan, "metrics"):
        image_set = set_name(quality["preset"], quality["samples"]) if quality and "missing" not in quality else ""
        metrics = stated(plan.metric_tables, entry, request, image_set if plan.quality else None)
    fewer = {REFERENCE_SAMPLES: fidelity.reference_samples, FORCED_SAMPLES: fidelity.forced_samples}
    return {**({"batch": fidelity.batch} if fidelity.batch else {}), **({KEY: metrics} if metrics else {}),
            **{name: few for name, few in fewer.items() if 0 < few < samples}}


def _quality_pass(plan: Plan, cells: Cells, entry: ModelEntry) -> dict[str, Any]:
    """Return the quality pass of a block as its cases store it, or an empty table."""
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
    """Return a budget: a fraction, or a named method's, for comparisons at equal bytes.

    With a codec it is the fraction of the native full cache's bytes."""
    if isinstance(budget, str) and budget in METHODS:
        budget = MethodTable(name=budget)
    if not isinstance(budget, MethodTable):
        return _parsed(budget, layout)
    cls: type[Method] = METHODS.get(budget.name)
    parameters = dict(budget.model_extra or {})
    stored = codec(str(parameters.pop("codec", NATIVE.name)))
    if stored is not NATIVE and (layout.paradigm == "masked" or cls.budget_kind == FLOPS):
        raise BadBudget(f"A budget of {budget.name} is a share of the FLOPs, and a codec saves none.", remedy="Use a share, such as 1/2.")
    smaller = Fraction(1) if stored is NATIVE else Fraction(*(_row_bytes(each, layout) for each in (stored, NATIVE)))
    if budget.name == FULL and stored is not NATIVE and not parameters:
        return Budget(smaller)
    if cls.own_budget is Method.own_budget or layout.paradigm not in cls.paradigms:
        raise _not_sized(cls, layout)
    with plugins.answering(cls):
        return Budget(calibrated(cls, parameters, weights, layout).own_budget(layout) * smaller)


def _check_kinds(cells: Cells, layout: Layout) -> None:
    """Raise BadPlan if the methods and named budgets of a block have budgets of several kinds."""
    named = [*cells.methods, *(budget for budget in cells.budgets if isinstance(budget, MethodTable) or budget in METHODS)]
    kinds: dict[str, str] = {}
    for each in named:
        name = each.name if isinstance(each, MethodTable) else str(each)
        if name != FULL and name in METHODS and layout.paradigm in (cls := METHODS.get(name)).paradigms:
            kinds.setdefault(cls.budget_kind, name)
    if len(kinds) > 1:
        ours, other = kinds.items()
        raise BadPlan(f"A budget of {ours[1]} is a fraction of the {ours[0]}, and one of {other[1]} of the {other[0]}.",
                      remedy="Put them into two blocks: budgets of two kinds cannot be compared.")


def _parsed(budget: str | float, layout: Layout) -> Budget:
    """Parse a fraction. Raises BadBudget with a similar method name, if any."""
    try:
        return Budget.parse(budget)
    except BadBudget as error:
        here = [name for name, cls in _sized().items() if layout.paradigm in cls.paradigms]
        if near := difflib.get_close_matches(str(budget), here, n=1):
            raise BadBudget(error.message, remedy=f"Did you mean {near[0]!r}? {error.remedy}") from None
        raise BadBudget(error.message, remedy=f"{error.remedy} The name of a method means its own size.") from None


def _sized() -> dict[str, type[Method]]:
    """Return the methods with sizes of their own, whose names are valid budgets."""
    return {name: cls for name in METHODS if (cls := METHODS.get(name)).own_budget is not Method.own_budget}


def _not_sized(cls: type[Method], layout: Layout) -> BadBudget:
    """Return the error for a method name as a budget if the method has no sizes on this paradigm."""
    sized, problem = _sized(), "has no sizes of its own"
    if cls.name in sized:
        problem = f"has sizes on {' and '.join(cls.paradigms)} models, and this one is a {layout.paradigm} model"
    here = [name for name, method in sized.items() if layout.paradigm in method.paradigms and method.budget_kind == cls.budget_kind]
    named = f"the name of a method that has sizes of its own: {', '.join(here)}"
    if not here:
        kinds = sorted({kind for method in sized.values() for kind in method.paradigms})
        named = f"on {' and '.join(kinds)} models the name of a method that has sizes of its own"
    return BadBudget(f"{cls.name} needs a budget here: it {problem}.", remedy=f"Use a share of the full cache such as 1/4, or {named}.")


def _row_bytes(stored: Codec, layout: Layout) -> int:
    """Return the stored bytes of one row and head of a layer."""
    pair, shared = (stored.pair_bytes(layout.head_dim, layout.dtype),
                    stored.shared_bytes(layout.head_dim, layout.dtype, layout.longest_condition + layout.visual))
    return layout.stored * pair + shared


def _candidates(plan: Plan, base: Case, table: str | MethodTable, budgets: list[str], layout: Layout) -> Iterator[tuple[Case, str]]:
    """Yield the cases of a method, one per budget, with the reason if it cannot meet the budget."""
    table = MethodTable(name=table) if isinstance(table, str) else table
    name, parameters = table.name, dict(table.model_extra or {})
    _check_single(name)
    cls: type[Method] = METHODS.get(name)
    if name == FULL:
        cls.build(parameters)
        for setting in (*parameters, *(("variant",) if table.variant else ())):
            raise BadParameter(f"{setting} of full has no effect: every block has one full cache.", remedy="Leave it out.")
        return
    if layout.paradigm in cls.paradigms:  # else each budget gives the reason below
        budgets = _own_size(cls, parameters, layout, base.weights) or budgets
    for budget in budgets:
        try:
            with plugins.answering(cls, decoder_class(base)):
                resolved = resolve(cls, Budget.parse(budget), layout, parameters, base.weights)
                reason = _not_capturable(cls, resolved) if base.engine == GRAPH else ""
                reason = reason or refused_decoder(base, cls, resolved, layout)
        except BadBudget as error:
            if plan.on_unsupported == "error":
                raise
            resolved, reason = {}, str(error)
        yield replace(base, method=name, variant=table.variant, parameters=resolved, budget=budget,
                      budget_kind=cls.budget_kind), reason


def _check_single(name: str) -> None:
    """Raise BadPlan, with the reason, if ``name`` joins the names of several methods by a plus sign."""
    names = [part.strip() for part in name.split("+")]
    if len(names) > 1 and all(part in METHODS for part in names):
        raise BadPlan(f"{name!r} names {len(names)} methods, but a case has one method and its budget.",
                      remedy='Store less with codecs = ["int8"], or override scales in a subclass of a K/V method.')


def _own_size(cls: type[Method], parameters: dict[str, Any], layout: Layout, weights: str) -> list[str]:
    """Return the budget that these parameters imply, in a list, or an empty list."""
    if type(entries := parameters.get("B")) is int:
        total = layout.cacheable if layout.scales else layout.visual
        if not 0 < entries <= total:
            raise BadParameter(f"{cls.name}: B = {entries} does not fit.", remedy=f"Use 1 … {total} visual entries.")
        return [str(Budget(Fraction(entries, total)))]
    return [str(Budget(calibrated(cls, parameters, weights, layout).own_budget(layout)))] if set(cls.sizes) & set(parameters) else []


def _idle_reason(planned: Planned) -> str:
    """Return why a candidate's method changes nothing on its model, or an empty text."""
    case = planned.case
    if planned.unsupported_reason or case.role != "candidate":
        return ""
    cls = METHODS.get(case.method)
    with plugins.answering(cls):
        return idle_reason(cls.build(case.parameters), planned.entry.shape(case.sampling, case.batch))


def _not_capturable(cls: type[Method], parameters: dict[str, Any]) -> str:
    """Return why the graph engine cannot capture a method with these parameters, or an empty text."""
    return "" if cls.build(parameters).capturable else f"{cls.name} decides on the host while images are made, which a captured pass cannot"


def resolve(cls: type[Method], budget: Budget, layout: Layout, parameters: dict[str, Any], weights: str = "") -> dict[str, Any]:
    """Return all parameters of a method: given ones, else those that the budget implies, else defaults.

    Some depend on a calibration of the ``weights``. Raises BadBudget and BadParameter."""
    check_model(cls, layout)
    check_numbers(cls.name, parameters)
    fitted = calibrated(cls, parameters, weights, layout).fit(budget.ratio, layout)
    method = calibrated(cls, {**fitted, **parameters}, weights, layout)
    method.resolve(layout)
    resolved = method.parameters()
    if wrong := plugins.unusable(resolved):
        raise BadParameter(f"{cls.name}: {wrong}.", remedy=plugins.PARAMETERS)
    return resolved


def calibrated(cls: type[Method], parameters: Mapping[str, Any], weights: str, layout: Layout) -> Method:
    """Return an instance calibrated for these weights and token maps. Raises like :meth:`Method.build`."""
    method = cls.build(parameters)
    method.calibrate(calibrations.measured(cls.name, weights, stated_scales(layout)))
    return method
