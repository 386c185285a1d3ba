"""One line of the headline table: what is derived from an outcome and the full cache of its cell."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import TypeVar

from ..core.limits import Limit
from ..core.result import Outcome, full_latencies, kernels_apart
from ..core.spec import DISTRIBUTION, Case
from ..core.units import FLOPS, KV, LIVE_KV, METRICS, OUTSIDE, STATE, TIME, image_count, least_images, metric, of_plug_ins
from ..stats.intervals import LEVEL, Interval, mean_of_means, means_over_seeds, ratio_of_medians
from . import formatting as fmt
from .display_names import display_name

Key = TypeVar("Key", bound=Hashable)
FIDELITY = tuple(name for name, of in METRICS.items() if of.kind == "fidelity")
OF_INDICES, OF_VECTORS = (tuple(name for name, about in METRICS.items() if about.tokens == kind) for kind in ("indices", "vectors"))
QUALITY = tuple(name for name, of in METRICS.items() if of.kind == "quality")
FORCED = tuple(name for name, about in METRICS.items() if about.forced)  # along the full cache's own tokens
ON_DEMAND = {name: about.plan_name for name, about in METRICS.items() if about.plan_name}  # measured only where the case asks for this
MASKED = "masked"  # the paradigm whose full form keeps nothing and whose tokens are vectors
APART = "apart "  # before the name of a difference
IMPLAUSIBLE = "implausible speedup"  # mark of a speedup beyond what the device allows
_SHOWS = 0.9  # of a live saving that must be found again in allocated bytes; below it the saving is called fake


@dataclass(frozen=True)
class Mark:
    """A short word beside a row's name. ``tone`` is good, warn or calm; ``reason`` is a full sentence."""

    text: str
    tone: str
    reason: str


