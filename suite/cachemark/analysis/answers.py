"""Recommended cache and budget: non-inferior quality first, then memory and time limits, then speed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..core import formatting as fmt
from ..core.spec import Case, shown_share
from ..core.units import KV, TIME, metric
from ..stats.intervals import Interval
from .case_group import CaseGroup
from .device_limits import OF_SPEED, TOLERANCE
from .quality_claims import Claims, QualityClaim, criterion, fewest_needed, inconclusive_reason
from .report_row import MASKED, Mark, ReportRow, share_of_full

FULL_CACHE, SPEED_ONLY = "Keep the full cache", "Speed only"


@dataclass(frozen=True)
class Candidate:
    """One method at a budget.

    ``gain`` is its speedup, None if unknown, predicted unless ``measured``; ``saving`` the fraction of memory or FLOPs saved.
    ``qualified``: its quality is non-inferior; ``fits``: it is within the limits of memory and time.
    ``doubt`` explains why its gain is implausible.
    """

    key: str
    gain: Interval | None
    saving: float | None
    qualified: bool
    fits: bool = True
    measured: bool = True
    doubt: str = ""

    @property
    def faster(self) -> bool:
        """True if its interval is above 1×, for a prediction above its tolerance."""
        if self.gain is None or not self.gain.stated or self.doubt:
            return False
        return self.gain.low > (1.0 if self.measured else TOLERANCE)

    @property
    def least_gain(self) -> float:
        """Lower end of the gain, the sort key of candidates."""
        return self.gain.low if self.gain else -math.inf


def select(candidates: Iterable[Candidate], *, full_fits: bool = True) -> tuple[Candidate | None, Candidate | None]:
    """Return the fastest candidate that qualifies, fits and beats the full cache, and the largest saving.

    If the full cache does not fit, a candidate need not be faster. The first result is None for the full cache, the second for no saving.
    """
    fitting = [each for each in candidates if each.qualified and each.fits]
    lean = max((each for each in fitting if each.saving is not None and each.saving > 0), key=lambda each: each.saving or 0.0, default=None)
    best = max((each for each in fitting if each.faster or not full_fits), key=lambda each: each.least_gain, default=None)
    return best, None if lean is best else lean


@dataclass(frozen=True)
class Answer:
    """Recommendation for one model: a bold ``verdict`` and the ``details`` after it.

    ``row`` is the recommended row, None for the baseline; ``lean`` the non-inferior row with the largest saving; ``ruined`` the row with
    the worst images, for comparison; ``needed`` the number of seeds that would decide one more row. ``numbers`` are title, value and
    interval of the recommended row's speed, saving and quality; ``flags`` explain why its speed is unreliable.
    """

    verdict: str
    details: str = ""
    row: ReportRow | None = field(default=None, repr=False)
    lean: ReportRow | None = field(default=None, repr=False)
    ruined: ReportRow | None = field(default=None, repr=False)
    needed: int | None = None
    numbers: tuple[tuple[str, str, str], ...] = ()
    flags: tuple[Mark, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.verdict} {self.details}".rstrip()


def answer(group: CaseGroup, claims: Claims) -> Answer:
    """Return the row that :func:`select` recommends, else the baseline with the reason."""
    if group.full is None or not group.full.ok:
        return Answer("No recommendation.", "This run has no full cache to compare with.")
    rows = {row.case.key: row for row in group.candidates if row.ok}
    candidates = [Candidate(row.case.key, row.speedup, row.saving, qualified=row.place is not None and row.case.key in claims,
                            doubt=row.implausible) for row in rows.values()]
    (best, leanest), ruined, name = select(candidates), None, criterion(group)
    if unranked := [row for row in group.candidates if row.ok and row.place is None and name in row.quality]:
        worst = metric(name).worst(row.quality[name].value for row in unranked)
        ruined = next(row for row in unranked if row.quality[name].value == worst)
    lean = rows[leanest.key] if leanest else None
    if best is not None:
        row = _closest_of_ties(rows[best.key], [rows[each.key] for each in candidates if each.qualified and each.faster])
        assert row.speedup is not None
        gain, saving = gain_in_words(row.speedup), saving_in_words(row.saving, row.paradigm)
        details = f"{gain}{saving}{_added(row, group)}, quality loss below {claims[row.case.key].allowed}."
        return Answer(f"Use {named(row)}.", details, row, lean, ruined, numbers=tuple(numbers(row, group)), flags=_flags(row, group))
    own_claims = [claim for row in group.candidates if (claim := claims.get(row.case.key))]
    needed = fewest_needed(own_claims)
    qualified = [each for each in candidates if each.qualified]
    doubt = next((f" {named(rows[each.key])}: {each.doubt}" for each in qualified if each.doubt), "")
    details = f"{_reason(group, lean, own_claims, needed, qualified=bool(qualified))}{doubt}"
    verdict = SPEED_ONLY if group.random else FULL_CACHE
    return Answer(f"{verdict}.", details, None, lean, ruined, needed, tuple(numbers(group.full, group)), _flags(group.full, group))


def _closest_of_ties(best: ReportRow, faster: Sequence[ReportRow]) -> ReportRow:
    """Return the best placed row of the same budget: equally fast methods are ordered by fidelity."""
    same = [row for row in faster if row.case.stated_budget == best.case.stated_budget]
    return min((best, *same), key=lambda row: row.place or math.inf)


def _added(row: ReportRow, group: CaseGroup) -> str:
    """Return the memory that a method keeps in addition to the full cache's, in words."""
    mine, its = row.held_bytes, group.full.held_bytes if group.full else None
    return f", {fmt.size(mine - its)} more memory" if mine is not None and its is not None and mine > its else ""


