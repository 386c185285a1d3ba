"""Recommendation of a cache by model, device and batch size, from stored results and the roofline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..analysis import formatting as fmt
from ..analysis.answers import (
    FULL_CACHE,
    Candidate,
    Selection,
    gain_in_words,
    named,
    saving_in_words,
    select,
    why_unjudged,
)
from ..analysis.case_group import CaseGroup
from ..analysis.device_limits import TOLERANCE
from ..analysis.quality_claims import MARGINS, UNJUDGED, Margins, QualityClaim, criterion, seeds_that_decide, standing
from ..analysis.report_row import MASKED, ReportRow
from ..core import limits
from ..core.errors import unknown
from ..core.limits import Rates
from ..core.result import Outcome
from ..core.seeds import SIZES
from ..core.spec import Case
from ..core.units import metric
from ..methods.registry import METHODS
from ..models.protocol import ModelEntry
from ..models.registry import MODELS
from ..plans.schema import FILE, Plan
from ..plans.toml_text import toml_of
from ..plugins import loading
from ..stats.intervals import Interval
from ..store.db import Store
from .forecasts import BOUND, MEASURED, Forecast, Forecaster, identity
from .roofline import DEFAULTS, device_rates
from .session import DEFAULT_STORE, opened

CPU = "cpu"
MEMORY = {"a800": 80 * 10**9, "a100": 80 * 10**9, "h100": 80 * 10**9, "h200": 141 * 10**9, "h20": 96 * 10**9,
          "3090": 24 * 2**30}  # bytes, as sold
RECENT = 100  # runs that are read; older ones are of older code


@dataclass(frozen=True)
class Wishes:
    """A question: model, device, images per batch, memory limit in bytes (0: all), and quality margin."""

    model: str
    gpu: str
    batch: int = 1
    memory: int = 0
    max_loss: float | None = None

    def met_by(self, forecast: Forecast) -> bool:
        """Return whether a case stays within the memory limit."""
        limit = self.memory or MEMORY.get(self.gpu, 0)
        return not limit or forecast.memory <= limit


@dataclass(frozen=True)
class AdvisedMethod:
    """One line of the answer: a method at a budget.

    ``gain``: speedup over the full cache; ``allowed``: its roofline bound; ``seconds`` and ``memory`` (bytes) are per batch. ``basis``:
    measured here, predicted, or only bounded; ``no_speedup``: why a measured case has no speedup. ``quality``: value of its ``metric``.
    ``why_not``: why it is not recommended, empty if it qualifies and fits.
    """

    name: str
    method: str
    budget: str
    gain: float
    low: float | None
    high: float | None
    allowed: float
    saving: float | None
    seconds: float
    memory: int
    basis: str
    metric: str
    quality: Interval | None
    why_not: str
    no_speedup: str = ""


@dataclass(frozen=True)
class Advice:
    """The answer: a sentence (``text``), the ``recommended`` method, and the other methods.

    ``ranked``: methods that qualify; ``not_recommended``: methods that do not. ``seeds``: smallest loss that the stored seeds can rule out.
    ``measure``: whether a run would add information; ``plan``: the plan of that run as TOML.
    """

    text: str
    recommended: str
    ranked: tuple[AdvisedMethod, ...]
    not_recommended: tuple[AdvisedMethod, ...]
    seeds: str
    measure: bool
    plan: str


@dataclass(frozen=True)
class Claimed:
    """A quality claim with the row and the group that it is about."""

    claim: QualityClaim
    row: ReportRow
    group: CaseGroup

    @property
    def qualified(self) -> bool:
        """Return whether the images are non-inferior and no rule excludes the row."""
        return self.claim.non_inferior and not self.row.unranked


@dataclass(frozen=True)
class Evidence:
    """Stored results of a model.

    ``here``: groups measured on the device, alike but for the batch; ``plan``: the newest plan of the model.
    """

    groups: tuple[CaseGroup, ...]
    here: tuple[CaseGroup, ...]
    claims: Mapping[str, QualityClaim]
    plan: Mapping[str, Any]

    @classmethod
    def read(cls, store: Store | None, wishes: Wishes) -> Evidence:
        """Read the newest results of each block, preferably those measured on the device."""
        cells: dict[str, tuple[bool, list[Outcome]]] = {}
        references: dict[str, Outcome] = {}
        plan: Mapping[str, Any] = {}
        sequential = False
        for record in [] if store is None else [run for run in store.runs() if not run.is_comparison][:RECENT]:
            assert store is not None
            outcomes = [outcome for outcome in store.outcomes(record.id) if outcome.case.model == wishes.model]
            plan = plan or (record.plan_json if outcomes else {})
            sequential = sequential or (bool(outcomes) and record.sequential)
            for cell, members in _by_cell(outcomes).items():
                on_device = _is_on(wishes.gpu, record.environment.device, members[0].case.device_class)
                if cell not in cells or (on_device and not cells[cell][0]):
                    cells[cell] = on_device, members
            references = {o.case.key: o for o in outcomes if o.case.role in ("other_seeds", "other_batch")} | references
        read = [outcome for _, members in cells.values() for outcome in members]
        margins = MARGINS if wishes.max_loss is None else Margins(wishes.max_loss, wishes.max_loss)
        groups, claims = standing([*read, *references.values()] if read else [], margins, sequential=sequential)
        groups = tuple(group for group in groups if group.full is not None and not group.searched)
        here = [group for cell, (on_device, _) in cells.items() if on_device for group in groups if group.case.cell == cell]
        return cls(groups, _alike(here, wishes.batch), claims, plan)

    @property
    def cases(self) -> dict[str, Case]:
        """The methods with their parameters by identity, without decoders and methods of missing plug-ins."""
        sampling = (self.here or self.groups)[0].case.sampling
        return {identity(row.case): row.case for group in self.groups for row in group.candidates
                if row.ok and row.case.sampling == sampling and row.case.method in METHODS and not row.case.decoder}

    @property
    def claimed(self) -> dict[str, Claimed]:
        """The claim of each method that rests on most seeds."""
        claims: dict[str, Claimed] = {}
        for group in self.groups:
            for row in group.candidates:
                claim, name = self.claims.get(row.case.key), identity(row.case)
                if claim is not None and (name not in claims or claim.n > claims[name].claim.n):
                    claims[name] = Claimed(claim, row, group)
        return claims

    def row_values(self, value: str) -> dict[str, Any]:
        """Return a value of the rows of each method, such as its ``saving``, wherever it was measured."""
        return {identity(row.case): getattr(row, value) for group in reversed(self.groups) for row in group.candidates
                if row.ok and getattr(row, value) not in (None, "")}

    def rates(self, gpu: str, dtype: str) -> Rates:
        """Return the rates stored with the results, else the data sheet's; a CPU is measured now."""
        for group in self.here:
            if (limit := group.full.limit if group.full else None) is not None:
                return Rates(limit.bandwidth, limit.peak_flops)
        return device_rates(None, dtype) if gpu == CPU else limits.gpu(gpu, dtype)


