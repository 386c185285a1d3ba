"""Estimated cost of a plan before it runs: time, disk, device memory, and missing files."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from ..cache.codec import codec
from ..cache.layout import Layout
from ..cache.masked_layout import MaskedLayout
from ..contract.method import Method
from ..core import seeds
from ..core.errors import CachemarkError
from ..core.files import is_readable
from ..core.limits import Rates
from ..core.spec import MAX_BATCH, QUALITY_PASS
from ..methods.registry import METHODS
from ..metrics.registry import image_metrics
from ..models.costs import case_bill
from ..plugins import loading as plugins
from ..roofline.bill import ParameterCounts
from ..roofline.bill import bill as bill_of
from ..roofline.operations import Bill
from .decoding import BATCHES
from .expand import Planned
from .schema import Plan

MARGIN = 1.5  # expected seconds of a case as a multiple of its roofline time
STARTUP = 30.0  # seconds for a process to import torch and load a model
LAUNCHES, LAUNCH = 16, 4e-6  # kernels of one block in one pass, and seconds for the host to launch one on a GPU
# On a CPU (measured with tiny-llamagen on one thread of an AMD EPYC): seconds per call, and the calls of a block of a diffusion head,
# which has no attention, as a share of those of another block.
CALL, HEAD = 12e-6, 0.25
BLOCK = 12  # weights of a plain transformer block, in squares of its width: 4 around attention, 8 in the MLP
FORCED = 1 + max(cls.price for cls in image_metrics().values())  # generations per image of fidelity
PICTURE_BYTES = 60_000  # pictures of a case
OVERHEAD = 20_000  # bytes of a case in the database


class Price(NamedTuple):
    """The expected cost of one case. ``stored``: its seconds were measured before, else estimated."""

    seconds: float
    stored: bool
    disk: int
    memory: int


@dataclass(frozen=True)
class PlanPrice:
    """Prices by case key, and startup seconds of the processes by model."""

    prices: dict[str, Price]
    startup: dict[str, float]

    def hours(self, planned: Sequence[Planned], model: str) -> float:
        """Return the device hours of a model's cases."""
        return (sum(self.prices[p.case.key].seconds for p in planned if p.case.model == model) + self.startup.get(model, 0.0)) / 3600


def without_missing(plan: Plan) -> tuple[Plan, list[str]]:
    """Return the plan without missing files, so that it can be priced, and the missing files.

    Missing weights become random; missing prompts and metric files are removed."""
    missing: dict[str, None] = {}

    def existing(path: str, *, here: Callable[[str], bool] = is_readable) -> str:
        if path and not here(path):
            missing[path] = None
            return ""
        return path

    def weights(path: str) -> bool:
        return is_readable(path) or os.path.isdir(path)

    cells = [c.model_copy(update={key: existing(getattr(c, key), here=weights) for key in ("weights", "decoder_weights")})
             for c in plan.cells]
    more: dict[str, object] = {"cells": cells}
    if plan.quality is not None:
        files = {key: existing(getattr(plan.quality, key)) for key in ("extractor_weights", "reference")}
        more["quality"] = plan.quality.model_copy(update=files)
    absent = [table for table in plan.metric_tables for path in table.options.values() if not existing(path, here=os.path.isdir)]
    more["metrics"] = [table for table in plan.metric_tables if table not in absent]

    def prompts_exist(prompts: str) -> bool:  # names of lists are checked by the expansion
        path = Path(prompts)
        return not (path.suffix or len(path.parts) > 1) or path.exists()

    prompts = existing(plan.fidelity.prompts, here=prompts_exist)
    more["fidelity"] = plan.fidelity.model_copy(update={"prompts": prompts})
    return plan.model_copy(update=more), list(missing)


