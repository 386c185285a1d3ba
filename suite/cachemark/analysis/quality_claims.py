"""Quality claims: is a method non-inferior to the full cache? One test per method, corrected.

Only non-inferior methods are ranked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist

import numpy as np

from ..core import formatting as fmt
from ..core.result import Outcome
from ..core.spec import shown_share
from ..core.units import metric, scores
from ..core.wording import count
from ..stats.intervals import Interval
from ..stats.non_inferiority import ALPHA, MOST, fewest_to_show, holm, least_seeds, loss_that_shows, p_non_inferior, seeds_to_show
from .case_group import CaseGroup, case_groups, ordered
from .report_row import Mark, ReportRow, differences_to_full

UNJUDGED = "Image quality was not measured."
MORE = 4  # factor on the number of seeds, for the losses that more seeds could rule out
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

    ``p`` is the p-value of a ``loss`` of ``margin`` or more at ``n`` seeds, ``adjusted`` over all ``claims`` of the report. ``share``:
    margin as a fraction of the full cache's value, None for a margin in points. ``gains``: differences from the full cache by seed.
    ``error``: standard error of the loss of a FID. ``without_interval`` names whose FID has no interval (``the method`` or ``the full
    cache``).
    """

    metric: str
    margin: float
    n: int
    p: float
    loss: float
    share: float | None = None
    gains: Sequence[float] = ()
    error: float = 0.0
    adjusted: float = 1.0
    claims: int = 1
    without_interval: str = ""

    @cached_property
    def least(self) -> int:
        """The smallest number of seeds that allows a claim."""
        return 0 if self.share is not None else least_seeds(self.margin, metric(self.metric).apart[0], self.claims)

    @cached_property
    def needed(self) -> int | None:
        """Approximate number of seeds that would decide the claim; None if too many, or if the margin is lost."""
        if self.share is None:
            return seeds_to_show(self.gains, self.margin, metric(self.metric).apart[0], self.claims)
        if self.loses or self.without_interval:
            return None
        reach = _NORMAL.inv_cdf(1 - ALPHA / self.claims) / (self.margin - self.loss)
        return math.ceil(self.n * (self.error * reach) ** 2)

    @property
    def loses(self) -> bool:
        """True if these seeds lose the margin or more, significantly or not."""
        return self.loss >= self.margin

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
        """The reason why the quality was not established as non-inferior; empty if it was."""
        if self.non_inferior:
            return ""
        if self.n < self.least:
            return f"Too few seeds: {self.n}; at least {self.least} are needed."
        if self.loses:
            return f"Mean quality loss of {self.allowed} or more."
        return f"Inconclusive: the margin is {self.allowed}; {self.undecided}."


Claims = Mapping[str, QualityClaim]


def quality_claims(groups: Sequence[CaseGroup], margins: Margins = MARGINS) -> Claims:
    """Return the claim of every candidate with quality values, by case key.

    All claims of a report are one family, including methods that another rule excludes from the ranking.
    """
    claims = [claim for group in groups for claim in _claims(group, margins)]
    adjusted = holm([claim.p for _, claim in claims])
    return {row.case.key: replace(claim, adjusted=p, claims=len(claims)) for (row, claim), p in zip(claims, adjusted, strict=True)}


def standing(outcomes: Iterable[Outcome], margins: Margins = MARGINS) -> tuple[tuple[CaseGroup, ...], Claims]:
    """Return the groups of a report, where only non-inferior methods are ranked, and their claims."""
    groups = case_groups(list(outcomes))
    claims = quality_claims(groups, margins)
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
    test = (f"Non-inferiority test, margin {claim.allowed}, family-wise error rate {100 * ALPHA:g} % over "
            f"{count(claim.claims, 'comparison')}.")
    return " ".join(filter(None, (test, seeds_that_decide(own_claims))))


def fewest_needed(claims: Iterable[QualityClaim]) -> int | None:
    """Return the number of seeds that would decide one more claim, None if none can be decided."""
    undecided = [claim for claim in claims if not claim.non_inferior]
    alike: dict[tuple[str, float, int, int], list[Sequence[float]]] = {}
    for claim in undecided:
        if claim.share is None:
            alike.setdefault((claim.metric, claim.margin, claim.claims, len(claim.gains)), []).append(claim.gains)
    numbers = [claim.needed for claim in undecided if claim.share is not None]
    for (name, margin, family, _), gains in alike.items():
        numbers.append(fewest_to_show(np.array(gains), margin, metric(name).apart[0], family))
    return min(filter(None, numbers), default=None)


def seeds_that_decide(claims: Sequence[QualityClaim]) -> str:
    """Return the loss that these and more seeds can rule out, and how many would decide one more claim."""
    if not claims:
        return ""
    largest = max(claims, key=lambda claim: claim.n)
    needed = fewest_needed(claims)
    more = f" About {needed} seeds would decide one more method." if needed else ""
    if largest.share is not None:
        return more.strip()
    width = metric(largest.metric).apart[0]
    now, with_more = (100 * loss_that_shows(seeds, width, largest.claims) for seeds in (largest.n, MORE * largest.n))
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
    uncertain = [(row, claim) for row, claim in compared if not claim.loses]
    if not uncertain:
        return "Mean quality loss above the margin at every budget of the plan."
    row, claim = min(uncertain, key=lambda pair: pair[1].needed or math.inf)
    return f"Inconclusive at every budget: at {fmt.plain(shown_share(row.case.stated_budget), 20)} {claim.undecided}."


def _claims(group: CaseGroup, margins: Margins) -> list[tuple[ReportRow, QualityClaim]]:
    """Return the rows of a group with claims, each as if it were the only one of the report."""
    name, full = criterion(group), group.full
    if full is None or not full.ok:
        return []
    rows = [row for row in group.candidates if row.ok and name in row.to_full]
    if name in scores():
        gains = [differences_to_full(row.outcome, full.outcome)[name] for row in rows]
        chances = p_non_inferior(gains, margins.score, metric(name).apart[0])
        return [(row, QualityClaim(name, margins.score, len(own), p, -row.to_full[name].value, gains=own))
                for row, own, p in zip(rows, gains, chances, strict=True)]
    if (own_value := full.quality.get(name)) is None:
        return []
    return [(row, _claim_of_set(name, row.to_full[name], own_value, margins)) for row in rows]


def _claim_of_set(name: str, apart: Interval, own: Interval, margins: Margins) -> QualityClaim:
    """Return the claim about a FID whose difference from the full cache's ``own`` is ``apart``."""
    margin, error = margins.share * own.value, math.inf
    if apart.stated and own.stated:
        error = ((apart.high - apart.low) + margins.share * (own.high - own.low)) / (2 * _Z)
    without = "" if error < math.inf else "the method" if own.stated else "the full cache"
    p = _NORMAL.cdf((apart.value - margin) / error) if error else float(margin <= apart.value)
    return QualityClaim(name, margin, apart.n, p, apart.value, margins.share, error=error, without_interval=without)