def advise(wishes: Wishes, store: str | Path | None = DEFAULT_STORE, *, plugins: Sequence[str | Path] = ()) -> Advice:
    """Answer from a store, which need not exist.

    Raises UnknownName for a model or a GPU, and Unsupported for a model without a FLOP model.
    """
    for file in plugins:
        loading.load(file)
    loading.require("models", [wishes.model])
    entry: ModelEntry = MODELS.get(wishes.model)
    if wishes.gpu not in (CPU, *limits.GPUS):
        raise unknown("GPU", wishes.gpu, [CPU, *limits.GPUS])
    with opened(store) as source:
        evidence = Evidence.read(source, wishes)
    plan = _plan(evidence.plan, entry, wishes)
    if not evidence.groups:
        text = f"{FULL_CACHE}. No result of {wishes.model} is stored."
        return Advice(text, "full", (), (), "", True, plan)
    full = (evidence.here or evidence.groups)[0].case
    if not evidence.here and wishes.gpu != CPU:
        full = replace(full, dtype="bfloat16")
    forecaster = Forecaster(entry, full, evidence.rates(wishes.gpu, full.dtype), evidence.here)
    return _Advisor(wishes, entry, evidence, forecaster).advice(plan)


@dataclass
class _Advisor:
    """Compares the methods of a store."""

    wishes: Wishes
    entry: ModelEntry
    evidence: Evidence
    forecaster: Forecaster

    def advice(self, plan: str) -> Advice:
        cases, claimed, savings = self.evidence.cases, self.evidence.claimed, self.evidence.row_values("saving")
        full = self.forecaster.full(self.wishes.batch)
        forecasts = {key: self.forecaster.candidate(case, self.wishes.batch) for key, case in cases.items()}
        candidates = [
            Candidate(key, replace(forecast.gain, confidence=0.0) if forecast.basis == BOUND else forecast.gain, savings.get(key),
                      key in claimed and claimed[key].qualified, self.wishes.met_by(forecast), forecast.basis == MEASURED, forecast.doubt)
            for key, forecast in forecasts.items()]
        chosen = select(candidates, full_fits=self.wishes.met_by(full))
        lines = {each.key: self._advised(each, cases[each.key], forecasts[each.key], claimed.get(each.key)) for each in candidates}
        order = sorted(candidates, key=lambda each: (chosen.best is None or each.key != chosen.best.key, -each.least_gain))
        ranked = [lines[each.key] for each in order]
        return Advice(
            self._recommendation(chosen, candidates, lines, full, claimed), lines[chosen.best.key].name if chosen.best else "full",
            tuple(line for line in ranked if not line.why_not), tuple(line for line in ranked if line.why_not),
            seeds_that_decide([each.claim for each in claimed.values()]), any(line.basis != MEASURED for line in ranked), plan)

    def _advised(self, candidate: Candidate, case: Case, forecast: Forecast, claimed: Claimed | None) -> AdvisedMethod:
        name = criterion(claimed.group) if claimed else ""
        has_interval = forecast.gain.stated and forecast.basis != BOUND
        return AdvisedMethod(
            named(case), case.named, case.budget, forecast.gain.value, forecast.gain.low if has_interval else None,
            forecast.gain.high if has_interval else None, forecast.allowed, candidate.saving, forecast.seconds, forecast.memory,
            forecast.basis,
            name, claimed.row.quality.get(name) if claimed else None, self._why_not(candidate, forecast, claimed), forecast.no_speedup)

    def _why_not(self, candidate: Candidate, forecast: Forecast, claimed: Claimed | None) -> str:
        if not candidate.qualified:
            unranked: str = self.evidence.row_values("unranked").get(candidate.key, UNJUDGED)
            return unranked if claimed is None else claimed.row.unranked or claimed.claim.why_not
        if not candidate.fits:
            return f"It does not fit: a batch takes {fmt.size(forecast.memory)}."
        return candidate.doubt

    def _recommendation(
        self, chosen: Selection, candidates: Sequence[Candidate], lines: Mapping[str, AdvisedMethod], full: Forecast,
        claimed: Mapping[str, Claimed],
    ) -> str:
        """Return the recommendation and its reason."""
        fits = self.wishes.met_by(full)
        short = "" if fits else f"The full cache takes {fmt.size(full.memory)} for a batch of {full.batch}, which does not fit. "
        if chosen.best is not None:
            line = lines[chosen.best.key]
            assert chosen.best.gain is not None
            return (f"{short}Use {line.name}. {gain_in_words(chosen.best.gain)}{saving_in_words(line.saving, self.entry.paradigm)}, "
                    f"quality loss below {claimed[chosen.best.key].claim.allowed}. {self._basis(line)}")
        if short:
            return f"{short}No non-inferior method is known to fit either: use a smaller batch.{_seeds_needed(claimed)}"
        return f"{FULL_CACHE}. {self._reason(chosen, candidates, lines, claimed)}"

    def _basis(self, line: AdvisedMethod) -> str:
        where = f"on {self.wishes.gpu} at batch {self.wishes.batch}"
        return (f"Measured {where}." if line.basis == MEASURED else
                f"Predicted, not measured {where}: bytes and FLOPs saved allow at most {fmt.times(line.allowed)}.")

    def _reason(
        self, chosen: Selection, candidates: Sequence[Candidate], lines: Mapping[str, AdvisedMethod], claimed: Mapping[str, Claimed],
    ) -> str:
        """Return the reason for the full cache, and what would change it."""
        if (most := max((line.allowed for line in lines.values()), default=0.0)) <= TOLERANCE:
            limit = f"the largest roofline speedup on {self.wishes.gpu} is {fmt.times(most)}"
            return f"No method gains at batch {self.wishes.batch}: {limit}."
        if not claimed:
            random = all(group.random for group in self.evidence.groups)
            return f"{why_unjudged(random=random)} Fidelity alone is never used for recommendations."
        allowed = next(iter(claimed.values())).claim.allowed
        qualified = [lines[each.key] for each in candidates if each.qualified]
        if not qualified:
            seeds = max(each.claim.n for each in claimed.values())
            return f"No method is non-inferior at {seeds} seeds (margin {allowed}).{_seeds_needed(claimed)}"
        reason = f"No method of equal quality is measured or predicted to be faster at batch {self.wishes.batch}."
        bound = max((line for line in qualified if line.basis == BOUND), key=lambda line: line.gain, default=None)
        if bound is not None and bound.allowed > TOLERANCE:
            unknown_speed = (f"its speedup on {self.wishes.gpu} is not known: {bound.no_speedup}" if bound.no_speedup else
                             f"nothing of it was measured on {self.wishes.gpu}.")
            return f"{reason} {bound.name} might gain up to {fmt.times(bound.allowed)}; {unknown_speed}"
        if chosen.lean is None or self.entry.paradigm == MASKED:
            return reason
        saving = saving_in_words(chosen.lean.saving, self.entry.paradigm)
        return f"{reason} If memory is the bottleneck, use {lines[chosen.lean.key].name}{saving}."


