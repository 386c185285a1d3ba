"""Which budget to choose: for each method the smallest one whose images are not worse than the full cache's, and what it is worth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...core.units import metric
from .. import formatting as words
from ..charts.batches import but_batch, images_per_second
from .row import Row, share_of_full
from .section import Section

LEGEND_MARGIN = 0.05  # by which a legend score may fall below the full cache's
SET_MARGIN = 0.10  # of the full cache's FID: by which a FID may lie above it


@dataclass(frozen=True)
class Choice:
    """``row`` is that of the smallest budget which is not worse than the full cache, or None with the reason in ``why``. Throughputs are
    images per second: at the section's batch, and at the largest measured batch (``batch``) that takes no more bytes than the full cache
    at the section's batch, which are None where they were not measured. Where the largest batch that fits was ``searched``
    for, the latter two are what that search found."""

    method: str
    row: Row | None
    why: str = ""
    equal_batch: float | None = None
    equal_memory: float | None = None
    batch: int = 0
    searched: bool = False


def margin(section: Section) -> str:
    """What "not worse" means here, as a sentence; empty where quality was not measured."""
    if _judge(section) == "":
        return ""
    if section.ranked_by:
        return (f"Not worse: the interval of the difference in {metric(section.ranked_by).title} ends at most "
                f"{words.percent(SET_MARGIN)} of the full cache's figure above it.")
    return (f"Not worse: the interval of the difference in legend score, seed by seed, ends at most {words.percent(LEGEND_MARGIN)} "
            "below the full cache.")


def choices(section: Section, parts: Sequence[Section]) -> tuple[Choice, ...]:
    """One choice for the full cache and one for each method; ``parts`` are all sections of the report, in which other batches may stand.
    Empty where no quality was measured."""
    name = _judge(section)
    if name == "" or section.full is None or not section.full.ok:
        return ()
    full = _valued(Choice("full", section.full), section, parts)
    return (full, *(_choice(method, name, section, parts) for method in section.methods))


def _judge(section: Section) -> str:
    """The metric of quality that is asked, or empty."""
    if section.random:
        return ""
    return section.ranked_by or ("legend" if any("legend" in row.to_full for row in section.arms) else "")


def _choice(method: str, name: str, section: Section, parts: Sequence[Section]) -> Choice:
    rows = sorted((row for row in section.arms if row.method == method), key=lambda row: share_of_full(row.case.budget))
    good = [row for row in rows if _not_worse(row, name, section)]
    if good:
        return _valued(Choice(method, good[0]), section, parts)
    if not any(row.ok for row in rows):
        return Choice(method, None, "No budget has figures.")
    return Choice(method, None, "Worse than the full cache, or not shown to be no worse, at every budget of the plan.")


def _not_worse(row: Row, name: str, section: Section) -> bool:
    difference = row.to_full.get(name)
    if not row.ok or row.unranked or difference is None:
        return False
    if name == "legend":
        return difference.low >= -LEGEND_MARGIN
    full = section.full.quality.get(name) if section.full else None
    return full is not None and difference.high <= SET_MARGIN * full.value


def _valued(choice: Choice, section: Section, parts: Sequence[Section]) -> Choice:
    """The choice with its throughputs."""
    row = choice.row
    assert row is not None
    own = images_per_second(row)
    if found := _searched(row, section, parts):
        return Choice(choice.method, row, "", own, *found, searched=True)
    room = section.full.kept if section.full else None
    best, batch = own if row is section.full or _fits(row, room) else None, row.case.batch
    for other in _other_batches(row, section, parts):
        speed = images_per_second(other)
        if speed is not None and _fits(other, room) and other.case.batch > batch:
            best, batch = speed, other.case.batch
    return Choice(choice.method, row, "", own, best, batch if best is not None else 0)


def _searched(row: Row, section: Section, parts: Sequence[Section]) -> tuple[float, int] | None:
    """Throughput at the largest batch that fits, and that batch, where a search for it is in the report."""
    for part in parts:
        if part.searched and part.model == section.model and but_batch(part) == but_batch(section):
            for other in part.rows:
                rate, batch = other.median("throughput_max"), other.median("max_batch")
                if rate and batch and (other.method, other.case.budget) == (row.method, row.case.budget):
                    return rate, int(batch)
    return None


def _fits(row: Row, room: float | None) -> bool:
    return room is not None and row.kept is not None and row.kept <= room


def _other_batches(row: Row, section: Section, parts: Sequence[Section]) -> Iterable[Row]:
    """The same case at other batches."""
    for part in parts:
        if part is not section and not part.searched and part.model == section.model and but_batch(part) == but_batch(section):
            yield from (other for other in part.rows if other.ok and other.timed
                        and (other.method, other.case.budget) == (row.method, row.case.budget))
