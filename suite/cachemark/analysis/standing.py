"""The standing of methods: only those that are shown to be as good as the full cache are ranked; the others stand below a line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..core.result import Outcome
from .case_group import CaseGroup, case_groups, ordered
from .quality_claims import MARGINS, Claims, Margins, QualityClaim, criterion, quality_claims
from .report_row import Mark, ReportRow

NOT_RANKED = "not ranked"
UNJUDGED = "The quality of its images was not measured, so nothing shows that they are as good as the full cache's."


def standing(outcomes: Iterable[Outcome], margins: Margins = MARGINS, *, sequential: bool = False) -> tuple[tuple[CaseGroup, ...], Claims]:
    """The groups of a report, in which only qualified methods have a place, and the claims by which they have it. The claims of all groups
    are one family, so a report must be judged whole."""
    groups = case_groups(list(outcomes))
    claims = quality_claims(groups, margins, sequential=sequential)
    return tuple(replace(group, arms=ordered([_qualified(row, group, claims) for row in group.arms])) for group in groups), claims


def _qualified(row: ReportRow, group: CaseGroup, claims: Claims) -> ReportRow:
    """The row without a place, and with the reason, where it is not qualified."""
    if not row.ok or row.unranked or group.searched:
        return row
    why = _disqualified(row, group, claims)
    if not why:
        return row
    return replace(row, place=None, unranked=why, unproven=True, marks=(Mark(NOT_RANKED, "warn", why), *row.marks))


def _disqualified(row: ReportRow, group: CaseGroup, claims: Claims) -> str:
    """The reason why nothing shows that a row's images are as good as the full cache's, or nothing."""
    if criterion(group) == "" or row.case.key not in claims:
        return UNJUDGED
    return why_not(claims[row.case.key])


def why_not(claim: QualityClaim) -> str:
    """The reason why a claim is not shown, and what would show it; nothing where it is shown."""
    if claim.shown:
        return ""
    if claim.n < claim.least:
        return f"Too few seeds to say whether its images are as good: {claim.n}, and at least {claim.least} are needed."
    if claim.lost:
        return f"Its images are shown to lose {claim.allowed} or more on average."
    if claim.loses:
        return f"Its images lose {claim.allowed} or more on average."
    return f"Not shown to lose less than {claim.allowed}: {claim.undecided}."