@dataclass(frozen=True)
class ReportRow:
    """An outcome with what follows from it.

    ``speedup`` is the median latency of the full cache beside it over its own, or None with the reason in ``no_speedup``. ``saving`` and
    ``saving_live`` are 1 − bytes / bytes of the full cache, allocated and live; in a masked model ``saving`` is of FLOPs.
    ``fidelity`` and ``quality`` hold the means over seeds, the latter also values of whole sets of images; where both are empty,
    ``no_judgement`` says why. ``to_full`` holds differences of quality, this row less the full cache, at the same seeds.
    ``place`` orders the ranked methods of one budget, by FID where it was measured, else by speedup; ``unranked`` says why there is
    none, and ``unproven`` that it is for want of proof alone. ``lossless``: no further from the full cache than it is from itself.
    ``roofline_speedup``: the speedup that the device allows; ``limit_marks`` flag what contradicts its limits. ``equal_memory``: the
    throughput (images per second) at the largest batch, ``equal_memory_batch``, that needs no more memory than the full cache.
    """

    outcome: Outcome
    speedup: Interval | None = None
    no_speedup: str = ""
    saving: float | None = None
    saving_live: float | None = None
    fidelity: Mapping[str, Interval] = field(default_factory=dict)
    quality: Mapping[str, Interval] = field(default_factory=dict)
    to_full: Mapping[str, Interval] = field(default_factory=dict)
    no_judgement: str = ""
    place: int | None = None
    unranked: str = ""
    unproven: bool = False
    lossless: bool = False
    marks: tuple[Mark, ...] = ()
    roofline_speedup: float | None = None
    limit_marks: tuple[Mark, ...] = ()
    equal_memory: float | None = None
    equal_memory_batch: int = 0
    batch_searched: bool = False

    @property
    def case(self) -> Case:
        return self.outcome.case

    @property
    def ok(self) -> bool:
        return self.outcome.ok

    @property
    def images_per_second(self) -> float | None:
        """Images of a batch over its median latency, or None where it was not timed."""
        latency = self.median(TIME)
        return self.case.batch / latency if latency else None

    @cached_property
    def limit(self) -> Limit | None:
        """The roofline time of the case on its device; None where it is unknown or stored in another form."""
        stored = self.outcome.facts.get("limit") if self.ok and self.median(TIME) else None
        try:
            return Limit.from_json(stored) if isinstance(stored, dict) else None
        except (KeyError, TypeError):
            return None

    @property
    def implausible(self) -> str:
        """The reason why its speedup exceeds what the device allows; empty where it does not."""
        return next((mark.reason for mark in self.limit_marks if mark.text == IMPLAUSIBLE), "")

    @property
    def timed(self) -> bool:
        """Reference rows of fidelity carry neither speed nor bytes."""
        return self.case.role in ("candidate", "baseline")

    @cached_property
    def method(self) -> str:
        """Identifier of the method with variant, codec and decoder, as :func:`method_of` writes it."""
        return method_of(self.case)

    @property
    def name(self) -> str:
        """``method`` with the papers' names."""
        return display_name(self.method)

    @property
    def label(self) -> str:
        """Label of the case with the papers' names."""
        return display_name(self.case.label)

    @property
    def paradigm(self) -> str:
        """That of the model, next-token where an outcome does not say."""
        return str(self.outcome.facts.get("paradigm", "next-token"))

    @property
    def held_bytes(self) -> float | None:
        """Bytes that the method keeps between passes: keys, values and state."""
        kv, state = self.median(KV), self.median(STATE)
        return None if kv is None or state is None else kv + state

    def fits(self, room: float | None) -> bool:
        """Return whether the method is known to keep no more than ``room`` bytes between passes."""
        return room is not None and self.held_bytes is not None and self.held_bytes <= room

    @property
    def same_distribution(self) -> bool:
        """True under a decoder whose tokens follow the distribution of the full cache's and are others."""
        stored = self.outcome.facts.get("decoder")
        return isinstance(stored, Mapping) and stored.get("keeps") == DISTRIBUTION

    def of_set(self, base: str) -> tuple[str, Interval] | None:
        """The value of a whole set of images whose name begins so, ``fid`` say, with its whole name."""
        of_images = {*QUALITY, *OUTSIDE}
        return next(((name, mean) for name, mean in self.quality.items() if name.startswith(f"{base}_") and name not in of_images), None)

    @property
    def reason(self) -> str:
        """The reason why there are no values, in one line."""
        return self.outcome.reason

    @property
    def notes(self) -> tuple[str, ...]:
        """Everything a reader should know about this row, most important first."""
        return (*(mark.reason for mark in self.marks), *self.footnotes)

    @property
    def footnotes(self) -> tuple[str, ...]:
        """Remarks of the method itself on its numbers."""
        written = self.outcome.facts.get("footnotes") or ()
        return (written,) if isinstance(written, str) else tuple(str(note) for note in written)

    def median(self, name: str) -> float | None:
        return self.outcome.median(name)

    def fact(self, name: str) -> str:
        """A fact as text, empty where it is absent."""
        value = self.outcome.facts.get(name)
        return "" if value is None else str(value)


def method_of(case: Case) -> str:
    """The label of a case without budget and role: method, variant, codec and decoder."""
    if case.codec == "native":
        return case.named
    method = replace(case, decoder={}).named
    return f"{method} {case.codec}{case.named.removeprefix(method)}"


def faster(speedup: Interval) -> bool:
    """Return whether a speedup is shown to be one."""
    return speedup.stated and speedup.low > 1


def by_definition(case: Case, name: str) -> bool:
    """True for the full cache's fidelity to its own images.

    Along its own tokens it runs again, as does another engine than ours. Along its own tokens it does run again, as does another engine
    than ours.
    """
    return case.role == "baseline" and case.engine != "reference" and name in FIDELITY and name not in FORCED


def share_of_full(budget: str) -> float:
    """A budget's text as a number; a text that is none counts as 0, for order only."""
    try:
        return float(Fraction(budget))
    except (ValueError, ZeroDivisionError):
        return 0.0