def _flags(row: ReportRow, group: CaseGroup) -> tuple[Mark, ...]:
    rows = (row,) if row is group.full or group.full is None else (row, group.full)
    marks = [mark for each in rows for mark in each.marks if mark.text in OF_SPEED]
    return tuple({mark.text: mark for mark in marks[::-1]}.values())[::-1]  # the row's own mark, if both have one


def numbers(row: ReportRow, group: CaseGroup) -> Iterator[tuple[str, str, str]]:
    """Yield title, value and interval of a row's speed, saving and quality."""
    if row is group.full:
        latency = row.median(TIME)
        if latency is not None:
            yield "Latency per batch, full cache", fmt.seconds(latency), ""
        if row.paradigm != MASKED and (kv := row.median(KV)) is not None:
            yield "KV memory, full cache", fmt.size(kv), ""
    elif row.speedup is not None:
        yield f"Speedup, {named(row)}", fmt.times(row.speedup.value), _interval(row.speedup, "")
    if row is not group.full and row.saving is not None:
        yield ("FLOPs saved" if row.paradigm == MASKED else "KV memory saved"), fmt.percent(row.saving), ""
    name = criterion(group)
    if name in row.quality:
        yield metric(name).title, fmt.metric_value(row.quality[name].value, name), _interval(row.quality[name], name)


def _interval(interval: Interval, name: str) -> str:
    if not interval.stated:
        return ""
    low, high = (f"{end:.2f}" if name == "" else fmt.metric_value(end, name) for end in (interval.low, interval.high))
    return f"{low.removesuffix(' %')}–{high}"


def named(row: ReportRow) -> str:
    """Return a method with its budget, such as ``LineAR at 1/4``."""
    return at_budget(row.name, row.case)


def at_budget(title: str, case: Case) -> str:
    """Return the title of a case's method with the budget."""
    return f"{fmt.name(title)} at {shown_share(case.stated_budget)}"


def gain_in_words(speed: Interval) -> str:
    """Return ``1.33× speedup (1.21–1.67)``."""
    return f"{fmt.times(speed.value)} speedup{f' ({_interval(speed, str())})' if speed.stated else ''}"


def saving_in_words(saving: float | None, paradigm: str) -> str:
    """Return ``, 49.6 % less KV memory``, or nothing without a saving."""
    if saving is None or saving <= 0:
        return ""
    return f", {fmt.percent(saving)} {'fewer FLOPs' if paradigm == MASKED else 'less KV memory'}"


def _reason(group: CaseGroup, lean: ReportRow | None, claims: Sequence[QualityClaim], needed: int | None, *, qualified: bool) -> str:
    if group.random:
        return _speeds(group)
    if not claims:
        return why_unjudged(random=False)
    if not qualified:
        more = f" About {needed} seeds would decide one method." if needed else ""
        return f"No method is non-inferior at {max(claim.n for claim in claims)} seeds (margin {claims[0].allowed}).{more}"
    slower = "No method of equal quality is measurably faster."
    if lean is None or lean.paradigm == MASKED:
        return slower
    return f"{slower} If memory is the bottleneck, use {named(lean)}: {saving_in_words(lean.saving, lean.paradigm)[2:]}."


def _speeds(group: CaseGroup) -> str:
    """Return the largest measured speedup of a model with random weights, with its bound."""
    timed = [(row.speedup, row) for row in group.candidates if row.ok and row.speedup and not row.implausible]
    if not timed:
        return f"No speedup was measured. {why_unjudged(random=True)}"
    speed, row = max(timed, key=lambda pair: pair[0].value)
    bound = f", at most {fmt.times(row.roofline_speedup)} by the roofline" if row.roofline_speedup else ""
    saving = saving_in_words(row.saving, row.paradigm)
    return f"Fastest: {named(row)}, {gain_in_words(speed)}{bound}{saving}. {why_unjudged(random=True)}"


def why_unjudged(*, random: bool) -> str:
    """Return why the quality of a model's images is unknown."""
    return "Weights are random, so quality is unknown." if random else "Image quality was not measured."


# -- the budget for each method ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Recommendation:
    """Smallest non-inferior budget of a method, or None with the ``reason``."""

    method: str
    title: str
    row: ReportRow | None
    reason: str = ""


def recommendations(group: CaseGroup, claims: Claims) -> tuple[Recommendation, ...]:
    """Return one for the full cache and one for each method; nothing where quality was not measured."""
    if criterion(group) == "" or group.full is None or not group.full.ok:
        return ()
    choices = [Recommendation("full", "full", group.full)]
    for method in group.methods:
        rows = sorted((row for row in group.candidates if row.method == method), key=lambda row: share_of_full(row.case.stated_budget))
        proven = (row for row in rows if not row.unranked and row.case.key in claims and claims[row.case.key].non_inferior)
        smallest = next(proven, None)
        choices.append(Recommendation(method, rows[0].name, smallest, "" if smallest else inconclusive_reason(rows, claims)))
    return tuple(choices)
