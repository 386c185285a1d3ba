"""Recommendation of a cache by model, device and batch size, from stored results and the roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..analysis.answers import FULL_CACHE, Candidate, at_budget, gain_in_words, named, saving_in_words, select, why_unjudged
from ..analysis.case_group import CaseGroup
from ..analysis.device_limits import TOLERANCE
from ..analysis.quality_claims import MARGINS, UNJUDGED, Margins, QualityClaim, criterion, seeds_that_decide, standing
from ..analysis.report_row import MASKED, ReportRow, method_of
from ..core import formatting as fmt, limits
from ..core.files import read_json
from ..core.limits import Rates
from ..core.result import Outcome
from ..core.spec import FULL, Case
from ..core.units import metric
from ..methods.registry import METHODS
from ..models.protocol import ModelEntry
from ..models.registry import MODELS
from ..plans.efficiency import FARTHER, efficiency
from ..plugins import loading
from ..stats.intervals import Interval
from ..store.db import Store
from .forecasts import BOUND, MEASURED, Forecast, Forecaster, identity
from .list import COSTS
from .roofline import device_rates, parse_decoder, pass_costs, without_attention
from .session import DEFAULT_STORE, opened

CPU = "cpu"
DECODER = "sjd=8"  # whose passes are counted if no cache can help
RECENT = 100  # runs that are read; older ones are of older code


@dataclass(frozen=True)
class Wishes:
    """A question: model, device, images per batch, memory limit in bytes (0: all), and quality margin."""

    model: str
    gpu: str
    batch: int = 1
    memory: int = 0
    max_loss: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "gpu", self.gpu.lower())

    def met_by(self, forecast: Forecast) -> bool:
        """Return whether a case stays within the memory limit."""
        limit = self.memory or limits.MEMORY.get(self.gpu, 0)
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

    @property
    def quality_text(self) -> str:
        """Return the quality with its interval, or a dash."""
        if self.quality is None:
            return fmt.DASH
        return f"{metric(self.metric).title} {self.quality.text(self.metric)}"


@dataclass(frozen=True)
class Advice:
    """The answer: a sentence (``text``), the ``recommended`` method, and the other methods.

    ``ranked``: methods that qualify; ``not_recommended``: methods that do not. ``seeds``: smallest loss that the stored seeds can rule out.
    ``measure``: whether a run would add information; ``plan``: a shipped plan of the model, if any.
    """

    text: str
    recommended: str
    ranked: tuple[AdvisedMethod, ...]
    not_recommended: tuple[AdvisedMethod, ...]
    seeds: str
    measure: bool
    plan: str = ""


@dataclass(frozen=True)
class Evidence:
    """Stored results of a model.

    ``here``: groups measured on the device, alike but for the batch. ``claims``: the claim with most seeds about each method, with its row
    and group.
    """

    groups: tuple[CaseGroup, ...]
    here: tuple[CaseGroup, ...]
    claims: Mapping[str, tuple[QualityClaim, ReportRow, CaseGroup]]

    @classmethod
    def read(cls, store: Store | None, wishes: Wishes) -> Evidence:
        """Read the newest results of each block with a full cache, preferably from this device."""
        cells: dict[str, tuple[bool, list[Outcome]]] = {}
        references: dict[str, Outcome] = {}
        records = [] if store is None else [run for run in store.runs() if not run.is_comparison][:RECENT]
        for record in records:
            assert store is not None
            if not (outcomes := [outcome for outcome in store.outcomes(record.id) if outcome.case.model == wishes.model]):
                continue
            by_cell: dict[str, list[Outcome]] = {}
            for outcome in outcomes:
                if outcome.case.role in ("candidate", "baseline"):
                    by_cell.setdefault(outcome.case.cell, []).append(outcome)
            for cell, members in by_cell.items():
                if not any(o.ok and o.case.role == "baseline" for o in members):
                    continue
                on_device = _is_on(wishes.gpu, record.environment.device, members[0].case.device_class)
                if cell not in cells or (on_device and not cells[cell][0]):
                    cells[cell] = on_device, members
            references = {o.case.key: o for o in outcomes if o.case.role in ("other_seeds", "other_batch")} | references
        read = [outcome for _, members in cells.values() for outcome in members]
        margins = MARGINS if wishes.max_loss is None else Margins(wishes.max_loss, wishes.max_loss)
        groups, all_claims = standing([*read, *references.values()] if read else [], margins)
        groups = tuple(group for group in groups if group.full is not None and not group.searched)
        here = [group for cell, (on_device, _) in cells.items() if on_device for group in groups if group.case.cell == cell]
        first = next((group.case for group in here if group.case.batch == wishes.batch), here[0].case if here else None)
        alike = [group for group in here if first and (group.case.dtype, group.case.engine, group.case.sampling)
                 == (first.dtype, first.engine, first.sampling)]
        claims: dict[str, tuple[QualityClaim, ReportRow, CaseGroup]] = {}
        for group in groups:
            for row in group.candidates:
                claim, name = all_claims.get(row.case.key), identity(row.case)
                if claim is not None and (name not in claims or claim.n > claims[name][0].n):
                    claims[name] = claim, row, group
        return cls(groups, tuple(alike), claims)

    @property
    def cases(self) -> dict[str, Case]:
        """The methods with their parameters by identity, without decoders and methods of missing plug-ins."""
        sampling = (self.here or self.groups)[0].case.sampling
        return {identity(row.case): row.case for group in self.groups for row in group.candidates
                if row.ok and row.case.sampling == sampling and row.case.method in METHODS and not row.case.decoder}

    def row_values(self, value: str) -> dict[str, Any]:
        """Return a value of the rows of each method, such as its ``saving``, wherever it was measured."""
        return {identity(row.case): getattr(row, value) for group in reversed(self.groups) for row in group.candidates
                if row.ok and getattr(row, value) not in (None, "")}

    def rates(self, gpu: str, dtype: str) -> Rates:
        """Return the rates stored with the results, else the data sheet's; a CPU is measured now."""
        stored = next((limit for group in self.here if group.full and (limit := group.full.limit) is not None), None)
        if stored is not None:
            return Rates(stored.bandwidth, stored.peak_flops)
        return device_rates(None, dtype) if gpu == CPU else limits.gpu(gpu, dtype)