def is_random(case: Case) -> bool:
    """Random weights draw noise: neither fidelity nor quality means anything then."""
    return case.weights.startswith("random:")


def derive(outcome: Outcome, full: Outcome | None, intervals: Mapping[str, Interval] | None = None) -> ReportRow:
    """The row of ``outcome``, with speed and bytes set against ``full``, the full cache of its cell.

    ``intervals`` are the :func:`means` of its :func:`values_by_seed`, where they are known.
    """
    row = ReportRow(outcome)
    if not outcome.ok:
        return row
    interval, why = _speedup(outcome, full) if row.timed else (None, "Reference rows are not timed.")
    saved = _saved(FLOPS if row.paradigm == MASKED else KV, outcome, full)
    row = replace(row, speedup=interval, no_speedup=why, saving=saved, saving_live=_saved(LIVE_KV, outcome, full))
    row = _with_images_compared(row, full, means(values_by_seed(outcome, full), str) if intervals is None else intervals)
    return replace(row, marks=_marks(row))


def _speedup(outcome: Outcome, full: Outcome | None) -> tuple[Interval | None, str]:
    if outcome.facts.get("quality_only"):
        return None, str(outcome.facts["quality_only"])
    if full is None:
        return None, "The full cache has no results."
    mine, its = outcome.repeats(TIME), full_latencies(outcome, full)
    if not mine or not its:
        return None, "Latency was not measured."
    if kernels := kernels_apart(outcome, full):
        return None, f"Attention kernels differ: {kernels[0]} here, {kernels[1]} in the full cache."
    return ratio_of_medians(its, mine), ""


def _saved(name: str, outcome: Outcome, full: Outcome | None) -> float | None:
    mine, its = outcome.median(name), full.median(name) if full else None
    return None if mine is None or not its else 1 - mine / its


def fidelity_of(outcome: Outcome) -> tuple[str, ...]:
    """Metrics of fidelity that an outcome may have: ours, and those of plug-ins that it has."""
    return (*FIDELITY, *of_plug_ins(outcome.samples, "fidelity"))


def quality_of(outcome: Outcome) -> tuple[str, ...]:
    """Metrics of quality that an outcome may have, likewise."""
    return (*QUALITY, *of_plug_ins(outcome.samples, "quality"))


def values_by_seed(outcome: Outcome, full: Outcome | None) -> dict[str, Sequence[float]]:
    """Values by seed of an outcome: fidelity, quality, and differences of quality to ``full``.

    Empty for random weights. Where raw values were pruned the stored mean stands alone, so that it has no interval, and there is no
    difference.
    """
    if is_random(outcome.case):
        return {}
    names = (*fidelity_of(outcome), *quality_of(outcome))
    named = {name: outcome.raw(name) or [mean] for name in names if (mean := outcome.mean(name)) is not None}
    return {**named, **{f"{APART}{name}": values for name, values in differences_to_full(outcome, full).items()}}


def means(named: Mapping[Key, Sequence[float]], name: Callable[[Key], str]) -> dict[Key, Interval]:
    """The mean and interval of each of some values; ``name`` gives the name that :func:`values_by_seed` gave it."""
    return means_over_seeds(named, {key: _within(name(key)) for key in named})


def _within(name: str) -> tuple[float, float]:
    return metric(name.removeprefix(APART)).apart if name.startswith(APART) else metric(name).within


