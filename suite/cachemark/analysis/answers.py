"""Which cache to use and at which budget: first a method's images, then what fits, then speed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..core.spec import Case, shown_share
from ..core.units import TIME, metric
from ..stats.intervals import Interval
from . import formatting as fmt
from .case_group import CaseGroup
from .device_limits import OF_SPEED
from .limit_flags import ARTEFACT
from .quality_claims import Claims, QualityClaim, criterion, inconclusive_reason
from .report_row import MASKED, Mark, ReportRow, method_of, share_of_full

FULL_CACHE = "Use the full cache"
WORTH_MEASURING = ARTEFACT  # the least gain for which a prediction counts: roofline times are not known better than that

@dataclass(frozen=True)
class Candidate:
    """One method at a budget beside the full cache.

    ``gain`` is its speed over the full cache's, None where it is not known, and a prediction where it is not ``measured``; ``saving`` the
    share of memory or computation that it saves. ``qualified``: its images are shown to be non-inferior; ``fits``: it stays within the
    memory and the time that there are. ``doubt`` says why its gain is not believed, or is empty.
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
        """True where it is shown to be faster, or predicted to be by enough to be worth a measurement."""
        if self.gain is None or not self.gain.stated or self.doubt:
            return False
        return self.gain.low > (1.0 if self.measured else WORTH_MEASURING)

    @property
    def least_gain(self) -> float:
        """The lower end of the gain: a method that may be slow is not preferred for what it may be at best."""
        return self.gain.low if self.gain else -math.inf


@dataclass(frozen=True)
class Selection:
    """The recommended candidate (``best``), None for the full cache, and the leanest other one (``lean``)."""

    best: Candidate | None
    lean: Candidate | None


def select(candidates: Iterable[Candidate], *, full_fits: bool = True) -> Selection:
    """The fastest of those that are shown to be as good, fit, and are faster.

    Where the full cache does not fit, a method need not be faster than it: the fastest of those that are as good and do fit.
    """
    able = [each for each in candidates if each.qualified and each.fits]
    lean = max((each for each in able if each.saving is not None and each.saving > 0), key=lambda each: each.saving or 0.0, default=None)
    best = max((each for each in able if each.faster or not full_fits), key=lambda each: each.least_gain, default=None)
    return Selection(best, None if lean is best else lean)


@dataclass(frozen=True)
class Answer:
    """One sentence for one model.

    ``row`` is the recommended candidate, None where it is the full cache; ``lean`` the qualified candidate that saves most memory or
    computation where
    that is another; ``ruined`` the one of the others whose images are worst, for comparison; ``needed`` about the number of seeds at which
    one more candidate would be decided. ``numbers`` are the recommended candidate's speed, saving and quality, each with its name and its
    interval as
    text; ``flags`` say why the speed is not to be believed.
    """

    text: str
    row: ReportRow | None = None
    lean: ReportRow | None = None
    ruined: ReportRow | None = None
    needed: int | None = None
    numbers: tuple[tuple[str, str, str], ...] = ()
    flags: tuple[Mark, ...] = ()


def answer(group: CaseGroup, claims: Claims) -> Answer:
    """The candidate that :func:`select` recommends, else the full cache with the reason."""
    if group.full is None or not group.full.ok:
        return Answer("No answer: this run has no full cache to compare with.")
    rows = {row.case.key: row for row in group.candidates if row.ok}
    candidates = [candidate(row, claims) for row in rows.values()]
    chosen, ruined = select(candidates), _ruined(group)
    lean = rows[chosen.lean.key] if chosen.lean else None
    if chosen.best is not None:
        row = rows[chosen.best.key]
        return Answer(_use(row, claims), row, lean, ruined, numbers=tuple(_numbers(row, group)), flags=_flags(row, group))
    needed = min((claim.needed for row in group.candidates if (claim := claims.get(row.case.key)) and not claim.non_inferior
                  and claim.needed),
                 default=None)
    qualified = [each for each in candidates if each.qualified]
    doubt = next((f" {named(rows[each.key].case)}: {each.doubt}" for each in qualified if each.doubt), "")
    text = f"{FULL_CACHE}: {_reason(group, lean, claims, needed, qualified=bool(qualified))}{doubt}"
    row = lean or group.full
    return Answer(text, None, lean, ruined, needed, tuple(_numbers(row, group)), _flags(row, group))


def candidate(row: ReportRow, claims: Claims) -> Candidate:
    """A measured candidate as the rule sees it."""
    return Candidate(row.case.key, row.speedup, row.saving, qualified=row.place is not None and row.case.key in claims,
                     doubt=row.implausible)


def _flags(row: ReportRow, group: CaseGroup) -> tuple[Mark, ...]:
    """The flags that forbid to believe the speed of a row beside the full cache's."""
    rows = (row,) if row is group.full or group.full is None else (row, group.full)
    return tuple(mark for each in rows for mark in each.marks if mark.text in OF_SPEED)