def advise(wishes: Wishes, store: str | Path | None = DEFAULT_STORE, *, plugins: Sequence[str | Path] = ()) -> Advice:
    """Answer from a store, which need not exist.

    Raises UnknownName for a model or a GPU, and Unsupported for a model without a FLOP model.
    """
    for file in plugins:
        loading.load(file)
    loading.require("models", [wishes.model])
    entry: ModelEntry = MODELS.get(wishes.model)
    if wishes.gpu != CPU:
        limits.gpu(wishes.gpu)
    with opened(store) as source:
        evidence = Evidence.read(source, wishes)
    if not evidence.groups:
        unmeasured = f"{FULL_CACHE}. No result of {wishes.model} is stored.{_bounds(entry, wishes)}"
        return Advice(unmeasured, "full", (), (), "", True, plan_of(wishes.model))
    full = (evidence.here or evidence.groups)[0].case
    if not evidence.here and wishes.gpu != CPU:
        full = replace(full, dtype="bfloat16")
    forecaster = Forecaster(entry, full, evidence.rates(wishes.gpu, full.dtype), evidence.here, wishes.batch)
    savings, unranked = evidence.row_values("saving"), evidence.row_values("unranked")
    candidates, lines = [], {}
    for key, case in evidence.cases.items():
        forecast, (claim, row, group) = forecaster.candidate(case), evidence.claims.get(key, (None, None, None))
        bound = forecast.basis == BOUND
        qualified = claim is not None and claim.non_inferior and row is not None and not row.unranked
        candidate = Candidate(key, replace(forecast.gain, confidence=0.0) if bound else forecast.gain, savings.get(key), qualified,
                              wishes.met_by(forecast), forecast.basis == MEASURED, forecast.doubt)
        why_not = candidate.doubt
        if not qualified:
            why_not = unranked.get(key, UNJUDGED) if claim is None or row is None else row.unranked or claim.why_not
        elif not candidate.fits:
            why_not = f"It does not fit: a batch takes {fmt.size(forecast.memory)}."
        name = criterion(group) if group else ""
        gain, has_interval = forecast.gain, forecast.gain.stated and not bound
        candidates.append(candidate)
        title = named(row) if row else at_budget(fmt.display_name(method_of(case)), case)
        lines[key] = AdvisedMethod(
            title, case.named, case.budget, gain.value, gain.low if has_interval else None, gain.high if has_interval else None,
            forecast.allowed, candidate.saving, forecast.seconds, forecast.memory, forecast.basis, name,
            row.quality.get(name) if row else None, why_not, forecast.no_speedup)
    best, lean = select(candidates, full_fits=wishes.met_by(forecaster.full))
    order = sorted(candidates, key=lambda each: (best is None or each.key != best.key, -each.least_gain))
    ranked = [lines[each.key] for each in order]
    text = _Answer(wishes, entry.paradigm, evidence, best, lean, lines, [lines[each.key] for each in candidates if each.qualified])
    return Advice(
        text.recommendation(forecaster.full), lines[best.key].name if best else "full",
        tuple(line for line in ranked if not line.why_not), tuple(line for line in ranked if line.why_not),
        seeds_that_decide([claim for claim, _, _ in evidence.claims.values()]), any(line.basis != MEASURED for line in ranked),
        plan_of(wishes.model))


def plan_of(model: str) -> str:
    """Return the cheapest shipped plan that measures methods on a model, or an empty text."""
    costs = read_json(COSTS)
    suited = [name for name, cost in costs.items() if model in cost["models"] and cost["cases"] > len(cost["models"])]
    return min(suited, key=lambda name: (bool(costs[name]["files"]), costs[name]["hours"]), default="")