def _with_images_compared(row: ReportRow, full: Outcome | None, intervals: Mapping[str, Interval]) -> ReportRow:
    """The row with fidelity, quality and its difference to ``full``, or with why there is none.

    Values of random weights are withheld.
    """
    outcome, facts = row.outcome, row.outcome.facts
    if is_random(outcome.case):
        return replace(row, no_judgement=outcome.judgement or f"Weights are random ({outcome.case.weights}): images are noise.")
    intervals = {**intervals, **_overall(intervals), **_overall(intervals, APART)}
    sets = {name: (outcome.samples[name][0], *ends) for name, ends in facts.get("intervals", {}).items() if outcome.samples.get(name)}
    sets_apart = facts.get("to_full", {}) if full is not None and outcome.case.role == "candidate" else {}
    apart = {name: intervals[key] for name in quality_of(outcome) if (key := f"{APART}{name}") in intervals}
    fidelity = {name: intervals[name] for name in fidelity_of(outcome) if name in intervals}
    fidelity.update({name: exactly(mean.value, mean.n) for name, mean in fidelity.items() if by_definition(outcome.case, name)})
    return replace(row, fidelity=fidelity,
                   quality={**{name: intervals[name] for name in quality_of(outcome) if name in intervals}, **_of_sets(outcome.case, sets)},
                   to_full={**apart, **_of_sets(outcome.case, sets_apart)}, no_judgement=outcome.judgement)


def exactly(value: float, n: int = 1) -> Interval:
    """A value without an interval."""
    return Interval(value, value, value, 0.0, n)


def _overall(intervals: Mapping[str, Interval], before: str = "") -> dict[str, Interval]:
    parts = {name: [intervals.get(f"{before}{part}") for part in about.mean_of] for name, about in METRICS.items() if about.mean_of}
    return {f"{before}{name}": mean_of_means([mean for mean in means if mean]) for name, means in parts.items() if all(means)}


def _of_sets(case: Case, sets: Mapping[str, Sequence[float]]) -> dict[str, Interval]:
    """Values of whole sets of images, (value, low, high) by name.

    What so few images cannot state is left out. What so few images cannot state is left out, as an older version did not.
    """
    images = int(case.evaluation.get("quality", {}).get("samples", 0))
    return {name: _of_set(float(value), low, high, images) for name, (value, low, high) in sets.items()
            if least_images(name) <= (image_count(name) or images)}


def _of_set(value: float, low: float | None, high: float | None, images: int) -> Interval:
    return exactly(value, images) if low is None or high is None else Interval(value, low, high, LEVEL, images)


def differences_to_full(outcome: Outcome, full: Outcome | None) -> dict[str, list[float]]:
    """Differences of quality to the full cache at the same seeds, for candidates only."""
    if full is None or outcome.case.role != "candidate":
        return {}
    pairs = {name: (outcome.raw(name), full.raw(name)) for name in quality_of(outcome)}
    return {name: [a - b for a, b in zip(mine, its, strict=True)] for name, (mine, its) in pairs.items()
            if mine and its and len(mine) == len(its)}


def _marks(row: ReportRow) -> tuple[Mark, ...]:
    marks = []
    if row.outcome.facts.get("quality_only"):
        marks.append(Mark("not timed", "calm", row.no_speedup))
    elif row.case.role == "candidate" and row.speedup is None:
        marks.append(Mark("no speedup", "warn", row.no_speedup))
    elif own := row.outcome.facts.get("different_kernel"):
        marks.append(Mark("different kernel", "calm", str(own)))
    if row.paradigm != MASKED:
        marks += _bytes(row)
    return tuple(marks)


def _bytes(row: ReportRow) -> list[Mark]:
    marks, state = [], row.median(STATE)
    saved, live = _saved_bytes(row.median(KV), row.saving), _saved_bytes(row.median(LIVE_KV), row.saving_live)
    if saved is not None and live and (row.saving_live or 0) > 0.01 and saved < _SHOWS * live:
        marks.append(Mark("not freed", "warn", f"Used KV memory falls by {fmt.size(live)}, allocated KV memory "
                          f"by {fmt.size(max(saved, 0))}."))
    if state and saved and 0 < saved <= state:
        marks.append(Mark("overhead > savings", "warn", f"The method keeps {fmt.size(state)} of state and saves {fmt.size(saved)} of "
                          "keys and values."))
    return marks


def _saved_bytes(remaining: float | None, share: float | None) -> float | None:
    return None if remaining is None or share is None or share >= 1 else remaining * share / (1 - share)
