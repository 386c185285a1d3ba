"""The budget to choose for each method: the smallest one whose images are not worse than the full cache's, and its throughput."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from .case_group import CaseGroup
from .quality_claims import Claims, criterion, not_shown
from .report_row import ReportRow, share_of_full


@dataclass(frozen=True)
class Recommendation:
    """``row`` is that of the smallest budget which is shown to be not worse than the full cache, or None with the reason in ``reason``.
    Throughputs are images per second: at the group's batch, and at the largest measured batch (``batch``) that takes no more bytes than
    the full cache at the group's batch, which are None where they were not measured. Where the largest batch that fits was ``searched``
    for, the latter two are what that search found."""

    method: str
    row: ReportRow | None
    reason: str = ""
    equal_batch: float | None = None
    equal_memory: float | None = None
    batch: int = 0
    searched: bool = False


def recommendations(group: CaseGroup, groups: Sequence[CaseGroup], claims: Claims) -> tuple[Recommendation, ...]:
    """One for the full cache and one for each method; ``groups`` are all groups of the report, in which other batches may stand, and
    ``claims`` those of all of them. Empty where no quality was measured."""
    if criterion(group) == "" or group.full is None or not group.full.ok:
        return ()
    full = _valued(Recommendation("full", group.full), group, groups)
    return (full, *(_recommendation(method, group, groups, claims) for method in group.methods))


def _recommendation(method: str, group: CaseGroup, groups: Sequence[CaseGroup], claims: Claims) -> Recommendation:
    rows = sorted((row for row in group.arms if row.method == method), key=lambda row: share_of_full(row.case.budget))
    good = next((row for row in rows if not row.unranked and (claim := claims.get(row.case.key)) is not None and claim.shown), None)
    if good is not None:
        return _valued(Recommendation(method, good), group, groups)
    return Recommendation(method, None, not_shown(rows, claims))


def _valued(plain: Recommendation, group: CaseGroup, groups: Sequence[CaseGroup]) -> Recommendation:
    """The recommendation with its throughputs."""
    row = plain.row
    assert row is not None
    own = row.images_per_second
    for other in _elsewhere(row, group, groups, searched=True):
        rate, largest = other.median("throughput_max"), other.median("max_batch")
        if rate and largest:
            return replace(plain, equal_batch=own, equal_memory=rate, batch=int(largest), searched=True)
    room = group.full.kept if group.full else None
    best, batch = own if row is group.full or _fits(row, room) else None, row.case.batch
    for other in _elsewhere(row, group, groups, searched=False):
        speed = other.images_per_second
        if speed is not None and _fits(other, room) and other.case.batch > batch:
            best, batch = speed, other.case.batch
    return replace(plain, equal_batch=own, equal_memory=best, batch=batch if best is not None else 0)


def _elsewhere(row: ReportRow, group: CaseGroup, groups: Sequence[CaseGroup], *, searched: bool) -> Iterable[ReportRow]:
    """The rows of the same method and budget in groups that differ in nothing but the batch, which was ``searched`` for or is another."""
    for alike in groups:
        if alike.but_batch == group.but_batch and alike.searched == searched and (searched or alike is not group):
            yield from (other for other in alike.rows if other.ok and other.timed
                        and (other.method, other.case.budget) == (row.method, row.case.budget))


def _fits(row: ReportRow, room: float | None) -> bool:
    return room is not None and row.kept is not None and row.kept <= room
