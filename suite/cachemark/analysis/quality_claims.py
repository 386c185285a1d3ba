"""Quality claims: is a method non-inferior to the full cache? One test per method, corrected.

Only methods that are shown to be non-inferior have a place in the ranking.
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
from ..stats.non_inferiority import ALPHA, MOST, holm, least_seeds, loss_that_shows, p_non_inferior, seeds_to_show
from ..stats.sequential import loss_that_shows_at_any_time, p_at_any_time, seeds_to_show_at_any_time
from . import formatting as fmt
from .case_group import CaseGroup, case_groups, ordered
from .report_row import Mark, ReportRow, differences_to_full

UNJUDGED = "The quality of its images was not measured, so nothing shows that they are as good as the full cache's."
MORE = 4  # times as many seeds, of which it is said what they could show
_NORMAL = NormalDist()
_Z = _NORMAL.inv_cdf(0.975)  # half the width of a stated interval of a FID, in standard errors


@dataclass(frozen=True)
class Margins:
    """Margins of non-inferiority: of an image's ``score``, and as a ``share`` of the full cache's FID."""

    score: float = 0.05
    share: float = 0.10


MARGINS = Margins()


@dataclass(frozen=True)
class QualityClaim:
    """One method against the full cache in one ``metric``.

    A loss of ``margin`` or more has the p-value ``p`` at ``n`` seeds, and ``adjusted`` over all ``claims`` of the report. ``share``: the
    margin as one of the full cache's value, None where it is a number of points. Below ``least`` seeds nothing could be shown; about
    ``needed`` would show it if they went on like these, None where they lose the margin, where nobody could make so many, or where
    ``without_interval`` says whose value has none (``its`` or ``the full cache's``). ``loss`` is that of these seeds. Where the claim is
    ``sequential``, ``p_worse`` and ``adjusted_worse`` are those of a loss of less than the margin.
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
        """True where these seeds lose the margin or more, shown or not."""
        return self.loss >= self.margin

    @property
    def inferior(self) -> bool:
        """True where a loss of the margin or more is shown, which only sequential claims test."""
        return self.adjusted_worse <= ALPHA

    @property
    def non_inferior(self) -> bool:
        """True where it is shown to be non-inferior."""
        return self.n >= self.least and self.adjusted <= ALPHA

    @property
    def allowed(self) -> str:
        """The margin in words with what its score sees: no sentence may claim more of the images."""
        if self.share is None:
            sees = f" ({about})" if (about := metric(self.metric).sees) else ""
            return f"{100 * self.margin:g} points of {metric(self.metric).title.lower()}{sees}"
        return f"{fmt.percent(self.share)} of the full cache's {metric(self.metric).title}"

    @property
    def undecided(self) -> str:
        """The reason, as a clause, why the claim is inconclusive, and what would decide it."""
        if self.without_interval:
            return (f"{self.without_interval} {metric(self.metric).title} has no interval, since few images decide it; "
                    "more images may give one")
        if self.needed is None:
            return f"even {MOST:,} seeds would not show it, if they went on like these"
        return f"about {self.needed} seeds would show it, if they went on like these"

    @property
    def why_not(self) -> str:
        """The reason why the method is not shown to be non-inferior, and what would decide it; empty where it is."""
        if self.non_inferior:
            return ""
        if self.n < self.least:
            return f"Too few seeds to say whether its images are as good: {self.n}, and at least {self.least} are needed."
        if self.inferior:
            return f"Its images are shown to lose {self.allowed} or more on average."
        if self.loses:
            return f"Its images lose {self.allowed} or more on average."
        return f"Inconclusive within {self.allowed}: {self.undecided}."


Claims = Mapping[str, QualityClaim]


def quality_claims(groups: Sequence[CaseGroup], margins: Margins = MARGINS, *, sequential: bool = False) -> Claims:
    """The claim of every candidate that has values of quality, by the key of its case.

    All that a report could claim are one family, also those that another rule leaves out of its ranking: which these are depends on the
    same images. ``sequential``: they were looked at while seeds were added, and are judged by the test that allows it.
    """
    claims = [(group, row, claim) for group in groups for row in group.candidates if (claim := _alone(row, group, margins, sequential))]
    adjusted, worse = holm([claim.p for _, _, claim in claims]), holm([claim.p_worse for _, _, claim in claims])
    return {row.case.key: replace(_among(claim, p, len(claims), row, group, sequential), adjusted_worse=p_worse)
            for (group, row, claim), p, p_worse in zip(claims, adjusted, worse, strict=True)}


def standing(outcomes: Iterable[Outcome], margins: Margins = MARGINS, *, sequential: bool = False) -> tuple[tuple[CaseGroup, ...], Claims]:
    """The groups of a report, where only non-inferior methods have a place, and their claims.

    The claims of all groups are one family.
    """
    groups = case_groups(list(outcomes))
    claims = quality_claims(groups, margins, sequential=sequential)
    return tuple(replace(group, candidates=ordered([_qualified(row, group, claims) for row in group.candidates]))
                 for group in groups), claims


def _qualified(row: ReportRow, group: CaseGroup, claims: Claims) -> ReportRow:
    """The row, with the reason and without a rank unless it is non-inferior."""
    if not row.ok or row.unranked or group.searched:
        return row
    claim = claims.get(row.case.key) if criterion(group) else None
    why = claim.why_not if claim else UNJUDGED
    if not why:
        return row
    return replace(row, place=None, unranked=why, unproven=True, marks=(Mark("not ranked", "warn", why), *row.marks))


def criterion(group: CaseGroup) -> str:
    """The metric of quality: FID where it was measured, else the score of single images; or empty."""
    if group.random:
        return ""
    return group.ranked_by or next((name for name in scores() if any(name in row.to_full for row in group.candidates)), "")


def scope(group: CaseGroup) -> str:
    """The scope of "as good" where only the score of single images is known; else empty."""
    name = criterion(group)
    return metric(name).scope if name else ""


def margin_sentence(group: CaseGroup, claims: Claims) -> str:
    """Explain "non-inferior" and what so many seeds can show; empty where quality was not measured."""
    name = criterion(group)
    mine = [claims[row.case.key] for row in group.candidates if row.case.key in claims]
    if name == "" or not mine:
        return ""
    claim = mine[0]
    together = "" if claim.claims == 1 else f", over all {claim.claims} comparisons of this report together"
    if claim.share is not None:
        return (f"Non-inferior: a {metric(name).title} that lies {fmt.percent(claim.share)} or more above the full cache's at the same "
                f"seeds would look like this in at most {100 * ALPHA:g} % of reports{together}.")
    interims = ", however many interim analyses there are" if claim.sequential else ""
    rule = (f"Non-inferior: a loss of {claim.allowed} or more on average would look like this in at most {100 * ALPHA:g} % of "
            f"reports{together}{interims}.")
    most = max(mine, key=lambda claim: claim.n)
    if most.n >= claim.least:
        return f"{rule} {seeds_that_decide(mine)}"
    return (f"{rule} {most.n} {'seed' if most.n == 1 else 'seeds'} cannot show it: they rule out a loss of {100 * ruled_out(most):.1f} "
            f"points at best, and {claim.least} seeds are the least for {100 * claim.margin:g}.")


def seeds_that_decide(claims: Sequence[QualityClaim]) -> str:
    """The loss that these seeds can rule out, what more would, and how many would decide one more.

    Empty where quality was not measured.
    """
    if not claims:
        return ""
    most = max(claims, key=lambda claim: claim.n)
    needed = min((claim.needed for claim in claims if not claim.non_inferior and claim.needed), default=None)
    more = f" About {needed} would show one method more, if its images went on like these." if needed else ""
    if most.share is not None:
        return more.strip()
    now, with_more = (100 * ruled_out(most, seeds) for seeds in (most.n, MORE * most.n))
    score = metric(most.metric).title.lower()
    return (f"{count(most.n, 'seed')} can rule out a loss of {now:.1f} points of {score} at best; {MORE * most.n} could rule out "
            f"{with_more:.1f}.{more}")


def ruled_out(claim: QualityClaim, seeds: int = 0) -> float:
    """The smallest loss that ``seeds`` (0: those of the claim) without any loss can rule out."""
    shows = loss_that_shows_at_any_time if claim.sequential else loss_that_shows
    return shows(seeds or claim.n, metric(claim.metric).apart[0], claim.claims)


def inconclusive_reason(rows: Sequence[ReportRow], claims: Claims) -> str:
    """The reason why no row of a method is non-inferior, and how many seeds would decide."""
    measured = [row for row in rows if row.ok]
    if not measured:
        return "No budget has results."
    compared = [(row, claims[row.case.key]) for row in measured if row.case.key in claims and (row.unproven or not row.unranked)]
    if not compared:
        return "At no budget can its images be compared with the full cache's."
    if all(claim.n < claim.least for _, claim in compared):
        return f"Too few seeds to say: {max(claim.n for _, claim in compared)}, and at least {compared[0][1].least} are needed."
    if all(claim.inferior for _, claim in compared):
        return f"Its images are shown to lose {compared[0][1].allowed} or more on average at every budget of the plan."
    hopeful = [(row, claim) for row, claim in compared if not claim.loses]
    if not hopeful:
        return "Its images lose the margin or more on average at every budget of the plan."
    row, claim = min(hopeful, key=lambda pair: pair[1].needed or math.inf)
    return f"Inconclusive at every budget: at {fmt.plain(shown_share(row.case.budget), 20)} {claim.undecided}."


def _alone(row: ReportRow, group: CaseGroup, margins: Margins, sequential: bool) -> QualityClaim | None:
    """The claim of a row by itself, or None where its quality is not known."""
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
    without = "" if error < math.inf else "its" if full.stated else "the full cache's"
    return QualityClaim(name, margin, row.to_full[name].n, _p_of_set(margin - loss, error), margins.share, loss=loss,
                        without_interval=without)


def _loss(row: ReportRow, group: CaseGroup, name: str, share: float) -> tuple[float, float]:
    """The loss in FID and its standard error with that of the margin; inf without an interval."""
    assert group.full is not None
    apart, full = row.to_full[name], group.full.quality[name]
    if not (apart.stated and full.stated):
        return apart.value, math.inf
    return apart.value, ((apart.high - apart.low) + share * (full.high - full.low)) / (2 * _Z)


def _p_of_set(room: float, error: float) -> float:
    return _NORMAL.cdf(-room / error) if error else float(room <= 0)


def _among(claim: QualityClaim, adjusted: float, claims: int, row: ReportRow, group: CaseGroup, sequential: bool) -> QualityClaim:
    """The claim among so many."""
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
