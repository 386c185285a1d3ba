"""Sentences above the table of a group, on what the table does not show."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.spec import shown_share
from ..core.units import FID, FLOPS, KV, TIME, metric
from ..stats.intervals import Interval
from . import formatting as fmt
from .case_group import CaseGroup
from .report_row import MASKED, ReportRow, faster


@dataclass(frozen=True)
class Sentence:
    """``text`` about the row group ``about`` (a budget, or the full cache)."""

    about: str
    text: str


def sentences(group: CaseGroup) -> tuple[Sentence, ...]:
    """One sentence for the full cache and one for every budget."""
    return (Sentence("Full cache", _about_full(group)),
            *(Sentence(f"Budget {shown_share(b)}", _about_budget(group, group.candidates_at(b))) for b in group.budgets))


def _about_full(group: CaseGroup) -> str:
    if group.full is None:
        return "This run has no full cache, so there are no speedups or savings."
    if not group.full.ok:
        return f"The full cache failed ({group.full.outcome.status}), so there are no speedups or savings."
    if group.searched:
        return "The largest batch that fits was searched for, and throughput there; latency and images are those of other cells."
    latency = group.full.median(TIME)
    images = "1 image" if group.case.batch == 1 else f"{group.case.batch} images"
    speed = f" takes {fmt.seconds(latency)} for a batch of {images}" if latency is not None else " was not timed"
    return f"The full cache{speed}{_burden(group.full)}; every speedup and saving below is against it.{_beside_real_images(group.full)}"


def _burden(full: ReportRow) -> str:
    """The memory or computation that the methods are to save."""
    flops, kv = full.median(FLOPS), full.median(KV)
    if full.paradigm == MASKED:
        return f", computes {fmt.with_unit(flops, 'flops')} per image and keeps nothing" if flops is not None else ""
    return f" and holds {fmt.size(kv)} of keys and values" if kv is not None else ""


def _beside_real_images(full: ReportRow) -> str:
    """The FID of the full cache, its bias, and the FID of other real images."""
    if (value := full.of_set(FID)) is None:
        return ""
    name, fid = value
    text = f" Its {metric(name).title} is {_with_interval(fid, name)}"
    bias, real = (full.outcome.facts.get(fact, {}).get(name) for fact in ("bias", "real"))
    if bias and bias > 0:
        text += f", of which about {fmt.metric_value(bias, name)} is due to their number"
    if not real:
        return f"{text}."
    value_of_real, low, high = real
    interval = Interval(value_of_real, low, high, fid.confidence, fid.n)
    return f"{text}; the same number of other real images scores {_with_interval(interval, name)}."


def _with_interval(interval: Interval, name: str, more: str = "") -> str:
    """A value with its interval, ``5.400 (4.900–5.900)``, and what else belongs into the brackets."""
    value, low, high = (fmt.metric_value(end, name) for end in (interval.value, interval.low, interval.high))
    inside = f"{low}–{high}{more}" if interval.stated else more.removeprefix(", ")
    return f"{value} ({inside})" if inside else value


def _about_budget(group: CaseGroup, rows: tuple[ReportRow, ...]) -> str:
    measured = [row for row in rows if row.ok]
    if not measured:
        return "No method has results at this budget."
    if group.random:
        return f"{_fastest(measured, measured)} Weights are random, so nothing is ranked."
    ranked = [row for row in measured if row.place is not None]
    if not ranked:
        return f"No method is ranked. {_left_out(measured)}".strip()
    return " ".join(filter(None, (_closest(group, ranked), _fastest(ranked, measured), _left_out(measured))))


def _closest(group: CaseGroup, ranked: list[ReportRow]) -> str:
    """The method nearest to real images and its statistical ties; empty without a FID."""
    by_fid = [(value[1], row) for row in ranked if (value := row.of_set(FID))]
    if not by_fid:
        return ""
    fid, best = min(by_fid, key=lambda pair: pair[1].place or 0)
    ties = [fmt.name(row.method) for other, row in by_fid if row is not best and other.low <= fid.high]
    tied = f", statistically tied with {', '.join(ties)}" if ties else ""
    name, full = group.ranked_by, group.full.of_set(FID) if group.full else None
    against = f", the full cache {fmt.metric_value(full[1].value, full[0])}" if full else ""
    return f"Closest to real images: {fmt.name(best.method)}{tied}, {metric(name).title} {_with_interval(fid, name, against)}."


def _fastest(ranked: list[ReportRow], measured: list[ReportRow]) -> str:
    """The fastest ranked method; none is called faster while its interval reaches down to 1."""
    timed = [(row.speedup, row) for row in ranked if row.speedup]
    if not timed:
        return ""
    speedup, row = max([pair for pair in timed if faster(pair[0])] or timed, key=lambda pair: pair[0].value)
    which = "ranked method" if any(other.unranked and other.speedup for other in measured) else "method"
    ends = f"{speedup.low:.2f}–{speedup.high:.2f}, " if speedup.stated else ""
    value = f"{fmt.name(row.method)} at {fmt.times(speedup.value)} ({ends}n = {speedup.n})"
    if faster(speedup):
        return f"The fastest {which} is {value}."
    return f"No {which} is {'' if speedup.value <= 1 else 'shown to be '}faster than the full cache here; the fastest is {value}."


def _left_out(rows: list[ReportRow]) -> str:
    """The methods that are not in the ranking; the notes of the table give the reasons."""
    unranked = ", ".join(fmt.name(row.method) + (f" at {fmt.times(row.speedup.value)}" if row.speedup else "")
                         for row in rows if row.unranked)
    untimed = ", ".join(fmt.name(row.method) for row in rows if not row.unranked and row.speedup is None)
    return " ".join(f"{title}: {names}." for title, names in (("Not ranked", unranked), ("Without a speedup", untimed)) if names)