def _bounds(entry: ModelEntry, wishes: Wishes) -> str:
    """Return the largest gain of a cache on a named GPU, or of a parallel decoder if that is tiny."""
    if entry.paradigm != "next-token" or wishes.gpu == CPU or entry.parameter_counts() is None:
        return ""
    rates, where = limits.gpu(wishes.gpu), f"on {wishes.gpu} at batch {wishes.batch}"
    most = without_attention(entry, rates, batch=wishes.batch)
    if most > TOLERANCE:
        bound = f" Without any attention, the roofline speedup {where} is {fmt.times(most)}: no cache can gain more."
        return bound + _measured(entry, wishes)
    decoder = parse_decoder(DECODER)
    [row] = pass_costs(entry.name, rates, decoder, methods=[FULL], batches=[wishes.batch])
    return (f" No cache can help: without any attention, the roofline speedup {where} is {fmt.times(most)}. Parallel decoding can: a step "
            f"of {decoder.reach} tokens takes {fmt.times(row.cost)} the roofline time of a step of one.")


def _measured(entry: ModelEntry, wishes: Wishes) -> str:
    """Return how far measured generations of the family were from their roofline time."""
    known = efficiency(entry.paradigm, "cuda", "graph", wishes.batch)
    return (f" A measured full cache took {known.typical:.2g} times its roofline time ({known.basis}), and LineAR at 1/6 {FARTHER:g} times "
            "as much, so a method may gain nothing.")


@dataclass
class _Answer:
    """The sentences of an answer.

    ``best`` and ``lean``: as :func:`select` returns them; ``lines``: all methods by identity; ``qualified``: methods of equal quality.
    """

    wishes: Wishes
    paradigm: str
    evidence: Evidence
    best: Candidate | None
    lean: Candidate | None
    lines: Mapping[str, AdvisedMethod]
    qualified: Sequence[AdvisedMethod]

    def recommendation(self, full: Forecast) -> str:
        """Return the recommendation and its reason. ``full``: forecast of the full cache."""
        batch, best = self.wishes.batch, self.best
        too_large = f"The full cache takes {fmt.size(full.memory)} for a batch of {batch}, which does not fit. "
        start = "" if self.wishes.met_by(full) else too_large
        if best is not None and best.gain is not None:
            line, where = self.lines[best.key], f"on {self.wishes.gpu} at batch {batch}"
            basis = f"Measured {where}." if line.basis == MEASURED else (
                f"Predicted, not measured {where}: bytes and FLOPs saved allow at most {fmt.times(line.allowed)}.")
            return (f"{start}Use {line.name}. {gain_in_words(best.gain)}{saving_in_words(line.saving, self.paradigm)}, "
                    f"quality loss below {self.evidence.claims[best.key][0].allowed}. {basis}")
        if start:
            return f"{start}No non-inferior method is known to fit either: use a smaller batch.{self._seeds_needed()}"
        return f"{FULL_CACHE}. {self._reason()}"

    def _reason(self) -> str:
        """Return the reason for the full cache, and what would change it."""
        batch, gpu = self.wishes.batch, self.wishes.gpu
        if (most := max((line.allowed for line in self.lines.values()), default=0.0)) <= TOLERANCE:
            return f"No method gains at batch {batch}: the largest roofline speedup on {gpu} is {fmt.times(most)}."
        claims = [claim for claim, _, _ in self.evidence.claims.values()]
        if not claims:
            random = all(group.random for group in self.evidence.groups)
            return f"{why_unjudged(random=random)} Fidelity alone is never used for recommendations."
        if not self.qualified:
            seeds = max(claim.n for claim in claims)
            return f"No method is non-inferior at {seeds} seeds (margin {claims[0].allowed}).{self._seeds_needed()}"
        reason = f"No method of equal quality is measured or predicted to be faster at batch {batch}."
        bound = max((line for line in self.qualified if line.basis == BOUND), key=lambda line: line.gain, default=None)
        if bound is not None and bound.allowed > TOLERANCE:
            why = f"its speedup on {gpu} is not known: {bound.no_speedup}" if bound.no_speedup else f"nothing of it was measured on {gpu}."
            return f"{reason} {bound.name} might gain up to {fmt.times(bound.allowed)}; {why}"
        lean = self.lean
        if lean is None or self.paradigm == MASKED:
            return reason
        saving = saving_in_words(lean.saving, self.paradigm)
        return f"{reason} If memory is the bottleneck, use {self.lines[lean.key].name}{saving}."

    def _seeds_needed(self) -> str:
        """Return a sentence on the number of seeds that would qualify a method, or nothing."""
        needed = [claim.needed for claim, _, _ in self.evidence.claims.values() if not claim.non_inferior and claim.needed]
        return f" About {min(needed)} seeds would show it of one, if its images went on like these." if needed else ""


def _is_on(gpu: str, device: str, device_class: str) -> bool:
    """Return whether a driver's device name means this GPU: ``NVIDIA H100 80GB HBM3`` is ``h100``."""
    if gpu == CPU or device_class == CPU:
        return gpu == device_class
    return gpu in device.lower().replace("-", " ").split()
