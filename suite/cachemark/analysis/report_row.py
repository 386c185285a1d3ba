"""Rows of the leaderboard: a result compared with the full cache of its group."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from operator import sub
from typing import Any

from ..core import formatting as fmt
from ..core.facts import EnergyFacts
from ..core.limits import Limit
from ..core.result import Outcome, full_latencies, kernels_apart
from ..core.spec import DISTRIBUTION, Case
from ..core.units import FLOPS, KV, LIVE_KV, METRICS, OUTSIDE, STATE, TIME, compared_tokens, image_count, least_images, metric, of_plug_ins
from ..stats.intervals import LEVEL, PROCESS_BIAS, Interval, mean_of_means, means_over_seeds, ratio_of_medians

FIDELITY = tuple(name for name, of in METRICS.items() if of.kind == "fidelity")
QUALITY = tuple(name for name, of in METRICS.items() if of.kind == "quality")
FORCED = tuple(name for name, about in METRICS.items() if about.forced)  # along the full cache's own tokens
MASKED = "masked"  # the paradigm whose full form keeps nothing and whose tokens are vectors
APART = "apart "  # before the name of a difference
BUSY_MACHINE = "busy machine"
BUSY = 0.25  # processors that other processes may keep busy before times are flagged
IMPLAUSIBLE = "implausible speedup"  # mark of a speedup above the device's limit
_SHOWS = 0.9  # of a live saving that must be found again in allocated bytes; below it the saving is called fake


@dataclass(frozen=True)
class Mark:
    """Flag next to a row's name. ``tone`` is good, warn or calm; ``reason`` is a sentence."""

    text: str
    tone: str
    reason: str


@dataclass(frozen=True)
class ReportRow:
    """Result with derived values.

    ``speedup`` is relative to the full cache timed in turns, or None with the reason in ``no_speedup``. ``saving`` and ``saving_live`` are
    1 − bytes / bytes of the full cache, allocated and used; ``saving`` of masked models is of FLOPs. ``fidelity`` and ``quality`` are means
    over seeds or values of image sets; ``unjudged``: why both are empty. ``to_full`` holds paired quality differences. ``place`` is
    the rank within a budget, ``tied`` if another row has it too; ``unranked``: why the rank is missing; ``unproven``: quality is only
    inconclusive. ``limit_marks`` flag times that contradict the roofline. ``equal_memory`` is the throughput (images per second) at
    ``equal_memory_batch``, the largest batch that needs no more memory than the full cache.
    """

    outcome: Outcome
    speedup: Interval | None = None
    no_speedup: str = ""
    saving: float | None = None
    saving_live: float | None = None
    fidelity: Mapping[str, Interval] = field(default_factory=dict)
    quality: Mapping[str, Interval] = field(default_factory=dict)
    to_full: Mapping[str, Interval] = field(default_factory=dict)
    unjudged: str = ""
    place: int | None = None
    tied: bool = False
    unranked: str = ""
    unproven: bool = False
    marks: tuple[Mark, ...] = ()
    roofline_speedup: float | None = None
    limit_marks: tuple[Mark, ...] = ()
    equal_memory: float | None = None
    equal_memory_batch: int = 0
    batch_searched: bool = False

    @property
    def rank(self) -> str:
        """``place`` as text: ``1=`` for a tie, empty without a place."""
        return f"{self.place}{'=' if self.tied else ''}" if self.place else ""

    @property
    def case(self) -> Case:
        return self.outcome.case

    @property
    def ok(self) -> bool:
        return self.outcome.ok

    @property
    def images_per_second(self) -> float | None:
        latency = self.median(TIME)
        return self.case.batch / latency if latency else None

    @property
    def limit(self) -> Limit | None:
        """Roofline of the case on its device, None if unknown."""
        return self.outcome.facts.limit if self.ok and self.median(TIME) else None

    @property
    def implausible(self) -> str:
        """Reason why the speedup is implausible, or nothing."""
        return next((mark.reason for mark in self.limit_marks if mark.text == IMPLAUSIBLE), "")

    @property
    def timed(self) -> bool:
        """False for reference rows, which have neither speed nor bytes."""
        return self.case.role in ("candidate", "baseline")

    @cached_property
    def method(self) -> str:
        """Identifier of the method with variant, codec and decoder, as :func:`method_of` writes it."""
        return method_of(self.case)

    @property
    def name(self) -> str:
        """``method`` with titles."""
        return fmt.display_name(self.method, titles_of(self.outcome))

    @property
    def label(self) -> str:
        """Label of the case with titles."""
        return display_label(self.outcome)

    @property
    def paradigm(self) -> str:
        return self.outcome.facts.paradigm or "next-token"

    @property
    def held_bytes(self) -> float | None:
        """Bytes kept between steps: keys, values and state."""
        kv, state = self.median(KV), self.median(STATE)
        return None if kv is None or state is None else kv + state

    @property
    def energy(self) -> EnergyFacts:
        """``source`` and ``error`` of the energy, or why it is ``absent``."""
        return self.outcome.facts.energy or EnergyFacts()

    @property
    def no_energy(self) -> str:
        """Reason why the energy is not known, or an empty text."""
        return self.energy.absent or ""

    @property
    def same_distribution(self) -> bool:
        """True if a decoder samples other images from the full cache's distribution."""
        decoder = self.outcome.facts.decoder
        return decoder is not None and decoder.keeps == DISTRIBUTION

    def of_set(self, base: str) -> tuple[str, Interval] | None:
        """Return name and value of an image-set metric by its base name, such as ``fid``."""
        of_images = {*QUALITY, *OUTSIDE}
        return next(((name, mean) for name, mean in self.quality.items() if name.startswith(f"{base}_") and name not in of_images), None)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on this row, most important first."""
        return (*(mark.reason for mark in self.marks), *self.footnotes)

    @property
    def footnotes(self) -> tuple[str, ...]:
        """Remarks of the method on its numbers."""
        return tuple(self.outcome.facts.footnotes or ())

    def median(self, name: str) -> float | None:
        return self.outcome.median(name)


def titles_of(outcome: Outcome) -> dict[str, str]:
    """Return the title of the method if a plug-in states one, by the method's name."""
    plugin = outcome.facts.plugin
    return {outcome.case.method: plugin.title} if plugin and plugin.title else {}


