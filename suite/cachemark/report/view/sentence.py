"""Plain sentences about a section: what a reader would otherwise have to read out of the table, no more and no less."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.units import metric
from ...stats.bootstrap import Interval
from .. import formatting as words
from .row import MASKED, Row
from .section import Section


@dataclass(frozen=True)
class Sentence:
    """``text`` about the row group ``about`` (a budget, or the full cache)."""

    about: str
    text: str


def sentences(section: Section) -> tuple[Sentence, ...]:
    """One sentence for the full cache and one for every budget."""
    return (Sentence("Full cache", _full(section)), *(Sentence(f"Budget {b}", _budget(section, b)) for b in section.budgets))


def _full(section: Section) -> str:
    if section.full is None:
        return "The full cache is not in this run, so no speed-up and no saving can be derived."
    if not section.full.ok:
        return f"The full cache has no figures ({section.full.outcome.status}), so no speed-up and no saving can be derived."
    latency = section.full.median("latency")
    images = "1 image" if section.case.batch == 1 else f"{section.case.batch} images"
    speed = f" takes {words.seconds(latency)} for a batch of {images}" if latency is not None else " was not timed"
    said = f"The full cache{speed}{_burden(section.full)}; every speed-up and saving below is against it."
    return f"{said}{_real(section.full)}"


def _real(full: Row) -> str:
    """How near to real images it comes, beside what other real images come to."""
    found = full.of_set("fid")
    if found is None:
        return ""
    name, held = found
    said = f" Its {metric(name).title} is {_spanned(held, name)}"
    real = full.outcome.facts.get("real", {}).get(name)
    if not real:
        return f"{said}."
    value, low, high = real
    return f"{said}; as many other real images come to {_spanned(Interval(value, low, high, held.confidence, held.n), name)}."


def _spanned(held: Interval, name: str, more: str = "") -> str:
    """A figure with its interval, ``5.400 (4.900–5.900)``, and what else belongs into the brackets."""
    value, low, high = (words.figure(end, name) for end in (held.value, held.low, held.high))
    return f"{value} ({low}–{high}{more})"


def _burden(full: Row) -> str:
    """What the methods are to save."""
    flops, kv = full.median("flops"), full.median("kv_allocated")
    if full.paradigm == MASKED:
        return f", computes {words.with_unit(flops, 'flops')} for an image and keeps nothing" if flops is not None else ""
    return f" and holds {words.size(kv)} of keys and values" if kv is not None else ""


def _budget(section: Section, budget: str) -> str:
    rows = section.arms_at(budget)
    figures = [row for row in rows if row.ok]
    if not figures:
        return f"No method has figures at this budget ({_count(rows)})."
    timed = [row for row in figures if row.speed_up is not None]
    if section.random:
        return _random(timed)
    ranked = [row for row in figures if row.place is not None]
    if not ranked:
        return f"No method is ranked here. {_left_out(figures)}".strip()
    if not any(row.speed_up for row in ranked):
        return f"{_best(section, ranked)} {_left_out(figures)}".strip()
    fastest = max((row for row in ranked if row.speed_up), key=_speed_of)
    parts = (_best(section, ranked), _speed(fastest, figures), _cost(fastest, section.full), _lossless(figures), _left_out(figures))
    return " ".join(part for part in parts if part)


def _speed_of(row: Row) -> float:
    return row.speed_up.value if row.speed_up else 0.0


def _best(section: Section, ranked: list[Row]) -> str:
    """Who is nearest to real images, and who cannot be told from that."""
    if not section.ranked_by:
        return ""
    best = min(ranked, key=lambda row: row.place or 0)
    found = best.of_set("fid")
    assert found is not None
    title, held = metric(found[0]).title, found[1]
    ties = [words.name(row.method) for row in ranked if row is not best and (other := row.of_set("fid")) and other[1].low <= held.high]
    alike = f", not told apart from {', '.join(ties)}" if ties else ""
    its = section.full.of_set("fid") if section.full else None
    against = f", the full cache {words.figure(its[1].value, its[0])}" if its else ""
    return f"Nearest to real images is {words.name(best.method)}{alike}: {title} {_spanned(held, found[0], against)}."


def _count(rows: tuple[Row, ...]) -> str:
    found: dict[str, int] = {}
    for row in rows:
        found[str(row.outcome.status)] = found.get(str(row.outcome.status), 0) + 1
    return ", ".join(f"{n} {status}" for status, n in found.items())


def _interval(speed_up: Interval) -> str:
    return f"{words.times(speed_up.value)} ({speed_up.low:.2f}–{speed_up.high:.2f}, n = {speed_up.n})"


def _speed(row: Row, rows: list[Row]) -> str:
    """What the fastest ranked method does; nothing is called faster while its interval reaches down to 1."""
    speed_up, name = row.speed_up, words.name(row.method)
    assert speed_up is not None
    which = "ranked method" if any(other.unranked and other.speed_up for other in rows) else "method"
    if speed_up.value <= 1:
        return f"No {which} is faster than the full cache here; the fastest, {name}, runs at {_interval(speed_up)}."
    if speed_up.low <= 1:
        return (f"No {which} is shown to be faster than the full cache here: the fastest, {name}, runs at "
                f"{_interval(speed_up)}, an interval that holds 1.")
    return f"The fastest {which} is {name} at {_interval(speed_up)}."


def _cost(row: Row, full: Row | None) -> str:
    """What that method saves and what it costs, fidelity and quality apart."""
    what = ("computes", "FLOPs") if row.paradigm == MASKED else ("allocates", "KV")
    less = "less" if row.paradigm != MASKED else "fewer"
    saves = "" if row.saving is None else f"It {what[0]} {words.percent(abs(row.saving))} {less if row.saving >= 0 else 'more'} {what[1]}. "
    means = {name: words.with_unit(interval.value, name) for name, interval in row.fidelity.items()}
    names = (("kl", "KL"), ("forced_distance", "forced distance"), ("psnr", "PSNR"))
    others = ", ".join(f"{title} {means[name]}" for name, title in names if name in means)
    if row.paradigm == MASKED:
        agreement = f"In fidelity its tokens are {means['token_distance']} from the full cache's"
    else:
        agreement = f"In fidelity it keeps {means['token_agreement']} of the full cache's tokens"
    fidelity = agreement + (f" ({others})." if others else ".")
    return saves + fidelity + _quality(row, full)


def _quality(row: Row, full: Row | None) -> str:
    mine = row.quality.get("legend")
    if mine is None:
        return ""
    its = full.quality.get("legend") if full else None
    against = f" against {words.percent(its.value)} of the full cache" if its else ""
    return f" In quality its legend score is {words.percent(mine.value)}{against}."


def _random(timed: list[Row]) -> str:
    """Random weights: a speed may be named, a ranking may not."""
    if not timed:
        return "No speed-up could be derived; weights are random, so nothing is said about images either."
    best = max(timed, key=lambda row: row.speed_up.value if row.speed_up else 0.0)
    assert best.speed_up is not None
    return (f"The highest speed-up is that of {words.name(best.method)}, {_interval(best.speed_up)}. Weights are random, so what it "
            "costs in images is unknown and nothing is ranked.")


def _lossless(rows: list[Row]) -> str:
    found = [words.name(row.method) + _at(row) for row in rows if row.lossless]
    return f"Lossless on this device: {', '.join(found)}." if found else ""


def _at(row: Row) -> str:
    return f" at {words.times(row.speed_up.value)}" if row.speed_up else ""


def _left_out(rows: list[Row]) -> str:
    """Who is not in the ranking; why stands in the notes of the table."""
    unranked = [words.name(row.method) + _at(row) for row in rows if row.unranked]
    slow = [words.name(row.method) for row in rows if not row.unranked and row.speed_up is None]
    parts = ([f"not ranked: {', '.join(unranked)}"] if unranked else []) + ([f"without a speed-up: {', '.join(slow)}"] if slow else [])
    return f"{'; '.join(parts).capitalize()}." if parts else ""