def _numbers(row: ReportRow, group: CaseGroup) -> Iterator[tuple[str, str, str]]:
    """Speed, saving and quality of a row, as far as they are known."""
    whose = "full cache" if row is group.full else named(row.case)
    if row is group.full:
        latency = row.median(TIME)
        if latency is not None:
            yield f"Time of a batch, {whose}", fmt.seconds(latency), ""
    elif row.speedup is not None:
        yield f"Speed, {whose}", fmt.times(row.speedup.value), _ends(row.speedup, "")
    if row is not group.full and row.saving is not None:
        yield ("Fewer FLOPs" if row.paradigm == MASKED else "Less KV"), fmt.percent(row.saving), ""
    name = criterion(group)
    if name in row.quality:
        yield metric(name).title, fmt.metric_value(row.quality[name].value, name), _ends(row.quality[name], name)


def _ends(interval: Interval, name: str) -> str:
    """An interval as text, empty where none is stated."""
    if not interval.stated:
        return ""
    return "–".join(f"{end:.2f}" if name == "" else fmt.metric_value(end, name) for end in (interval.low, interval.high))


def _ruined(group: CaseGroup) -> ReportRow | None:
    """The candidate with the lowest score of single images, or the highest FID, among those without a place."""
    name = criterion(group)
    unplaced = [row for row in group.candidates if row.ok and row.place is None and name in row.quality]
    if not unplaced:
        return None
    worst = metric(name).worst(row.quality[name].value for row in unplaced)
    return next(row for row in unplaced if row.quality[name].value == worst)


def _use(row: ReportRow, claims: Claims) -> str:
    assert row.speedup is not None
    gain = f"{gain_in_words(row.speedup)}{saving_in_words(row.saving, row.paradigm)}"
    return f"Use {named(row.case)}: {gain}, {loss_in_words(claims[row.case.key])}."


def named(case: Case) -> str:
    """A method at its budget."""
    return f"{fmt.name(method_of(case))} at {shown_share(case.budget)}"


def gain_in_words(speed: Interval) -> str:
    """A speedup in words."""
    ends = f" ({speed.low:.2f}–{speed.high:.2f})" if speed.stated else ""
    return f"{fmt.times(speed.value)}{ends} as fast as the full cache"


def saving_in_words(saving: float | None, paradigm: str) -> str:
    """The memory or computation that is saved, in words; empty where there is none."""
    if saving is None or saving <= 0:
        return ""
    return f" with {fmt.percent(saving)} {'fewer FLOPs' if paradigm == MASKED else 'less KV'}"


def loss_in_words(claim: QualityClaim) -> str:
    """The margin within which a candidate's images are shown to be."""
    return f"and its images are shown to lose less than {claim.allowed}"


def _reason(group: CaseGroup, lean: ReportRow | None, claims: Claims, needed: int | None, *, qualified: bool) -> str:
    """The reason for the full cache, and what would change it."""
    mine = [claim for row in group.candidates if (claim := claims.get(row.case.key))]
    if not mine:
        return f"{why_unjudged(random=group.random)}, so no method is shown to be as good."
    allowed = mine[0].allowed
    if not qualified:
        more = f" About {needed} seeds would decide for one of them, if they went on like these." if needed else ""
        return f"at these {max(claim.n for claim in mine)} seeds no method is shown to lose less than {allowed}.{more}"
    slower = f"no method that is shown to lose less than {allowed} is shown to be faster."
    if lean is None or lean.paradigm == MASKED:
        return slower
    return f"{slower} Where memory is short, {named(lean.case)} runs{saving_in_words(lean.saving, lean.paradigm)}."


def why_unjudged(*, random: bool) -> str:
    """The reason why nothing is known of the images."""
    return "weights are random" if random else "the quality of images was not measured"


# -- the budget for each method ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Recommendation:
    """The smallest non-inferior budget of a method, or None with the ``reason``."""

    method: str
    row: ReportRow | None
    reason: str = ""


def recommendations(group: CaseGroup, claims: Claims) -> tuple[Recommendation, ...]:
    """One for the full cache and one for each method; empty where no quality was measured."""
    if criterion(group) == "" or group.full is None or not group.full.ok:
        return ()
    return (Recommendation("full", group.full), *(_recommendation(method, group, claims) for method in group.methods))


def _recommendation(method: str, group: CaseGroup, claims: Claims) -> Recommendation:
    rows = sorted((row for row in group.candidates if row.method == method), key=lambda row: share_of_full(row.case.budget))
    good = next((row for row in rows if not row.unranked and (claim := claims.get(row.case.key)) is not None and claim.non_inferior), None)
    return Recommendation(method, good, "" if good else inconclusive_reason(rows, claims))
