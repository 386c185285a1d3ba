"""Plain sentences about a group: what a reader would otherwise have to read out of the table, no more and no less."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..core.spec import shown_share
from ..core.units import metric
from ..stats.intervals import Interval
from . import formatting as fmt
from .case_group import CaseGroup
from .report_row import MASKED, ReportRow, faster

SCORED = {"legend": "hues obey the legend", "prompt_score": "images show all that was asked for"}


@dataclass(frozen=True)
class Sentence:
    """``text`` about the row group ``about`` (a budget, or the full cache)."""

    about: str
    text: str


def sentences(group: CaseGroup) -> tuple[Sentence, ...]:
    """One sentence for the full cache and one for every budget."""
    return (Sentence("Full cache", _full(group)), *(Sentence(f"Budget {shown_share(b)}", _budget(group, b)) for b in group.budgets))


def _full(group: CaseGroup) -> str:
    if group.full is None:
        return "This run has no full cache, so there are no speed-ups or savings."
    if not group.full.ok:
        return f"The full cache failed ({group.full.outcome.status}), so there are no speed-ups or savings."
    if group.searched:
        return "The largest batch that fits was searched for, and throughput there; latency and images are those of other cells."
    latency = group.full.median("latency")
    images = "1 image" if group.case.batch == 1 else f"{group.case.batch} images"
    speed = f" takes {fmt.seconds(latency)} for a batch of {images}" if latency is not None else " was not timed"
    said = f"The full cache{speed}{_burden(group.full)}; every speed-up and saving below is against it."
    return f"{said}{_real(group.full)}"


def _real(full: ReportRow) -> str:
    """Its distance from real images, beside that of other real images."""
    found = full.of_set("fid")
    if found is None:
        return ""
    name, fid = found
    said = f" Its {metric(name).title} is {_spanned(fid, name)}"
    bias, real = (full.outcome.facts.get(fact, {}).get(name) for fact in ("bias", "real"))
    if bias and bias > 0:
        said += f", of which about {fmt.figure(bias, name)} is due to their number"
    if not real:
        return f"{said}."
    value, low, high = real
    return f"{said}; the same number of other real images scores {_spanned(Interval(value, low, high, fid.confidence, fid.n), name)}."


def _spanned(found: Interval, name: str, more: str = "") -> str:
    """A figure with its interval, ``5.400 (4.900–5.900)``, and what else belongs into the brackets."""
    value, low, high = (fmt.figure(end, name) for end in (found.value, found.low, found.high))
    inside = f"{low}–{high}{more}" if found.stated else more.removeprefix(", ")
    return f"{value} ({inside})" if inside else value


def _burden(full: ReportRow) -> str:
    """The memory or computation that the methods are to save."""
    flops, kv = full.median("flops"), full.median("kv_allocated")
    if full.paradigm == MASKED:
        return f", computes {fmt.with_unit(flops, 'flops')} per image and keeps nothing" if flops is not None else ""
    return f" and holds {fmt.size(kv)} of keys and values" if kv is not None else ""


def _budget(group: CaseGroup, budget: str) -> str:
    rows = group.arms_at(budget)
    figures = [row for row in rows if row.ok]
    if not figures:
        return f"No method has results at this budget ({_count(rows)})."
    timed = [row for row in figures if row.speed_up is not None]
    if group.random:
        return _random(timed)
    ranked = [row for row in figures if row.place is not None]
    if not ranked:
        return f"No method is ranked. {_left_out(figures)}".strip()
    if not any(row.speed_up for row in ranked):
        return f"{_best(group, ranked)} {_left_out(figures)}".strip()
    timed = [row for row in ranked if row.speed_up]
    fastest = max([row for row in timed if row.speed_up and faster(row.speed_up)] or timed, key=_speed_of)
    parts = (_best(group, ranked), _speed(fastest, figures), _cost(fastest, group.full), _lossless(figures), _left_out(figures))
    return " ".join(part for part in parts if part)


def _speed_of(row: ReportRow) -> float:
    return row.speed_up.value if row.speed_up else 0.0


def _best(group: CaseGroup, ranked: list[ReportRow]) -> str:
    """The method nearest to real images, and those that cannot be told from it."""
    if not group.ranked_by:
        return ""
    best = min(ranked, key=lambda row: row.place or 0)
    found = best.of_set("fid")
    assert found is not None
    title, fid = metric(found[0]).title, found[1]
    ties = [fmt.name(row.method) for row in ranked if row is not best and (other := row.of_set("fid")) and other[1].low <= fid.high]
    alike = f", statistically tied with {', '.join(ties)}" if ties else ""
    its = group.full.of_set("fid") if group.full else None
    against = f", the full cache {fmt.figure(its[1].value, its[0])}" if its else ""
    return f"Closest to real images: {fmt.name(best.method)}{alike}, {title} {_spanned(fid, found[0], against)}."


def _count(rows: tuple[ReportRow, ...]) -> str:
    found = Counter(str(row.outcome.status) for row in rows)
    return ", ".join(f"{n} {status}" for status, n in found.items())


def _interval(speed_up: Interval) -> str:
    ends = f"{speed_up.low:.2f}–{speed_up.high:.2f}, " if speed_up.stated else ""
    return f"{fmt.times(speed_up.value)} ({ends}n = {speed_up.n})"


def _speed(row: ReportRow, rows: list[ReportRow]) -> str:
    """The speed of the fastest ranked method; nothing is called faster while its interval reaches down to 1."""
    speed_up, name = row.speed_up, fmt.name(row.method)
    assert speed_up is not None
    which = "ranked method" if any(other.unranked and other.speed_up for other in rows) else "method"
    if speed_up.value <= 1:
        return f"No {which} is faster than the full cache here; the fastest, {name}, runs at {_interval(speed_up)}."
    if not faster(speed_up):
        contains = ", which may be none" if speed_up.stated else ""
        return (f"No {which} is shown to be faster than the full cache here: the fastest, {name}, runs at "
                f"{_interval(speed_up)}{contains}.")
    return f"The fastest {which} is {name} at {_interval(speed_up)}."


def _cost(row: ReportRow, full: ReportRow | None) -> str:
    """The saving of that method and its cost, fidelity and quality apart."""
    masked = row.paradigm == MASKED
    verb, noun, less = ("computes", "FLOPs", "fewer") if masked else ("allocates", "KV", "less")
    saves = "" if row.saving is None else f"It {verb} {fmt.percent(abs(row.saving))} {less if row.saving >= 0 else 'more'} {noun}. "
    means = {name: fmt.with_unit(interval.value, name) for name, interval in row.fidelity.items()}
    names = (("kl", "KL"), ("forced_distance", "forced distance"), ("psnr", "PSNR"))
    others = ", ".join(f"{title} {means[name]}" for name, title in names if name in means)
    near = f"token distance {means['token_distance']}" if masked else f"{means['token_agreement']} token agreement"
    return f"{saves}Fidelity: {near}{f' ({others})' if others else ''}.{_quality(row, full)}"


def _quality(row: ReportRow, full: ReportRow | None) -> str:
    name = next((name for name in SCORED if name in row.quality), "")
    if not name:
        return ""
    its = full.quality.get(name) if full else None
    against = f", full cache {fmt.percent(its.value)}" if its else ""
    return f" Quality: {fmt.percent(row.quality[name].value)} of {SCORED[name]}{against}."


def _random(timed: list[ReportRow]) -> str:
    """Random weights: a speed may be named, a ranking may not."""
    if not timed:
        return "There is no speed-up. Weights are random, so images are not evaluated either."
    best = max(timed, key=_speed_of)
    assert best.speed_up is not None
    return (f"Highest speed-up: {fmt.name(best.method)} at {_interval(best.speed_up)}. Weights are random, so its effect on images is "
            "unknown and nothing is ranked.")


def _lossless(rows: list[ReportRow]) -> str:
    found = [fmt.name(row.method) + _at(row) for row in rows if row.lossless]
    return f"Lossless on this device: {', '.join(found)}." if found else ""


def _at(row: ReportRow) -> str:
    return f" at {fmt.times(row.speed_up.value)}" if row.speed_up else ""


def _left_out(rows: list[ReportRow]) -> str:
    """The methods that are not in the ranking; the notes of the table say why."""
    unranked = [fmt.name(row.method) + _at(row) for row in rows if row.unranked]
    slow = [fmt.name(row.method) for row in rows if not row.unranked and row.speed_up is None]
    parts = ([f"not ranked: {', '.join(unranked)}"] if unranked else []) + ([f"without a speed-up: {', '.join(slow)}"] if slow else [])
    said = "; ".join(parts)  # names are the user's: only the first letter is ours
    return f"{said[0].upper()}{said[1:]}." if said else ""
