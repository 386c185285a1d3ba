"""Advice: which cache to use for a model on a device at a batch, from what a store holds and what the roofline allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..analysis import formatting as fmt
from ..analysis.answers import (
    FULL_CACHE,
    Candidate,
    Selection,
    gain_in_words,
    loss_in_words,
    named,
    saving_in_words,
    select,
    why_unjudged,
)
from ..analysis.limit_flags import ARTEFACT
from ..analysis.quality_claims import UNJUDGED, criterion, seeds_that_decide
from ..analysis.report_row import MASKED
from ..core import limits
from ..core.errors import unknown
from ..core.spec import Case
from ..core.units import metric
from ..methods.registry import METHODS
from ..models.protocol import ModelEntry
from ..models.registry import MODELS
from ..plans.installed_things import require
from ..plans.price import without_missing
from ..plans.schema import Plan
from ..plans.toml_text import toml_of
from ..plugins import loading
from ..stats.intervals import Interval
from ..store.db import Store
from .evidence import CPU, Claimed, Known, at_batches, known_of
from .forecasts import BOUND, MEASURED, PREDICTED, Forecast, Forecaster
from .publications import publications
from .stores import DEFAULT_STORE, opened
from .weights import FOLDER

MEMORY = {"a800": 80 * 10**9, "a100": 80 * 10**9, "h100": 80 * 10**9, "h200": 141 * 10**9, "h20": 96 * 10**9,
          "3090": 24 * 2**30}  # bytes, as sold
MOST = 4096  # images at once; beyond it no batch is looked at
LEVEL = 0.02  # share of images per second for which nobody needs a batch twice as large


@dataclass(frozen=True)
class Wishes:
    """Terms of a question. ``memory`` in bytes (0: all that the GPU has) and ``latency`` in seconds of a batch are limits; ``throughput``
    lets every method use the batch at which it makes most images per second, whatever ``batch`` is; ``max_loss`` is the margin of quality,
    as a share."""

    model: str
    gpu: str
    batch: int = 1
    memory: int = 0
    latency: float | None = None
    throughput: bool = False
    max_loss: float | None = None

    @property
    def room(self) -> int:
        """Bytes that there are, 0 where they are not limited."""
        return self.memory or MEMORY.get(self.gpu, 0)

    def met_by(self, forecast: Forecast) -> bool:
        """True where a case stays within the limits."""
        return (not self.room or forecast.memory <= self.room) and (self.latency is None or forecast.seconds <= self.latency)


@dataclass(frozen=True)
class AdvisedMethod:
    """One line of the answer: a method at a budget. ``gain`` over the full cache, which ``allowed`` bounds; ``basis`` says whether gain,
    time and memory were measured here, predicted, or bounded; ``no_speedup`` why there is but a bound though it was measured here;
    ``quality`` is the value of its images with its interval; ``why_not`` the reason why it is not recommended, empty where it qualifies
    and fits."""

    name: str
    method: str
    budget: str
    batch: int
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
    shown: str
    why_not: str
    no_speedup: str = ""


@dataclass(frozen=True)
class Advice:
    """The answer: a sentence in ``text``, the ``recommended`` method and its ``batch``, the methods in ``ranked`` order, those that are not
    recommended in ``others``; ``begins`` says where gains begin, ``seeds`` how many would decide, ``measure`` whether a plan would tell
    more; ``plan`` is that plan as TOML, ``missing`` the files and folders that it names and that are not here, ``notes`` what is left out
    and what else there is to know."""

    text: str
    recommended: str
    batch: int
    ranked: tuple[AdvisedMethod, ...]
    others: tuple[AdvisedMethod, ...]
    begins: str
    seeds: str
    measure: bool
    plan: str
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def advise(wishes: Wishes, store: str | Path | None = DEFAULT_STORE, *, plugins: Sequence[str | Path] = ()) -> Advice:
    """Answer from a store, which need not exist. Raises UnknownName for a model or a GPU, and Unsupported for a model that cannot be
    priced on paper."""
    for file in plugins:
        loading.load(file)
    require("models", [wishes.model])
    entry: ModelEntry = MODELS.get(wishes.model)
    if wishes.gpu not in (CPU, *limits.GPUS):
        raise unknown("GPU", wishes.gpu, [CPU, *limits.GPUS])
    with opened(store) as source:
        return advice(wishes, entry, source)


def advice(wishes: Wishes, entry: ModelEntry, store: Store | None) -> Advice:
    """Answer from a store that is open, or None."""
    known = known_of(store, wishes.model, entry.paradigm, wishes.gpu, wishes.batch, wishes.max_loss)
    forecaster = Forecaster(entry, known.full, known.rates(wishes.gpu), known.here)
    return _Advisor(wishes, entry, known, forecaster).advice()


@dataclass
class _Advisor:
    """Compares the methods of a store."""

    wishes: Wishes
    entry: ModelEntry
    known: Known
    forecaster: Forecaster

    def advice(self) -> Advice:
        cases = {name: case for name, case in self.known.cases.items() if case.method in METHODS and not case.decoder}
        full = self._best([self.forecaster.full(batch) for batch in self._batches()])
        forecasts = {name: self._forecast(case, full) for name, case in cases.items()}
        claimed, savings = self.known.claimed, self.known.savings
        candidates = [
            Candidate(name, replace(each.gain, confidence=0.0) if each.basis == BOUND else each.gain, savings.get(name),
                      name in claimed and claimed[name].qualified, self.wishes.met_by(each),
                      each.basis == MEASURED, each.doubt)
            for name, each in forecasts.items()]
        chosen = select(candidates, full_fits=self.wishes.met_by(full))
        lines = {each.key: self._line(each, cases[each.key], forecasts[each.key], claimed.get(each.key)) for each in candidates}
        order = sorted(candidates, key=lambda each: (chosen.best is None or each.key != chosen.best.key, -each.least_gain))
        text = self._text(chosen, candidates, lines, cases, full, claimed)
        best = lines[chosen.best.key] if chosen.best else None
        batch = best.batch if best else full.batch
        plan, measure = at_batches(self.known.plan, sorted({batch, full.batch})), any(line.basis != MEASURED for line in lines.values())
        return Advice(
            text, best.name if best else "full", batch, tuple(lines[c.key] for c in order if not lines[c.key].why_not),
            tuple(lines[c.key] for c in order if lines[c.key].why_not), self._begins(list(cases.values())),
            seeds_that_decide([each.claim for each in claimed.values()]), measure,
            toml_of(plan.model_dump(exclude_defaults=True, exclude_none=True)), tuple(without_missing(plan)[1]),
            (*self.known.notes, *(self._unnamed_weights(plan) if measure else ())),
        )

    def _batches(self) -> list[int]:
        """The batch that is asked for; for throughput every power of two."""
        return [2**k for k in range(MOST.bit_length())] if self.wishes.throughput else [self.wishes.batch]

    def _best(self, each: Sequence[Forecast]) -> Forecast:
        """Among those that stay within the limits, and whose images per second are as many as the most but for ``LEVEL``, one that was
        measured, else the smallest batch; where none stays within them, the one that asks least."""
        able = [forecast for forecast in each if self.wishes.met_by(forecast)]
        if not able:
            return min(each, key=lambda forecast: forecast.batch)
        most = max(forecast.rate for forecast in able)
        return min((forecast for forecast in able if forecast.rate >= (1 - LEVEL) * most),
                   key=lambda forecast: (forecast.basis != MEASURED, forecast.batch))

    def _forecast(self, case: Case, full: Forecast) -> Forecast:
        """The case at its best batch, its gain in images per second over the full cache at that one's."""
        forecast = self._best([self.forecaster.candidate(case, batch) for batch in self._batches()])
        if forecast.batch == full.batch:
            return forecast
        beside = self.forecaster.full(forecast.batch)
        more = beside.rate / full.rate
        gain = replace(forecast.gain, value=more * forecast.gain.value, low=more * forecast.gain.low, high=more * forecast.gain.high)
        sure = forecast.basis == MEASURED == full.basis == beside.basis
        basis = forecast.basis if sure or forecast.basis == BOUND else PREDICTED
        return replace(forecast, gain=gain, allowed=more * forecast.allowed, basis=basis)

    def _line(self, each: Candidate, case: Case, forecast: Forecast, claimed: Claimed | None) -> AdvisedMethod:
        name = criterion(claimed.group) if claimed else ""
        stated = forecast.gain.stated and forecast.basis != BOUND
        return AdvisedMethod(
            named(case), case.named, case.budget, forecast.batch, forecast.gain.value, forecast.gain.low if stated else None,
            forecast.gain.high if stated else None, forecast.allowed, each.saving, forecast.seconds, forecast.memory, forecast.basis, name,
            claimed.row.quality.get(name) if claimed else None,
            loss_in_words(claimed.claim).removeprefix("and ") if claimed and each.qualified else "",
            self._why_not(each, forecast, claimed), forecast.no_speedup)

    def _why_not(self, each: Candidate, forecast: Forecast, claimed: Claimed | None) -> str:
        if not each.qualified:
            return self.known.unjudged.get(each.key, UNJUDGED) if claimed is None else claimed.row.unranked or claimed.claim.why_not
        if not each.fits:
            return f"It does not fit: it takes {fmt.size(forecast.memory)} and {fmt.seconds(forecast.seconds)} for a batch."
        return each.doubt

    # -- words ----------------------------------------------------------------------------------------------------------
    def _text(
        self, chosen: Selection, candidates: Sequence[Candidate], lines: dict[str, AdvisedMethod], cases: dict[str, Case],
        full: Forecast, claimed: dict[str, Claimed],
    ) -> str:
        short = "" if self.wishes.met_by(full) else (
            f"The full cache takes {fmt.size(full.memory)} and {fmt.seconds(full.seconds)} for a batch of {full.batch}, which does not "
            "fit. ")
        if chosen.best is not None:
            line, case = lines[chosen.best.key], cases[chosen.best.key]
            assert chosen.best.gain is not None
            at = f" at batch {line.batch}" if self.wishes.throughput else ""
            return (f"{short}Use {named(case)}{at}: {gain_in_words(chosen.best.gain)}{saving_in_words(line.saving, self.entry.paradigm)}, "
                    f"{loss_in_words(claimed[chosen.best.key].claim)}. {self._basis(line)}")
        if short:
            return f"{short}No method that is shown to be as good is known to fit either: {self._remedy(full)}.{_by_seeds(claimed)}"
        where = f" at batch {full.batch}" if self.wishes.throughput else ""
        return f"{FULL_CACHE}{where}: {self._reason(chosen, candidates, lines, claimed)}"

    def _remedy(self, full: Forecast) -> str:
        """The remedy where nothing is known to fit."""
        alone = full if full.batch == 1 else self.forecaster.full(1)
        if self.wishes.met_by(alone):
            return "take a smaller batch"
        lacking = ["memory"] if self.wishes.room and alone.memory > self.wishes.room else []
        lacking += ["time"] if self.wishes.latency is not None and alone.seconds > self.wishes.latency else []
        return f"even a single image needs more {' and '.join(lacking)}"

    def _basis(self, line: AdvisedMethod) -> str:
        if line.basis == MEASURED:
            return f"Measured on {self.wishes.gpu} at batch {line.batch}."
        return (f"Predicted, not measured on {self.wishes.gpu} at batch {line.batch}: bytes and FLOPs saved allow at most "
                f"{fmt.times(line.allowed)}.")

    def _reason(
        self, chosen: Selection, candidates: Sequence[Candidate], lines: dict[str, AdvisedMethod], claimed: dict[str, Claimed],
    ) -> str:
        """The reason for the full cache, and what would change it."""
        if (most := max((line.allowed for line in lines.values()), default=0.0)) <= ARTEFACT and not self.wishes.throughput:
            return (f"nothing gains at batch {self.wishes.batch}: bytes and FLOPs that the methods here save allow at most "
                    f"{fmt.times(most)} on {self.wishes.gpu}.")
        if not claimed:
            random = bool(self.known.groups) and all(group.random for group in self.known.groups)
            return (f"{why_unjudged(random=random)}, so no method is shown to be as good. Fidelity to the full cache is no reason to "
                    "recommend one.")
        allowed = next(iter(claimed.values())).claim.allowed
        able = [each for each in candidates if each.qualified]
        where = "at any batch" if self.wishes.throughput else f"at batch {self.wishes.batch}"
        if not able:
            seeds = max(each.claim.n for each in claimed.values())
            return f"at {seeds} seeds no method is shown to lose less than {allowed}.{_by_seeds(claimed)}"
        told = f"no method that is shown to lose less than {allowed} is measured or predicted to be faster {where}."
        bound = max((lines[each.key] for each in able if lines[each.key].basis == BOUND), key=lambda line: line.gain, default=None)
        if bound is not None and bound.allowed > ARTEFACT:
            known = (f"its speedup on {self.wishes.gpu} is not known: {bound.no_speedup}" if bound.no_speedup else
                     f"nothing of it was measured on {self.wishes.gpu}.")
            return f"{told} {bound.name} might gain up to {fmt.times(bound.allowed)}; {known}"
        if chosen.lean is None or self.entry.paradigm == MASKED:
            return told
        saving = saving_in_words(chosen.lean.saving, self.entry.paradigm)
        return f"{told} Where memory is short, {lines[chosen.lean.key].name} runs{saving}."

    def _unnamed_weights(self, plan: Plan) -> Iterator[str]:
        """A sentence where a plan names no weights of a published model."""
        keys = [key for key in ("weights", "decoder_weights") if any(not getattr(cells, key) for cells in plan.cells)]
        needed = [source for source in publications() if source.model == self.entry.name and source.key in keys]
        if needed:
            paths = ", ".join(f"{source.key} = {str(source.located(FOLDER))!r}" for source in needed)
            yield (f"The plan names no {' and no '.join(source.key for source in needed)}, so they are random: it measures speed and "
                   f"memory, and not what images are worth. `cachemark weights fetch {self.entry.name}` fetches them to name them in it: "
                   f"{paths}.")

    def _begins(self, cases: Sequence[Case]) -> str:
        """The batch at which more is read of keys and values than of weights, and that from which on the device can gain."""
        batch, gpu = self.forecaster.passes_weights, self.wishes.gpu
        sentence = ("A masked model saves computation, not bytes." if batch is None else
                f"Keys and values pass the weights in bytes read at batch {batch}.")
        first = self.forecaster.gains_from(cases, MOST)
        if first is None:
            return f"{sentence} At no batch up to {MOST} do the methods here save enough on {gpu} to be told from none."
        return f"{sentence} On {gpu} what the methods here save allows more than {fmt.times(ARTEFACT)} from batch {first} on."


def _by_seeds(claimed: dict[str, Claimed]) -> str:
    """The remedy where no method qualifies, as a sentence with a space before it; empty where there is none."""
    if not claimed:
        return " Measure quality to know more."
    needed = min((each.claim.needed for each in claimed.values() if not each.claim.non_inferior and each.claim.needed), default=None)
    return f" About {needed} seeds would show it of one, if its images went on like these." if needed else ""


def quality_text(line: AdvisedMethod) -> str:
    """The quality of a line with its interval, or a dash."""
    if line.quality is None:
        return fmt.DASH
    value, low, high = (fmt.metric_value(end, line.metric) for end in (line.quality.value, line.quality.low, line.quality.high))
    return f"{metric(line.metric).title} {value}{f' ({low}–{high})' if line.quality.stated else ''}"
