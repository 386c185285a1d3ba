"""The answer to the question that a reader comes with: which cache should I use, and what does it gain and lose?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..core.spec import Case, shown_share
from ..core.units import metric
from ..stats.intervals import Interval
from . import formatting as fmt
from .case_group import CaseGroup
from .limit_flags import OF_SPEED, disbelieved
from .quality_claims import Claims, QualityClaim, criterion
from .report_row import MASKED, Mark, ReportRow, method_of
from .selection import Candidate, select

FULL_CACHE = "Use the full cache"


@dataclass(frozen=True)
class Answer:
    """One sentence for one model. ``row`` is the recommended arm, None where it is the full cache; ``lean`` the qualified arm that saves
    most memory or computation where that is another; ``ruined`` the one of the others whose images are worst, for comparison; ``needed``
    about the number of seeds at which one more arm would be decided. ``figures`` are the recommended arm's speed, saving and quality,
    each with its name and its interval as text; ``flags`` say why the speed is not to be believed."""

    text: str
    row: ReportRow | None = None
    lean: ReportRow | None = None
    ruined: ReportRow | None = None
    needed: int | None = None
    figures: tuple[tuple[str, str, str], ...] = ()
    flags: tuple[Mark, ...] = ()


def answer(group: CaseGroup, claims: Claims) -> Answer:
    """The arm that :func:`.selection.select` recommends, else the full cache with the reason."""
    if group.full is None or not group.full.ok:
        return Answer("No answer: this run has no full cache to compare with.")
    rows = {row.case.key: row for row in group.arms if row.ok}
    candidates = [candidate(row, group, claims) for row in rows.values()]
    chosen, ruined = select(candidates), _ruined(group)
    lean = rows[chosen.lean.key] if chosen.lean else None
    if chosen.best is not None:
        row = rows[chosen.best.key]
        return Answer(_use(row, claims), row, lean, ruined, figures=tuple(_figures(row, group)), flags=_flags(row, group))
    needed = min((claim.needed for row in group.arms if (claim := claims.get(row.case.key)) and not claim.shown and claim.needed),
                   default=None)
    able = [each for each in candidates if each.qualified]
    doubted = next((f" {named(rows[each.key].case)}: {each.doubt}" for each in able if each.doubt), "")
    text = f"{FULL_CACHE}: {_reason(group, lean, claims, needed, qualified=bool(able))}{doubted}"
    shown = lean or group.full
    return Answer(text, None, lean, ruined, needed, tuple(_figures(shown, group)), _flags(shown, group))


def candidate(row: ReportRow, group: CaseGroup, claims: Claims) -> Candidate:
    """A measured arm as the rule sees it."""
    return Candidate(row.case.key, row.speed_up, row.saving, qualified=row.place is not None and row.case.key in claims,
                     doubt=doubt(row, group))


def doubt(row: ReportRow, group: CaseGroup) -> str:
    """The reason for which the speed-up of a row is not believed, or nothing."""
    return disbelieved(row, group.rows)


def _flags(row: ReportRow, group: CaseGroup) -> tuple[Mark, ...]:
    """The flags that forbid to believe the speed of a row beside the full cache's."""
    rows = (row,) if row is group.full or group.full is None else (row, group.full)
    return tuple(mark for each in rows for mark in each.marks if mark.text in OF_SPEED)


def _figures(row: ReportRow, group: CaseGroup) -> Iterator[tuple[str, str, str]]:
    """Speed, saving and quality of a row, as far as they are known."""
    whose = "full cache" if row is group.full else named(row.case)
    if row is group.full:
        latency = row.median("latency")
        if latency is not None:
            yield f"Time of a batch, {whose}", fmt.seconds(latency), ""
    elif row.speed_up is not None:
        yield f"Speed, {whose}", fmt.times(row.speed_up.value), _ends(row.speed_up, "")
    if row is not group.full and row.saving is not None:
        yield ("Fewer FLOPs" if row.paradigm == MASKED else "Less KV"), fmt.percent(row.saving), ""
    name = criterion(group)
    if name in row.quality:
        yield metric(name).title, fmt.figure(row.quality[name].value, name), _ends(row.quality[name], name)


def _ends(found: Interval, name: str) -> str:
    """An interval as text, empty where none is stated."""
    if not found.stated:
        return ""
    return "–".join(f"{end:.2f}" if name == "" else fmt.figure(end, name) for end in (found.low, found.high))


def _ruined(group: CaseGroup) -> ReportRow | None:
    """The arm with the lowest score of single images, or the highest FID, among those without a place."""
    name = criterion(group)
    known = [row for row in group.arms if row.ok and row.place is None and name in row.quality]
    if not known:
        return None
    worst = metric(name).worst(row.quality[name].value for row in known)
    return next(row for row in known if row.quality[name].value == worst)


def _use(row: ReportRow, claims: Claims) -> str:
    assert row.speed_up is not None
    return f"Use {named(row.case)}: {gained(row.speed_up)}{saves(row.saving, row.paradigm)}, {lost(claims[row.case.key])}."


def named(case: Case) -> str:
    """A method at its budget."""
    return f"{fmt.name(method_of(case))} at {shown_share(case.budget)}"


def gained(speed: Interval) -> str:
    """A speed-up in words."""
    ends = f" ({speed.low:.2f}–{speed.high:.2f})" if speed.stated else ""
    return f"{fmt.times(speed.value)}{ends} as fast as the full cache"


def saves(saving: float | None, paradigm: str) -> str:
    """The memory or computation that is saved, in words; empty where there is none."""
    if saving is None or saving <= 0:
        return ""
    return f" with {fmt.percent(saving)} {'fewer FLOPs' if paradigm == MASKED else 'less KV'}"


def lost(claim: QualityClaim) -> str:
    """The margin within which an arm's images are shown to be."""
    return f"and its images are shown to lose less than {claim.allowed}"


def _reason(group: CaseGroup, lean: ReportRow | None, claims: Claims, needed: int | None, *, qualified: bool) -> str:
    """The reason for the full cache, and what would change it."""
    known = [claim for row in group.arms if (claim := claims.get(row.case.key))]
    if not known:
        return f"{unjudged(random=group.random)}, so no method is shown to be as good."
    allowed = known[0].allowed
    if not qualified:
        more = f" About {needed} seeds would decide for one of them, if they went on like these." if needed else ""
        return f"at these {max(claim.n for claim in known)} seeds no method is shown to lose less than {allowed}.{more}"
    told = f"no method that is shown to lose less than {allowed} is shown to be faster."
    if lean is None or lean.paradigm == MASKED:
        return told
    return f"{told} Where memory is short, {named(lean.case)} runs{saves(lean.saving, lean.paradigm)}."


def unjudged(*, random: bool) -> str:
    """The reason why nothing is known of the images."""
    return "weights are random" if random else "the quality of images was not measured"