def bill(
    plan: Plan, todo: Sequence[Planned], rates: Callable[[str], Rates], stored: Callable[[str], float | None] = lambda key: None,
    missing: Sequence[str] = (),
) -> PlanPrice:
    """Price the cases of a plan.

    ``rates(dtype)`` are those of the device. ``stored(key)`` returns the seconds of a case on this class of machine, or None. Cases with
    ``missing`` files have random weights; they are priced like real ones, including image metrics."""
    absent = {c.model for c in plan.cells if {c.weights, c.decoder_weights} & set(missing)}
    more = {p.case.key: judging(plan, p) if p.case.model in absent else 0.0 for p in todo}
    stored_seconds = {p.case.key: stored(p.case.key) for p in todo}
    bills = {p.case.key: paper(p) for p in todo if stored_seconds[p.case.key] is None and not p.unsupported_reason}
    prices = {p.case.key: price(p, rates, stored_seconds[p.case.key], more[p.case.key], bills.get(p.case.key)) for p in todo}
    processes = dict.fromkeys((p.case.model, p.case.key if plan.trial == "case" or p.runs_plugin else p.request) for p in todo)
    startup = {model: STARTUP * count for model, count in Counter(model for model, _ in processes).items()}
    return PlanPrice(prices, startup)


def judging(plan: Plan, planned: Planned) -> float:
    """Return the batches for fidelity and quality of a case with missing weights."""
    case = planned.case
    if MAX_BATCH in case.evaluation:
        return 0.0
    once = FORCED * math.ceil(case.samples / case.batch) * (3 if case.role == "baseline" else 1)
    return once + ((plan.quality.samples or seeds.SIZES[plan.quality.seeds]) / case.batch if plan.quality else 0)


def price(
    planned: Planned, rates: Callable[[str], Rates], stored: float | None, more: float = 0.0, on_paper: Bill | None = None,
) -> Price:
    """Return the price of a case with ``more`` additional batches.

    ``rates(dtype)`` are needed only without ``stored`` seconds. ``on_paper``: its :func:`paper`, if known."""
    case = planned.case
    layout = planned.entry.shape(case.sampling, case.batch)
    seconds = stored
    if seconds is None and planned.unsupported_reason:
        seconds = 0.0
    elif seconds is None:
        startup = STARTUP if MAX_BATCH in case.evaluation else 0.0  # each attempt of a search is a process
        seconds = startup + MARGIN * (generations(planned) + more) * roofline_time(planned, rates(case.dtype), on_paper)
    tokens = case.samples * layout.visual * 8
    return Price(seconds, stored is not None, OVERHEAD + PICTURE_BYTES + tokens, memory(planned, layout))


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


def roofline_time(planned: Planned, rates: Rates, on_paper: Bill | None = None) -> float:
    """Return the minimum seconds of one batch: the roofline time, plus a launch per kernel or call."""
    on_paper = on_paper or paper(planned)
    called, layout = planned.case.device_class == "cpu", _layout(planned)
    blocks: float = layout.layers
    if isinstance(layout, MaskedLayout):
        blocks += layout.encoder + layout.diffusion * layout.head * (HEAD if called else 1.0)
    return on_paper.roofline_time(rates) + on_paper.passes * blocks * LAUNCHES * (CALL if called else LAUNCH)


def paper(planned: Planned) -> Bill:
    """Return the bill of a case: its FLOPs and bytes.

    A model without operation counts is approximated by plain transformer blocks without an image decoder."""
    case, layout = planned.case, _layout(planned)
    try:
        method: Method = METHODS.get(case.method).build(case.parameters)
    except CachemarkError:  # it does not run here at all; what it would cost is that of no method
        method = Method()
    plain = ParameterCounts(block=BLOCK * (layout.heads * layout.head_dim) ** 2, between=0, image=lambda: None)
    with plugins.answering(type(method)):
        return case_bill(case, planned.entry, method) or bill_of(method, layout, plain, codec=codec(case.codec))


def _layout(planned: Planned) -> Layout:
    """Return the shape of a batch in the case's dtype."""
    case = planned.case
    return replace(planned.entry.shape(case.sampling, case.batch), dtype=getattr(torch, case.dtype))


def memory(planned: Planned, layout: Layout) -> int:
    """Return bytes of device memory: weights, and the full cache, which masked models lack."""
    block, itemsize = BLOCK * (layout.heads * layout.head_dim) ** 2, getattr(torch, planned.case.dtype).itemsize
    if isinstance(layout, MaskedLayout):
        return itemsize * block * (layout.layers + layout.encoder)
    return itemsize * (block + 2 * layout.rows * layout.kv_heads * layout.head_dim * layout.stored) * layout.layers
