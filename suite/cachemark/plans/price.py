"""Estimated cost of a plan before it runs: time, disk, device memory, and missing files."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from ..cache.codecs import codec
from ..cache.layout import Layout
from ..cache.masked_layout import MaskedLayout
from ..contract.method import Method
from ..core import seeds
from ..core.errors import CachemarkError, Infrastructure
from ..core.files import is_readable
from ..core.limits import Rates
from ..core.spec import FULL, MAX_BATCH, QUALITY_PASS
from ..methods.registry import METHODS
from ..metrics.registry import image_metrics
from ..models import hub
from ..models.publications import publications
from ..plugins import loading as plugins
from ..roofline.bill import bill
from ..roofline.memory import allocated, weight_bytes
from ..roofline.operations import Bill
from ..roofline.passes import ParameterCounts
from .decoding import BATCHES
from .efficiency import Efficiency, efficiency
from .planned import Planned, Prepared
from .schema import Plan, PlanTable

STARTUP = 30.0  # seconds for a process to import torch and load a model
LAUNCHES = 16  # kernels of one block in one pass
# On a CPU (measured with tiny-llamagen on one thread of an AMD EPYC): seconds per call, and the calls of a block of a diffusion head,
# which has no attention, relative to another block.
CALL, HEAD = 12e-6, 0.25
BLOCK = 12  # weights of a plain transformer block, in squares of its width: 4 around attention, 8 in the MLP
FORCED = 1 + max(cls.generations for cls in image_metrics().values())  # generations per image of fidelity
PICTURE_BYTES = 60_000  # pictures of a case
OVERHEAD = 20_000  # bytes of a case in the database
Table = TypeVar("Table", bound=PlanTable)


class Price(NamedTuple):
    """The expected cost of one case. ``stored``: its seconds were measured before, else estimated.

    ``memory``: bytes of weights and full cache. ``bound``: its roofline time; ``least`` and ``most``: the likely range of its seconds."""

    seconds: float
    stored: bool
    disk: int
    memory: int
    bound: float
    least: float
    most: float


@dataclass(frozen=True)
class ModelPrice:
    """The cost of a model's cases: device hours, bytes of disk, and peak device memory in bytes.

    ``from_stored``: number of cases whose cost is their stored duration. ``bound``: hours at the roofline; ``least`` and ``most``: the
    likely range of hours; ``basis``: the measurements behind it.
    """

    model: str
    cases: int
    hours: float
    from_stored: int
    disk: int
    memory: int
    bound: float
    least: float
    most: float
    basis: str


def without_missing(plan: Plan) -> tuple[Plan, list[str]]:
    """Return the plan without missing files, so that it can be priced, and the missing files.

    Missing weights become random; missing prompts and metric files are removed."""
    missing: dict[str, None] = {}

    def present(path: str) -> str:
        if path and not (is_readable(path) or os.path.isdir(path) or (hub.is_hub(path) and hub.snapshot(hub.HubName.parse(path)))):
            missing[path] = None
            return ""
        return path

    def with_present(table: Table, *keys: str) -> Table:
        return table.model_copy(update={key: present(getattr(table, key)) for key in keys})

    cells = [with_present(block, "weights", "decoder_weights") for block in plan.cells]
    quality = plan.quality and with_present(plan.quality, "extractor_weights", "reference")
    absent = {table.name for table in plan.metric_tables for path in table.options.values() if not present(path)}
    metrics = [table for table in plan.metric_tables if table.name not in absent]
    prompts = Path(plan.fidelity.prompts)
    is_file = prompts.suffix or len(prompts.parts) > 1  # names of lists are checked by the expansion
    fidelity = with_present(plan.fidelity, "prompts") if is_file else plan.fidelity
    return plan.model_copy(update={"cells": cells, "quality": quality, "metrics": metrics, "fidelity": fidelity}), list(missing)


def fetch_commands(plan: Plan, missing: Sequence[str]) -> dict[str, str]:
    """Return the command that gets each of the missing files which a published model needs."""
    commands = dict[str, str]()
    for block in plan.cells:
        for key in ("weights", "decoder_weights"):
            path = getattr(block, key)
            published = any(file.model == block.model and Path(path) == file.located("weights") for file in publications())
            if path in missing and published:
                commands.setdefault(path, f"cachemark weights fetch {block.model}")
            elif path in missing and hub.is_hub(path):
                commands.setdefault(path, hub.fetch_command(block.model, key, path))
    return commands


def by_model(
    plan: Plan, todo: Sequence[Prepared], stored: Callable[[str], float | None] = lambda key: None, missing: Sequence[str] = (),
) -> list[ModelPrice]:
    """Price the cases of a plan, which have the rates of the device.

    ``stored(key)`` returns the seconds of a case on this class of machine, or None. Cases with ``missing`` files have random weights; they
    are priced like real ones, including image metrics."""
    absent, rows = {c.model for c in plan.cells if {c.weights, c.decoder_weights} & set(missing)}, []
    for model in dict.fromkeys(p.case.model for p in todo):
        cases = [p for p in todo if p.case.model == model]
        prices = [price(p, stored(p.case.key), judging(plan, p) if model in absent else 0.0) for p in cases]
        processes = {p.case.key if plan.trial == "case" or p.runs_plugin else p.request for p in cases}
        startup = STARTUP * len(processes)
        seconds, bound, least, most = ((sum(getattr(each, name) for each in prices) + startup) / 3600
                                       for name in ("seconds", "bound", "least", "most"))
        basis = "; ".join(dict.fromkeys(efficiency_of(p).basis for p, each in zip(cases, prices, strict=True) if not each.stored))
        rows.append(ModelPrice(model, len(cases), seconds, sum(each.stored for each in prices), sum(each.disk for each in prices),
                               max(each.memory for each in prices), bound, least, most, basis))
    return rows


def judging(plan: Plan, planned: Planned) -> float:
    """Return the batches for fidelity and quality of a case with missing weights."""
    case = planned.case
    if MAX_BATCH in case.evaluation:
        return 0.0
    once = FORCED * math.ceil(case.samples / case.batch) * (3 if case.role == "baseline" else 1)
    return once + ((plan.quality.samples or seeds.SIZES[plan.quality.seeds]) / case.batch if plan.quality else 0)


def price(planned: Prepared, stored: float | None, more: float = 0.0) -> Price:
    """Return the price of a case with ``more`` additional batches.

    Raises Infrastructure without ``stored`` seconds and rates."""
    case, layout, seconds = planned.case, _layout(planned), stored
    bound, least, typical, most = (0.0,) * 4 if stored is None else (stored,) * 4
    if seconds is None and not planned.unsupported_reason:
        if planned.rates is None:
            raise Infrastructure(f"The rates of {case.device_class} cannot be measured, so costs cannot be estimated.",
                                 remedy="See `cachemark doctor`.")
        startup = STARTUP if MAX_BATCH in case.evaluation else 0.0  # each attempt of a search is a process
        times, costs = generations(planned) + more, paper(planned)
        one = roofline_time(planned, planned.rates, costs)
        spans = (one, *efficiency_of(planned).span(one, launches(planned, costs.passes)))
        bound, least, typical, most = (startup + times * each for each in spans)
    memory = weight_bytes(layout, _counts(planned, layout)) + allocated(METHODS.get(FULL)(), layout)
    disk = OVERHEAD + PICTURE_BYTES + 8 * case.samples * layout.visual
    return Price(typical, stored is not None, disk, memory, bound, least, most)


def generations(planned: Planned) -> float:
    """Return the number of generations of a case, in batches of the timed size."""
    return sum(times * batch for batch, times in batches(planned)) / planned.case.batch


def batches(planned: Planned, forced: float = FORCED - 1) -> list[tuple[int, float]]:
    """Return batch sizes and their counts: warm-up and timed ones, then fidelity and quality.

    A generation along the full cache's tokens counts as ``forced`` of a free one. For a search for the largest batch, the batches of one
    attempt."""
    case = planned.case
    searched = MAX_BATCH in case.evaluation
    beside = 2 if case.role == "candidate" and not searched else 1  # the full cache runs in turns with a candidate
    repeats = max(case.repeats, min(BATCHES, case.samples // case.batch)) if case.decoder else case.repeats
    counts = [(case.batch, float(beside * (case.warmup + repeats)))] if case.role in ("candidate", "baseline") else []
    if not (case.weights.startswith("random:") or searched):
        compared_batch = min(int(case.evaluation.get("batch", case.batch)), case.samples)
        counts.append((compared_batch, (case.compared + forced * case.forced) / compared_batch))
    wide = case.evaluation.get(QUALITY_PASS, {})
    if "missing" not in wide and wide:
        counts.append((wide["batch"], wide["samples"] / wide["batch"]))
    return counts


def roofline_time(planned: Planned, rates: Rates, costs: Bill) -> float:
    """Return the minimum seconds of one batch of these costs: on a CPU also for the calls."""
    calls = launches(planned, costs.passes) * CALL if planned.case.device_class == "cpu" else 0.0
    return costs.roofline_time(rates) + calls


def launches(planned: Planned, passes: int) -> float:
    """Return the estimated number of kernels, or calls on a CPU, of one batch in so many ``passes``."""
    layout, blocks = _layout(planned), float(_layout(planned).layers)
    if isinstance(layout, MaskedLayout):
        blocks += layout.encoder + layout.diffusion * layout.head * (HEAD if planned.case.device_class == "cpu" else 1.0)
    return passes * blocks * LAUNCHES


def efficiency_of(planned: Planned) -> Efficiency:
    """Return the measured efficiency of the case's family, engine and batch."""
    case = planned.case
    return efficiency(planned.entry.paradigm, case.device_class, case.engine, case.batch)


def paper(planned: Planned) -> Bill:
    """Return the bill of a case: its FLOPs and bytes."""
    case, layout = planned.case, _layout(planned)
    try:
        method: Method = METHODS.get(case.method).build(case.parameters)
    except CachemarkError:  # it does not run here at all, so its cost is unknown
        method = Method()
    with plugins.answering(type(method)):
        return bill(method, layout, _counts(planned, layout), codec=codec(case.codec))


def _layout(planned: Planned) -> Layout:
    """Return the shape of a batch in the case's dtype."""
    case = planned.case
    return replace(planned.entry.shape(case.sampling, case.batch), dtype=getattr(torch, case.dtype))


def _counts(planned: Planned, layout: Layout) -> ParameterCounts:
    """Return the operations of the case's model; if they are not counted, of plain transformer blocks."""
    plain = ParameterCounts(block=BLOCK * (layout.heads * layout.head_dim) ** 2, between=0, image=lambda: None)
    return planned.entry.parameter_counts() or plain
