"""The answer to the question that a reader comes with: which cache should I use, and what does it gain and lose?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ...core.spec import shown_share
from ...core.units import metric
from ...stats.intervals import Interval
from .. import formatting as fmt
from .case_group import CaseGroup
from .quality_claims import Claims, QualityClaim, criterion
from .report_row import MASKED, ReportRow, faster
from .standing import margin

FULL_CACHE = "Use the full cache"


@dataclass(frozen=True)
class Answer:
    """One sentence for one model. ``row`` is the recommended arm, None where it is the full cache; ``lean`` the qualified arm that saves
    most memory or computation where that is another; ``ruined`` the one of the others whose images are worst, for comparison; ``needed``
    about the number of seeds at which one more arm would be decided. ``figures`` are the recommended arm's speed, saving and quality,
    each with its name and its interval as text."""

    text: str
    row: ReportRow | None = None
    lean: ReportRow | None = None
    ruined: ReportRow | None = None
    needed: int | None = None
    figures: tuple[tuple[str, str, str], ...] = ()


def answer(group: CaseGroup, claims: Claims) -> Answer:
    """The fastest arm that is shown to be faster than the full cache and no worse, else the full cache with the reason."""
    if group.full is None or not group.full.ok:
        return Answer("No answer: this run has no full cache to compare with.")
    qualified = [row for row in group.arms if row.ok and row.place is not None and row.case.key in claims]
    lean = max((row for row in qualified if row.saving is not None and row.saving > 0), key=lambda row: row.saving or 0, default=None)
    ruined = _ruined(group)
    quick = max((row for row in qualified if row.speed_up is not None and faster(row.speed_up)), key=_least_gain, default=None)
    if quick is not None:
        return Answer(_use(quick, claims), quick, None if lean is quick else lean, ruined, figures=tuple(_figures(quick, group)))
    needed = min((claim.needed for row in group.arms if (claim := claims.get(row.case.key)) and not claim.shown and claim.needed),
                   default=None)
    text = f"{FULL_CACHE}: {_reason(group, qualified, lean, claims, needed)}"
    return Answer(text, None, lean, ruined, needed, tuple(_figures(lean or group.full, group)))


def _figures(row: ReportRow, group: CaseGroup) -> Iterator[tuple[str, str, str]]:
    """Speed, saving and quality of a row, as far as they are known."""
    whose = "full cache" if row is group.full else _named(row)
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


def _least_gain(row: ReportRow) -> float:
    """The lower end of a speed-up: an arm that may be slow is not preferred for what it may be at best."""
    return row.speed_up.low if row.speed_up else -math.inf


def _ruined(group: CaseGroup) -> ReportRow | None:
    """The arm with the lowest legend score, or the highest FID, among those without a place."""
    name = criterion(group)
    known = [row for row in group.arms if row.ok and row.place is None and name in row.quality]
    if not known:
        return None
    worst = metric(name).worst(row.quality[name].value for row in known)
    return next(row for row in known if row.quality[name].value == worst)


def _use(row: ReportRow, claims: Claims) -> str:
    speed = row.speed_up
    assert speed is not None
    return (f"Use {_named(row)}: {fmt.times(speed.value)} ({speed.low:.2f}–{speed.high:.2f}) as fast as the full cache"
            f"{_saves(row)}, {lost(claims[row.case.key])}.")


def _named(row: ReportRow) -> str:
    """A method at its budget."""
    return f"{fmt.name(row.method)} at {shown_share(row.case.budget)}"


def _saves(row: ReportRow) -> str:
    if row.saving is None or row.saving <= 0:
        return ""
    return f" with {fmt.percent(row.saving)} {'fewer FLOPs' if row.paradigm == MASKED else 'less KV'}"


def lost(claim: QualityClaim) -> str:
    """The margin within which an arm's images are shown to be."""
    return f"and its images are shown to lose less than {margin(claim.metric)}"


def _reason(group: CaseGroup, qualified: list[ReportRow], lean: ReportRow | None, claims: Claims, needed: int | None) -> str:
    """The reason for the full cache, and what would change it."""
    name = criterion(group)
    if name == "":
        reason = "weights are random" if group.random else "the quality of images was not measured"
        return f"{reason}, so no method is shown to be as good."
    if not qualified:
        n = max((claim.n for row in group.arms if (claim := claims.get(row.case.key))), default=0)
        more = f" About {needed} seeds would decide for one of them, if they went on like these." if needed else ""
        return f"at these {n} seeds no method is shown to lose less than {margin(name)}.{more}"
    told = f"no method that is shown to lose less than {margin(name)} is shown to be faster."
    return f"{told} Where memory is short, {_named(lean)} runs{_saves(lean)}." if lean is not None and lean.paradigm != MASKED else told