def display_label(outcome: Outcome) -> str:
    """Return the label of an outcome's case with titles."""
    return fmt.display_name(outcome.case.label, titles_of(outcome))


def method_of(case: Case) -> str:
    """Return method, variant, codec and decoder of a case."""
    if case.codec == "native":
        return case.named
    method = replace(case, decoder={}).named
    return f"{method} {case.codec}{case.named.removeprefix(method)}"


def faster(speedup: Interval) -> bool:
    """Return whether the speedup interval is above 1×."""
    return speedup.stated and speedup.low > 1


def by_definition(case: Case, name: str) -> bool:
    """Return whether a fidelity value compares the full cache with its own images."""
    return case.role == "baseline" and case.engine != "reference" and name in FIDELITY and name not in FORCED


def share_of_full(budget: str) -> float:
    """Return a budget as a number for sorting, 0 if it is not one."""
    try:
        return float(Fraction(budget.partition(" ")[0]))
    except (ValueError, ZeroDivisionError):
        return 0.0


def is_random(case: Case) -> bool:
    """Return whether the weights are random, so that images are noise."""
    return case.weights.startswith("random:")


def rows_of(outcomes: Sequence[Outcome], full: Outcome | None) -> list[ReportRow]:
    """Return the rows of results, compared with the full cache of their group.

    All intervals are computed together."""
    named = {(k, name): values for k, outcome in enumerate(outcomes) if outcome.ok
             for name, values in _values_by_seed(outcome, full).items()}
    intervals: list[dict[str, Interval]] = [{} for _ in outcomes]
    for (k, name), mean in means_over_seeds(named, {key: _range(key[1]) for key in named}).items():
        intervals[k][name] = mean
    return [derive(outcome, full, own) for outcome, own in zip(outcomes, intervals, strict=True)]


def derive(outcome: Outcome, full: Outcome | None, intervals: Mapping[str, Interval]) -> ReportRow:
    """Return the row of a result.

    ``intervals``: intervals of its fidelity, quality and quality differences; an empty mapping leaves them out.
    """
    row = ReportRow(outcome)
    if not outcome.ok:
        return row
    interval, why = _speedup(outcome, full) if row.timed else (None, "Reference rows are not timed.")
    saved = _saved(FLOPS if row.paradigm == MASKED else KV, outcome, full)
    row = replace(row, speedup=interval, no_speedup=why, saving=saved, saving_live=_saved(LIVE_KV, outcome, full))
    row = _with_images_compared(row, full, intervals)
    return replace(row, marks=_marks(row))


