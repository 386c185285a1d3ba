"""Claims of quality: the images of an arm are shown to be not worse than the full cache's, or they are not. One test for each arm,
corrected over the whole report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from ...core.units import metric
from ...stats.not_worse import ALPHA, holm, least_seeds, p_not_worse, seeds_to_show
from .. import formatting as fmt
from .case_group import CaseGroup
from .report_row import ReportRow, differences_to_full

LEGEND_MARGIN = 0.05  # by which a legend score may fall below the full cache's
SET_MARGIN = 0.10  # of the full cache's FID: by which a FID may lie above it
_NORMAL = NormalDist()
_Z = _NORMAL.inv_cdf(0.975)  # half the width of a stated interval of a FID, in standard errors


@dataclass(frozen=True)
class QualityClaim:
    """One arm against the full cache in the figure ``metric``: a loss of ``margin`` or more has the p-value ``p`` at ``n`` seeds, and
    ``adjusted`` over all ``claims`` of the report. Below ``least`` seeds nothing could be shown; about ``needed`` would show it if they
    went on like these, None where they lose the margin or nobody could make so many."""

    metric: str
    margin: float
    n: int
    p: float
    adjusted: float = 1.0
    claims: int = 1
    least: int = 0
    needed: int | None = None

    @property
    def shown(self) -> bool:
        """True where it is shown to be not worse."""
        return self.n >= self.least and self.adjusted <= ALPHA


Claims = Mapping[str, QualityClaim]


def quality_claims(groups: Sequence[CaseGroup]) -> Claims:
    """The claim of every arm that has figures of quality, by the key of its case. All that a report could claim are one family, also
    those that another rule leaves out of its ranking: which these are depends on the same images."""
    held = [(group, row, alone) for group in groups for row in group.arms if (alone := _alone(row, group)) is not None]
    adjusted = holm([claim.p for _, _, claim in held])
    return {row.case.key: _among(claim, p, len(held), row, group) for (group, row, claim), p in zip(held, adjusted, strict=True)}


def criterion(group: CaseGroup) -> str:
    """The metric by which quality is compared: FID where it was measured, else the legend score; or empty."""
    if group.random:
        return ""
    return group.ranked_by or ("legend" if any("legend" in row.to_full for row in group.arms) else "")


def said(group: CaseGroup, claims: Claims) -> str:
    """The meaning of "not worse" in a paragraph, with what so many seeds can show; empty where quality was not measured."""
    name = criterion(group)
    mine = [claims[row.case.key] for row in group.arms if row.case.key in claims]
    if name == "" or not mine:
        return ""
    title, claim = metric(name).title, mine[0]
    together = "" if claim.claims == 1 else f", over all {claim.claims} comparisons of this report together"
    if name != "legend":
        return (f"Not worse: a {title} that lies {fmt.percent(SET_MARGIN)} or more above the full cache's at the same seeds would look "
                f"like this in at most {100 * ALPHA:g} % of reports{together}.")
    rule = (f"Not worse: a loss of {100 * LEGEND_MARGIN:g} points of legend score or more on average would look like this in at most "
            f"{100 * ALPHA:g} % of reports{together}.")
    n = max(claim.n for claim in mine)
    if n >= claim.least:
        return rule
    width = -metric(name).apart[0]
    best = width * -math.expm1(math.log(ALPHA / claim.claims) / n)
    return (f"{rule} {n} {'seed' if n == 1 else 'seeds'} cannot show it: they rule out a loss of {100 * best:.1f} points at best, and "
            f"{claim.least} seeds are the least for {100 * LEGEND_MARGIN:g}.")


def not_shown(rows: Sequence[ReportRow], claims: Claims) -> str:
    """The reason why none of these rows of a method is shown to be not worse, and the number of seeds that would decide."""
    able = [row for row in rows if row.ok]
    if not able:
        return "No budget has results."
    known = [(row, claims[row.case.key]) for row in able if row.case.key in claims and (row.unproven or not row.unranked)]
    if not known:
        return "At no budget can its images be compared with the full cache's."
    if all(claim.n < claim.least for _, claim in known):
        return f"Too few seeds to say: {max(claim.n for _, claim in known)}, and at least {known[0][1].least} are needed."
    hopeful = [(claim.needed, row) for row, claim in known if claim.needed is not None]
    if not hopeful:
        return "Its images lose the margin or more on average at every budget of the plan."
    needed, row = min(hopeful, key=lambda pair: pair[0])
    budget = fmt.plain(row.case.budget, 20)
    return f"Not shown to be as good at any budget: at {budget} about {needed} seeds would show it, if they go on like these."


def _alone(row: ReportRow, group: CaseGroup) -> QualityClaim | None:
    """The claim of a row by itself, or None where its quality is not known."""
    name = criterion(group)
    if not row.ok or name not in row.to_full or group.full is None or not group.full.ok:
        return None
    if name == "legend":
        gains = differences_to_full(row.outcome, group.full.outcome)[name]
        return QualityClaim(name, LEGEND_MARGIN, len(gains), p_not_worse(gains, LEGEND_MARGIN, metric(name).apart[0]))
    full = group.full.quality.get(name)
    if full is None:
        return None
    margin, (loss, error) = SET_MARGIN * full.value, _loss(row, group, name)
    return QualityClaim(name, margin, row.to_full[name].n, _p_of_set(margin - loss, error))


def _loss(row: ReportRow, group: CaseGroup, name: str) -> tuple[float, float]:
    """The loss of a figure of whole sets, and its standard error with that of the margin, which is a share of an estimate; inf where an
    interval is missing."""
    assert group.full is not None
    apart, full = row.to_full[name], group.full.quality[name]
    if not (apart.stated and full.stated):
        return apart.value, math.inf
    return apart.value, ((apart.high - apart.low) + SET_MARGIN * (full.high - full.low)) / (2 * _Z)


def _p_of_set(room: float, error: float) -> float:
    return _NORMAL.cdf(-room / error) if error else float(room <= 0)


def _among(claim: QualityClaim, adjusted: float, claims: int, row: ReportRow, group: CaseGroup) -> QualityClaim:
    """The claim among so many."""
    if claim.metric != "legend":
        loss, error = _loss(row, group, claim.metric)
        room = claim.margin - loss
        needed = math.ceil(claim.n * (error * _NORMAL.inv_cdf(1 - ALPHA / claims) / room) ** 2) if room > 0 and error < math.inf else None
        return replace(claim, adjusted=adjusted, claims=claims, needed=needed)
    assert group.full is not None
    gains, width = differences_to_full(row.outcome, group.full.outcome)["legend"], metric("legend").apart[0]
    return replace(claim, adjusted=adjusted, claims=claims, least=least_seeds(claim.margin, width, claims),
                   needed=seeds_to_show(gains, claim.margin, width, claims))
