"""Roofline times of a model by method, budget and batch, before anything is measured."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..cache.engines import GRAPH
from ..cache.layout import Layout, Step, window_step
from ..cache.masked_layout import MaskedLayout
from ..contract.decoder import Decoder, check_fronts, window
from ..contract.method import Method
from ..core import limits
from ..core.errors import BadBudget, BadParameter, Unsupported
from ..core.limits import Rates
from ..core.spec import FULL, Budget
from ..core.threads import default_threads
from ..core.wording import shown
from ..decoders.registry import DECODERS
from ..machine import rates as measured
from ..machine.environment import environment
from ..methods.ams_kv import AMSKV
from ..methods.base import calibrations
from ..methods.base.calibrations import Calibrated
from ..methods.base.evicting import Evicting
from ..methods.base.profiles import stated_scales
from ..methods.registry import METHODS
from ..models.protocol import ModelEntry, Request
from ..models.registry import MODELS
from ..plans.efficiency import efficiency
from ..plans.expand import resolve
from ..roofline.bill import attended, bill
from ..roofline.flops_budget import image_flops
from ..roofline.operations import BYTES
from ..roofline.passes import ParameterCounts

OWN = "own"  # the budget of a method's own default sizes
DEFAULTS = {
    "next-token": (("linear",), ("1/4", "1/6", "1/8")), "next-scale": (("ams_kv", "fastvar"), (OWN,)),
    "masked": (("lazymar", "marche"), (OWN,)),
}  # fmt: skip


@dataclass(frozen=True)
class RooflineTime:
    """A method under a budget at a batch size, or the ``unsupported_reason``.

    ``seconds``, ``nbytes`` (by kind) and ``flops`` are per batch; ``parts`` divides the seconds by operation. ``speedup`` is over the full
    cache at the same batch, ``token_speedup`` and ``flops_share`` (of its FLOPs) without image decoding. ``attended``: entries that a query
    attends to on average, None for a masked model.
    """

    method: str
    budget: str
    batch: int
    unsupported_reason: str = ""
    passes: int = 0
    seconds: float = 0.0
    speedup: float = 0.0
    token_speedup: float = 0.0
    parts: dict[str, float] | None = None
    nbytes: dict[str, int] | None = None
    flops: int = 0
    flops_share: float = 0.0
    attended: float | None = None


@dataclass(frozen=True)
class PassCost:
    """A method with a decoder at a batch size, or the ``unsupported_reason``.

    ``cost``: roofline time of a pass with the decoder's window over the time of a pass of one token, mean over an image. A decoder that
    keeps fewer tokens per pass loses. ``speedup``: over the sequential full cache at ``tokens`` per pass, None without ``tokens``.
    """

    method: str
    budget: str
    batch: int
    decoder: str
    unsupported_reason: str = ""
    cost: float = 0.0
    tokens: float | None = None
    speedup: float | None = None


def device_rates(gpu: str | None, dtype: str) -> Rates:
    """Return the 16-bit rates of a GPU by name, or measure the rates of this machine (None).

    Raises Unsupported for a named GPU with float32, and Infrastructure if nothing can be measured.
    """
    if gpu is not None:
        if dtype == "float32":
            raise Unsupported("The rates of named GPUs are for 16 bit.", remedy="Use --dtype bfloat16, or --here.")
        return limits.gpu(gpu)
    device, threads = ("cuda" if torch.cuda.is_available() else "cpu"), default_threads()
    return replace(measured.rate(device, threads, dtype), device=environment(device, threads).machine_class)


def roofline_times(
    model: str, rates: Rates, *, methods: Sequence[str] = (), budgets: Sequence[str] = (), batches: Sequence[int] = (1,),
    dtype: str = "bfloat16", steps: int = 0,
) -> list[RooflineTime]:
    """Return roofline times of the full cache and each method, by budget and batch size.

    Empty ``methods`` and ``budgets`` are the defaults of the model's family; the budget ``own`` means a method's default sizes. ``steps``:
    passes of a masked model. A sixth of the layers of ams_kv is demanding. Raises BadBudget, and Unsupported for ``steps`` that the model
    does not have.
    """
    for budget in budgets:
        try:
            Budget.parse("1" if budget == OWN else budget)
        except BadBudget as error:
            near = f"Did you mean {OWN!r}? " if difflib.get_close_matches(budget, [OWN]) else ""
            remedy = f"{near}Use a fraction of the full cache such as 1/4, or {OWN} for a method's own sizes."
            raise BadBudget(error.message, remedy=remedy) from None
    entry: ModelEntry = MODELS.get(model)
    if steps and entry.paradigm != "masked":
        raise Unsupported(f"{steps} steps: {entry.name} is a {entry.paradigm} model, whose passes follow from its tokens.",
                          remedy="Leave the steps out, or name a masked model, such as mar-l.")
    counts, rows = operation_counts(entry), list[RooflineTime]()
    full = full_tokens = full_flops = 0.0
    for layout, name, budget, method in _candidates(entry, methods, budgets, batches, dtype, steps):
        if isinstance(method, str):
            rows.append(RooflineTime(name, budget, layout.batch, method))
            continue
        total = bill(method, layout, counts)
        of_tokens = total.without("decode")
        seconds, tokens, flops = total.roofline_time(rates), of_tokens.roofline_time(rates), of_tokens.flops
        full, full_tokens, full_flops = (seconds, tokens, flops) if name == FULL else (full, full_tokens, full_flops)
        method.resolve(layout)
        rows.append(RooflineTime(
            name, budget, layout.batch, "", total.passes, seconds, full / seconds, full_tokens / tokens,
            {part: total.only(part).roofline_time(rates) for part in total.parts}, {kind: total.moved(kind) for kind in BYTES}, total.flops,
            flops / full_flops, None if isinstance(layout, MaskedLayout) else attended(method, layout)))
    return rows


@dataclass(frozen=True)
class LikelyTime:
    """Likely seconds of an image, from ``least`` to ``most``, and the ``basis`` that was measured."""

    batch: int
    least: float
    most: float
    times: tuple[float, float]
    basis: str


def likely_times(model: str, rows: Sequence[RooflineTime]) -> list[LikelyTime]:
    """Return the likely time of an image by batch, from the efficiency measured of the family."""
    paradigm, likely = MODELS.get(model).paradigm, []
    for row in (row for row in rows if row.method == FULL and not row.unsupported_reason):
        measured_times = efficiency(paradigm, "cuda", GRAPH, row.batch)
        least, _, most = measured_times.span(row.seconds / row.batch)
        likely.append(LikelyTime(row.batch, least, most, (measured_times.least, measured_times.most), measured_times.basis))
    return likely


def drafter_share(model: str) -> float | None:
    """Return a composite model's FLOPs as a fraction of the drafter's, None for other models.

    Both without image decoding.
    """
    entry: ModelEntry = MODELS.get(model)
    layout = entry.shape(entry.presets["paper"], 1)
    if layout.draft is None:
        return None
    alone = replace(layout.draft, scales=layout.scales)
    return image_flops(Method(), layout) / image_flops(Method(), alone)


def without_attention(entry: ModelEntry, rates: Rates, *, batch: int = 1, dtype: str = "bfloat16") -> float:
    """Return the roofline speedup of a generation without attention, the bound of all cache methods.

    For next-token models, without image decoding. Raises Unsupported for a model without a FLOP model.
    """
    layout = replace(entry.shape(entry.presets["paper"], batch), dtype=getattr(torch, dtype))
    total = bill(METHODS.get(FULL)(), layout, operation_counts(entry), images=False)
    return total.roofline_time(rates) / total.without("attention").roofline_time(rates)


def operation_counts(entry: ModelEntry) -> ParameterCounts:
    """Return the operations of a model. Raises Unsupported if they are not counted."""
    if (counts := entry.parameter_counts()) is None:
        raise Unsupported(f"No FLOP model for {entry.name}.", remedy="Set parameter_counts in its ModelEntry.")
    return counts


def calibration_parameter(cls: type[Method], entry: ModelEntry) -> dict[str, str]:
    """Return the parameter that names the calibration of a model or of its packaged weights, if any."""
    if not issubclass(cls, Calibrated):
        return {}
    scales, facts = stated_scales(entry.shape(entry.presets["paper"], 1)), calibrations.packaged(cls.name).get(entry.name, {})
    if not facts or facts.get("scales", []) != scales:  # published ones are of square images
        facts = calibrations.measured(cls.name, entry.identity(Request()), scales)
    return {"calibration": calibrations.remember(cls.name, facts)} if facts else {}


def known_parameters(cls: type[Method], entry: ModelEntry) -> dict[str, Any]:
    """Return a substitute for measured parameters: a calibration, or a sixth of AMS-KV's layers."""
    if issubclass(cls, AMSKV):
        return {"demanding": tuple(range(entry.shape(entry.presets["paper"], 1).layers // 6))}
    return calibration_parameter(cls, entry)


def _candidates(
    entry: ModelEntry, methods: Sequence[str], budgets: Sequence[str], batches: Sequence[int], dtype: str, steps: int = 0,
) -> Iterator[tuple[Layout, str, str, Method | str]]:
    """Yield layout, name, budget, and a method or why it is impossible; the full cache first."""
    own_methods, own_budgets = DEFAULTS[entry.paradigm]
    paper = entry.presets["paper"]
    for batch in batches:
        layout = replace(entry.shape(replace(paper, steps=steps) if steps else paper, batch), dtype=getattr(torch, dtype))
        yield layout, FULL, "1", METHODS.get(FULL)()
        for name in dict.fromkeys(methods or own_methods):
            for budget in (budgets or own_budgets) if name != FULL and not layout.drafter else ():
                try:
                    yield layout, name, budget, _built(METHODS.get(name), budget, layout, entry)
                except (BadBudget, BadParameter) as error:
                    yield layout, name, budget, str(error)


def _built(cls: type[Method], budget: str, layout: Layout, entry: ModelEntry) -> Method:
    """Return a method at a budget. Raises BadBudget and BadParameter if it cannot run."""
    if layout.paradigm not in cls.paradigms:
        raise BadBudget(f"{cls.name} does not run on {layout.paradigm} models.", remedy=f"It runs on: {', '.join(cls.paradigms)}.")
    if budget == OWN and issubclass(cls, Evicting) and cls.own_budget is Method.own_budget:
        raise BadBudget(f"{cls.name} has no sizes of its own.", remedy="Use a fraction of the full cache, such as 1/4.")
    parameters = known_parameters(cls, entry)
    method = cls.build(parameters if budget == OWN else resolve(cls, Budget.parse(budget), layout, parameters))
    method.resolve(layout)
    return method


def why_not(cls: type[Method], entry: ModelEntry) -> str:
    """Return why a method cannot run on a model at a half or a quarter of the full cache or at its own size; empty if it can."""
    layout, reasons = entry.shape(entry.presets["paper"], 1), list[str]()
    for budget in ("1/2", "1/4", OWN):
        try:
            _built(cls, budget, layout, entry)
        except (BadBudget, BadParameter) as error:
            reasons.append(str(error))
        else:
            return ""
    return reasons[0]


# -- decoders -----------------------------------------------------------------------------------------------------------
def parse_decoder(text: str) -> Decoder:
    """Parse ``name=window`` or ``name=window,look_ahead``. Raises UnknownName and BadParameter."""
    name, _, settings = text.partition("=")
    width, *parameters = settings.split(",")
    if not (width.isascii() and width.isdigit() and len(width) <= 9) or parameters not in ([], ["look_ahead"]):
        raise BadParameter(f"{shown(text)} is not a decoder with a window.",
                           remedy="Write its name and the tokens per pass: jacobi=16, or jacobi=16,look_ahead.")
    decoder: Decoder = DECODERS.get(name).build({"window": int(width), **dict.fromkeys(parameters, True)})
    decoder.check()
    return decoder


def pass_costs(
    model: str, rates: Rates, decoder: Decoder, *, methods: Sequence[str] = (), budgets: Sequence[str] = (), batches: Sequence[int] = (1,),
    dtype: str = "bfloat16", tokens: float | None = None,
) -> list[PassCost]:
    """Return the cost of a pass of the decoder for the full cache and each method, without image decoding.

    ``tokens``: tokens that the decoder keeps per pass, which must be measured unless its passes are scheduled. Raises Unsupported for a
    model without a FLOP model, or that is not a next-token model.
    """
    entry: ModelEntry = MODELS.get(model)
    if entry.paradigm != "next-token":
        raise Unsupported(f"{model}: a decoder is for next-token models.", remedy="Leave --decoder out.")
    counts, rows, full = operation_counts(entry), list[PassCost](), 0.0
    title = f"{decoder.name} {decoder.parameters()['window']}{' ahead' if decoder.ahead else ''}"
    for layout, name, budget, method in _candidates(entry, methods, budgets, batches, dtype):
        row = PassCost(name, budget, layout.batch, title, tokens=tokens)
        if isinstance(method, str):
            rows.append(replace(row, unsupported_reason=method))
            continue
        sequential = bill(method, layout, counts, images=False).roofline_time(rates)
        full = sequential if name == FULL else full
        try:
            fronts = check_fronts(decoder, method, layout)
        except (BadParameter, Unsupported) as error:
            rows.append(replace(row, unsupported_reason=str(error)))
            continue
        steps = [front.step for front in fronts] or _windows(method, layout, decoder)
        row = replace(row, tokens=layout.visual / len(fronts) if fronts else tokens)
        if max(step.count for step in steps) <= 1 < decoder.reach:
            rows.append(replace(row, unsupported_reason=f"{name} states no horizon, so it runs one token per pass"))
        else:
            seconds = bill(method, layout, counts, images=False, steps=steps).roofline_time(rates)
            cost = seconds / len(steps) / (sequential / layout.visual)
            rows.append(replace(row, cost=cost, speedup=None if row.tokens is None else full / sequential * row.tokens / cost))
    return rows


def _windows(method: Method, layout: Layout, decoder: Decoder) -> list[Step]:
    """Return every pass that a decoder may run, one for each number of known tokens."""
    method.resolve(layout)
    method.layout, method.banks = layout, []
    drawn = (window(method, decoder, position) for position in range(1, layout.visual))
    return [Step(0, layout.visual), *(window_step(layout, at, count, count - most) for at, (count, most) in enumerate(drawn))]
