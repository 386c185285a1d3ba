"""Quality claims: is a method non-inferior to the full cache? One test per method, corrected.

Only non-inferior methods are ranked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from ..core.result import Outcome
from ..core.spec import shown_share
from ..core.units import metric, scores
from ..core.wording import count
from ..stats.non_inferiority import (
    ALPHA,
    MOST,
    holm,
    least_seeds,
    loss_that_shows,
    loss_that_shows_at_any_time,
    p_at_any_time,
    p_non_inferior,
    seeds_to_show,
    seeds_to_show_at_any_time,
)
from . import formatting as fmt
from .case_group import CaseGroup, case_groups, ordered
from .report_row import Mark, ReportRow, differences_to_full

UNJUDGED = "Image quality was not measured."
MORE = 4  # factor on the number of seeds, to show what more seeds could rule out
_NORMAL = NormalDist()
_Z = _NORMAL.inv_cdf(0.975)  # half the width of a stated interval of a FID, in standard errors


@dataclass(frozen=True)
class Margins:
    """Non-inferiority margins: of an image's ``score``, and as a ``share`` of the full cache's FID."""

    score: float = 0.05
    share: float = 0.10


MARGINS = Margins()


@dataclass(frozen=True)
class QualityClaim:
    """Non-inferiority test of one method against the full cache in one ``metric``.

    ``p`` is the p-value of a loss of ``margin`` or more at ``n`` seeds, ``adjusted`` over all ``claims`` of the report. ``share`` is the
    margin as a fraction of the full cache's value, None for a margin in points. Below ``least`` seeds no claim is possible; about
    ``needed`` seeds would decide this one (None: the margin is lost, or too many are needed). ``without_interval`` names whose FID has no
    interval (``the method`` or ``the full cache``). ``p_worse`` and ``adjusted_worse`` belong to the opposite test of sequential claims.
    """

    metric: str
    margin: float
    n: int
    p: float
    share: float | None = None
    adjusted: float = 1.0
    claims: int = 1
    least: int = 0
    needed: int | None = None
    p_worse: float = 1.0
    adjusted_worse: float = 1.0
    sequential: bool = False
    loss: float = 0.0
    without_interval: str = ""

    @property
    def loses(self) -> bool:
        """True if these seeds lose the margin or more, significantly or not."""
        return self.loss >= self.margin

    @property
    def inferior(self) -> bool:
        """True if a loss of the margin or more is significant; only sequential claims test this."""
        return self.adjusted_worse <= ALPHA

    @property
    def non_inferior(self) -> bool:
        return self.n >= self.least and self.adjusted <= ALPHA

    @property
    def allowed(self) -> str:
        """The margin in words, such as ``5 points of color consistency``."""
        if self.share is None:
            return f"{100 * self.margin:g} points of {metric(self.metric).title.lower()}"
        return f"{fmt.percent(self.share)} of the full cache's {metric(self.metric).title}"

    @property
    def undecided(self) -> str:
        """The seeds or images that would make an inconclusive claim conclusive."""
        if self.without_interval:
            return f"the {metric(self.metric).title} of {self.without_interval} has no interval, because it depends on few of the images"
        if self.needed is None:
            return f"more than {MOST:,} seeds would be needed"
        return f"about {self.needed} seeds would be needed"

    @property
    def why_not(self) -> str:
        """The reason why quality is not shown to be non-inferior; empty if it is."""
        if self.non_inferior:
            return ""
        if self.n < self.least:
            return f"Too few seeds: {self.n}; at least {self.least} are needed."
        if self.inferior:
            return f"Inferior: quality loss of {self.allowed} or more."
        if self.loses:
            return f"Mean quality loss of {self.allowed} or more."
        return f"Inconclusive: the margin is {self.allowed}; {self.undecided}."


Claims = Mapping[str, QualityClaim]


def quality_claims(groups: Sequence[CaseGroup], margins: Margins = MARGINS, *, sequential: bool = False) -> Claims:
    """Return the claim of every candidate with quality values, by case key.

    All claims of a report are one family, including methods that another rule excludes from the ranking. ``sequential``: seeds were added
    with interim analyses.
    """
    claims = [(group, row, claim) for group in groups for row in group.candidates if (claim := _alone(row, group, margins, sequential))]
    adjusted, worse = holm([claim.p for _, _, claim in claims]), holm([claim.p_worse for _, _, claim in claims])
    return {row.case.key: replace(_among(claim, p, len(claims), row, group, sequential), adjusted_worse=p_worse)
            for (group, row, claim), p, p_worse in zip(claims, adjusted, worse, strict=True)}


def standing(outcomes: Iterable[Outcome], margins: Margins = MARGINS, *, sequential: bool = False) -> tuple[tuple[CaseGroup, ...], Claims]:
    """Return the groups of a report, where only non-inferior methods are ranked, and their claims."""
    groups = case_groups(list(outcomes))
    claims = quality_claims(groups, margins, sequential=sequential)
    return tuple(replace(group, candidates=ordered([_qualified(row, group, claims) for row in group.candidates]))
                 for group in groups), claims


def _qualified(row: ReportRow, group: CaseGroup, claims: Claims) -> ReportRow:
    if not row.ok or row.unranked or group.searched:
        return row
    claim = claims.get(row.case.key) if criterion(group) else None
    why = claim.why_not if claim else UNJUDGED
    if not why:
        return row
    return replace(row, place=None, unranked=why, unproven=True, marks=(Mark("not ranked", "warn", why), *row.marks))


def criterion(group: CaseGroup) -> str:
    """Return the metric of quality: FID if measured, else the score of single images, else nothing."""
    if group.random:
        return ""
    return group.ranked_by or next((name for name in scores() if any(name in row.to_full for row in group.candidates)), "")


def margin_sentence(group: CaseGroup, claims: Claims) -> str:
    """Return the test of "equal quality" and the losses that its seeds can rule out."""
    own_claims = [claims[row.case.key] for row in group.candidates if row.case.key in claims]
    if not criterion(group) or not own_claims:
        return ""
    claim = own_claims[0]
    kind = "Sequential non-inferiority test" if claim.sequential else "Non-inferiority test"
    test = f"{kind}, margin {claim.allowed}, family-wise error rate {100 * ALPHA:g} % over {count(claim.claims, 'comparison')}."
    return " ".join(filter(None, (test, seeds_that_decide(own_claims))))


def seeds_that_decide(claims: Sequence[QualityClaim]) -> str:
    """Return the loss that these and more seeds can rule out, and how many would decide one more claim."""
    if not claims:
        return ""
    largest = max(claims, key=lambda claim: claim.n)
    needed = min((claim.needed for claim in claims if not claim.non_inferior and claim.needed), default=None)
    more = f" About {needed} seeds would decide one more method." if needed else ""
    if largest.share is not None:
        return more.strip()
    shows, width = loss_that_shows_at_any_time if largest.sequential else loss_that_shows, metric(largest.metric).apart[0]
    now, with_more = (100 * shows(seeds, width, largest.claims) for seeds in (largest.n, MORE * largest.n))
    return (f"At best, {count(largest.n, 'seed')} can rule out losses above {now:.1f} points; {MORE * largest.n} seeds, above "
            f"{with_more:.1f}.{more}")


def inconclusive_reason(rows: Sequence[ReportRow], claims: Claims) -> str:
    """Return why no row of a method is non-inferior, and how many seeds would decide."""
    measured = [row for row in rows if row.ok]
    if not measured:
        return "No budget has results."
    compared = [(row, claims[row.case.key]) for row in measured if row.case.key in claims and (row.unproven or not row.unranked)]
    if not compared:
        return "Quality cannot be compared at any budget."
    if all(claim.n < claim.least for _, claim in compared):
        return f"Too few seeds: {max(claim.n for _, claim in compared)}; at least {compared[0][1].least} are needed."
    if all(claim.inferior for _, claim in compared):
        return "Inferior at every budget of the plan."
    uncertain = [(row, claim) for row, claim in compared if not claim.loses]
    if not uncertain:
        return "Mean quality loss above the margin at every budget of the plan."
    row, claim = min(uncertain, key=lambda pair: pair[1].needed or math.inf)
    return f"Inconclusive at every budget: at {fmt.plain(shown_share(row.case.budget), 20)} {claim.undecided}."


def _alone(row: ReportRow, group: CaseGroup, margins: Margins, sequential: bool) -> QualityClaim | None:
    name = criterion(group)
    if not row.ok or name not in row.to_full or group.full is None or not group.full.ok:
        return None
    if name in scores():
        gains = differences_to_full(row.outcome, group.full.outcome)[name]
        least, most = metric(name).apart
        loss = -row.to_full[name].value
        if not sequential:
            return QualityClaim(name, margins.score, len(gains), p_non_inferior(gains, margins.score, least), loss=loss)
        better, worse = p_at_any_time(gains, margins.score, least), p_at_any_time([-gain for gain in gains], -margins.score, -most)
        return QualityClaim(name, margins.score, len(gains), float(better[-1]), p_worse=float(worse[-1]), sequential=True, loss=loss)
    full = group.full.quality.get(name)
    if full is None:
        return None
    margin, (loss, error) = margins.share * full.value, _loss(row, group, name, margins.share)
    without = "" if error < math.inf else "the method" if full.stated else "the full cache"
    p = _NORMAL.cdf((loss - margin) / error) if error else float(margin <= loss)
    return QualityClaim(name, margin, row.to_full[name].n, p, margins.share, loss=loss, without_interval=without)


def _loss(row: ReportRow, group: CaseGroup, name: str, share: float) -> tuple[float, float]:
    assert group.full is not None
    apart, full = row.to_full[name], group.full.quality[name]
    if not (apart.stated and full.stated):
        return apart.value, math.inf
    return apart.value, ((apart.high - apart.low) + share * (full.high - full.low)) / (2 * _Z)


def _among(claim: QualityClaim, adjusted: float, claims: int, row: ReportRow, group: CaseGroup, sequential: bool) -> QualityClaim:
    if claim.share is not None:
        able, (_, error) = not (claim.loses or claim.without_interval), _loss(row, group, claim.metric, claim.share)
        reach = _NORMAL.inv_cdf(1 - ALPHA / claims) / (claim.margin - claim.loss) if able else 0.0
        return replace(claim, adjusted=adjusted, claims=claims, needed=math.ceil(claim.n * (error * reach) ** 2) if able else None)
    assert group.full is not None
    gains, width = differences_to_full(row.outcome, group.full.outcome)[claim.metric], metric(claim.metric).apart[0]
    if sequential:
        needed = seeds_to_show_at_any_time(gains, claim.margin, width, claims)
        return replace(claim, adjusted=adjusted, claims=claims, needed=needed,
                       least=seeds_to_show_at_any_time([0.0], claim.margin, width, claims) or 0)
    return replace(claim, adjusted=adjusted, claims=claims, least=least_seeds(claim.margin, width, claims),
                   needed=seeds_to_show(gains, claim.margin, width, claims))