def _speedup(outcome: Outcome, full: Outcome | None) -> tuple[Interval | None, str]:
    if outcome.facts.quality_only:
        return None, outcome.facts.quality_only
    if full is None:
        return None, "The full cache has no results."
    mine, its = outcome.raw(TIME), full_latencies(outcome, full)
    if not mine or not its:
        return None, "Latency was not measured."
    if kernels := kernels_apart(outcome, full):
        return None, f"Attention kernels differ: {kernels[0]} here, {kernels[1]} in the full cache."
    return ratio_of_medians(its, mine, process_bias(outcome)[0]), ""


def process_bias(outcome: Outcome) -> tuple[float, int]:
    """Return the process-to-process deviation of the machine, and its number of A/A pairs (0: assumed)."""
    shown = outcome.facts.process_bias
    return (shown.deviation, shown.pairs) if shown and 0 <= shown.deviation < 1 else (PROCESS_BIAS, 0)


def process_bias_in_words(outcome: Outcome) -> str:
    """Return the process-to-process deviation and its origin in words."""
    deviation, pairs = process_bias(outcome)
    if not pairs:
        return f"an assumed {fmt.percent(deviation)} process-to-process variation"
    return f"this machine's process-to-process variation of {fmt.percent(deviation)} ({pairs} A/A pairs)"


def _saved(name: str, outcome: Outcome, full: Outcome | None) -> float | None:
    mine, its = outcome.median(name), full.median(name) if full else None
    return None if mine is None or not its else 1 - mine / its


def _image_metrics(kind: str, outcome: Outcome) -> tuple[str, ...]:
    """Return the metrics of a kind that a result may have, including plug-ins'."""
    return (*(FIDELITY if kind == "fidelity" else QUALITY), *of_plug_ins(outcome.samples, kind))


def _range(name: str) -> tuple[float, float]:
    """Return the range of the values of a metric, or of its differences."""
    return metric(name.removeprefix(APART)).apart if name.startswith(APART) else metric(name).within


def _values_by_seed(outcome: Outcome, full: Outcome | None) -> dict[str, Sequence[float]]:
    """Return fidelity, quality and quality differences from ``full`` by seed; nothing for random weights."""
    if is_random(outcome.case):
        return {}
    names = (*_image_metrics("fidelity", outcome), *_image_metrics("quality", outcome))
    named = {name: values for name in names if (values := outcome.raw(name))}
    return {**named, **{f"{APART}{name}": values for name, values in differences_to_full(outcome, full).items()}}


def _with_images_compared(row: ReportRow, full: Outcome | None, intervals: Mapping[str, Interval]) -> ReportRow:
    outcome, facts = row.outcome, row.outcome.facts
    if is_random(outcome.case):
        return replace(row, unjudged=outcome.unjudged or f"Weights are random ({outcome.case.weights}): images are noise.")
    intervals = {**intervals, **_overall(intervals), **_overall(intervals, APART)}
    sets = {name: (outcome.samples[name][0], *ends) for name, ends in (facts.intervals or {}).items() if outcome.samples.get(name)}
    sets_apart = (facts.to_full or {}) if full is not None and outcome.case.role == "candidate" else {}
    fidelity = {name: intervals[name] for name in _image_metrics("fidelity", outcome) if name in intervals}
    quality = {name: intervals[name] for name in _image_metrics("quality", outcome) if name in intervals}
    apart = {name: intervals[key] for name in _image_metrics("quality", outcome) if (key := f"{APART}{name}") in intervals}
    fidelity.update({name: exactly(mean.value, mean.n) for name, mean in fidelity.items() if by_definition(outcome.case, name)})
    return replace(row, fidelity=fidelity, quality={**quality, **_of_sets(outcome.case, sets)},
                   to_full={**apart, **_of_sets(outcome.case, sets_apart)}, unjudged=outcome.unjudged)