def quality_text(line: AdvisedMethod) -> str:
    """Return the quality of a line with its interval, or a dash."""
    if line.quality is None:
        return fmt.DASH
    value, low, high = (fmt.metric_value(end, line.metric) for end in (line.quality.value, line.quality.low, line.quality.high))
    return f"{metric(line.metric).title} {value}{f' ({low}–{high})' if line.quality.stated else ''}"


def _seeds_needed(claimed: Mapping[str, Claimed]) -> str:
    """Return a sentence on the number of seeds that would qualify a method, or nothing."""
    needed = min((each.claim.needed for each in claimed.values() if not each.claim.non_inferior and each.claim.needed), default=None)
    return f" About {needed} seeds would show it of one, if its images went on like these." if needed else ""


def _by_cell(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Return full caches and candidates by comparable group, without groups whose full cache failed."""
    cells: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.case.role in ("candidate", "baseline"):
            cells.setdefault(outcome.case.cell, []).append(outcome)
    return {cell: members for cell, members in cells.items() if any(o.ok and o.case.role == "baseline" for o in members)}


def _is_on(gpu: str, device: str, device_class: str) -> bool:
    """Return whether a driver's device name means this GPU: ``NVIDIA H100 80GB HBM3`` is ``h100``."""
    if gpu == CPU or device_class == CPU:
        return gpu == device_class
    return gpu in device.lower().replace("-", " ").split()


def _alike(groups: Sequence[CaseGroup], batch: int) -> tuple[CaseGroup, ...]:
    """Return the groups with the dtype, engine and sampling of the group at the batch, else of the newest."""
    if not groups:
        return ()
    first = next((group.case for group in groups if group.case.batch == batch), groups[0].case)
    return tuple(group for group in groups
                 if (group.case.dtype, group.case.engine, group.case.sampling) == (first.dtype, first.engine, first.sampling))


def _plan(stored: Mapping[str, Any], entry: ModelEntry, wishes: Wishes) -> str:
    """Return a plan at this batch as TOML: the model's newest plan, else its family's default methods."""
    from pydantic import ValidationError

    try:
        plan = Plan.of_stored(stored).only(models=[wishes.model])
        folder = Path(str(stored.get(FILE, ""))).parent  # paths of plug-ins are relative to the plan's file
        plan = plan.model_copy(update={"plugins": [str((folder / name).resolve()) for name in plan.plugins]})
    except ValidationError:  # nothing stored, or a plan of another version
        methods, _ = DEFAULTS[entry.paradigm]
        block = {"model": entry.name, "methods": list(methods), "budgets": ["0.8", "1/2"], "engine": "auto",
                 "dtype": "float32" if wishes.gpu == CPU else "bfloat16"}
        plan = Plan.model_validate({"name": "advised", "on_unsupported": "unsupported", "cells": [block],
                                    "fidelity": {"seeds": "s256", "samples": 256}})
    cells = [block.model_copy(update={"batch": wishes.batch, "samples": block.samples and max(block.samples, wishes.batch)})
             for block in plan.cells]
    samples = max(plan.fidelity.samples, wishes.batch)
    needed, seeds = max(samples, *(block.samples for block in cells)), plan.fidelity.seeds
    if SIZES[seeds] < needed:
        seeds = next((name for name, size in SIZES.items() if size >= needed), seeds)
    fidelity = plan.fidelity.model_copy(update={"samples": samples, "seeds": seeds})
    plan = plan.model_copy(update={"cells": list({block.model_dump_json(): block for block in cells}.values()), "fidelity": fidelity})
    return toml_of(plan.model_dump(exclude_defaults=True, exclude_none=True))