def exactly(value: float, n: int = 1) -> Interval:
    """Return a value without an interval."""
    return Interval(value, value, value, 0.0, n)


def _overall(intervals: Mapping[str, Interval], before: str = "") -> dict[str, Interval]:
    parts = {name: [intervals.get(f"{before}{part}") for part in about.mean_of] for name, about in METRICS.items() if about.mean_of}
    return {f"{before}{name}": mean_of_means([mean for mean in means if mean]) for name, means in parts.items() if all(means)}


def _of_sets(case: Case, sets: Mapping[str, Sequence[float | None]]) -> dict[str, Interval]:
    images = int(case.evaluation.get("quality", {}).get("samples", 0))
    return {name: exactly(value, images) if low is None or high is None else Interval(value, low, high, LEVEL, images)
            for name, (value, low, high) in sets.items()
            if value is not None and least_images(name) <= (image_count(name) or images)}


def differences_to_full(outcome: Outcome, full: Outcome | None) -> dict[str, Sequence[float]]:
    """Return quality differences from the full cache at the same seeds, for candidates only."""
    if full is None or outcome.case.role != "candidate":
        return {}
    pairs = {name: (outcome.raw(name), full.raw(name)) for name in _image_metrics("quality", outcome)}
    return {name: array("d", map(sub, mine, its)) for name, (mine, its) in pairs.items() if mine and its and len(mine) == len(its)}


def _marks(row: ReportRow) -> tuple[Mark, ...]:
    marks, facts, masked = [], row.outcome.facts, row.paradigm == MASKED
    if facts.quality_only:
        marks.append(Mark("not timed", "calm", row.no_speedup))
    elif row.case.role == "candidate" and row.speedup is None:
        marks.append(Mark("no speedup", "warn", row.no_speedup))
    elif facts.different_kernel:
        marks.append(Mark("different kernel", "calm", facts.different_kernel))
    if (load := facts.other_load or 0.0) > BUSY:
        marks.append(Mark(BUSY_MACHINE, "warn", f"Other processes kept {load:.1f} processors busy while it was timed."))
    other_kernel = facts.quality_only or facts.different_kernel or row.case.decoder or row.case.codec != "native"
    alike = facts.idle and not other_kernel
    same = 0.0 if masked else 1.0  # distance or agreement of equal tokens
    if alike and any(value != same for value in row.outcome.raw(compared_tokens(masked=masked))):
        marks.append(Mark("not idle", "warn", "Its declared costs equal the full cache's, but it generates other tokens: "
                          "the declared costs may be wrong."))
    if masked:
        return tuple(marks)
    state = row.median(STATE)
    saved, live = _saved_bytes(row.median(KV), row.saving), _saved_bytes(row.median(LIVE_KV), row.saving_live)
    if saved is not None and live and (row.saving_live or 0) > 0.01 and saved < _SHOWS * live:
        marks.append(Mark("not freed", "warn", f"Used KV memory falls by {fmt.size(live)}, allocated KV memory "
                          f"by {fmt.size(max(saved, 0))}."))
    if state and saved and 0 < saved <= state:
        marks.append(Mark("overhead > savings", "warn", f"The method keeps {fmt.size(state)} of state and saves {fmt.size(saved)} of "
                          "keys and values."))
    return tuple(marks)


def _saved_bytes(remaining: float | None, share: float | None) -> float | None:
    return None if remaining is None or share is None or share >= 1 else remaining * share / (1 - share)


def names_of(cases: Sequence[Case]) -> list[str]:
    """Name each case by model and label, and namesakes by the conditions that differ (``, batch 8``)."""
    conditions = [_conditions(case) for case in cases]
    namesakes: dict[str, list[dict[str, Any]]] = {}
    for case, own in zip(cases, conditions, strict=True):
        namesakes.setdefault(case.title, []).append(own)
    return [", ".join([case.title, *(f"{name} {value}" for name, value in own.items()
                                     if any(other.get(name) != value for other in namesakes[case.title]))])
            for case, own in zip(cases, conditions, strict=True)]


def _conditions(case: Case) -> dict[str, Any]:
    settings = case.to_json()
    return {name: value for name, value in {**settings, **settings["sampling"], **settings["parameters"]}.items()
            if name not in ("sampling", "parameters", "evaluation", "role", "decoder")}
