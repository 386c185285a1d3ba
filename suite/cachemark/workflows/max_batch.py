"""The largest batch that fits into memory, by bisection: doubling until one does not fit, then halving what is between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..core.result import Outcome, Status
from ..core.spec import MAX_BATCH
from ..core.units import PEAK, TIME
from ..metrics.base import Costs
from ..metrics.registry import cost_values
from ..plans.expand import SEEDS, Planned
from ..trial.measurement import Measurement, outcome_of

MOST = 8192  # images; nobody samples more at once, and the search must end on any card
ENDED = "search_ended"  # of an outcome's facts: {"status", "log"} of the attempt that ended a search before it was done
NO_IMAGES = "throughput only: images are judged in a run of the plan at its own batch"


@dataclass(frozen=True)
class Largest:
    """The result of a search: ``batch`` images fit (0: none), and the outcome of each batch that was tried."""

    batch: int
    tried: dict[int, Outcome]


def asked(planned: Planned, limit: int) -> Planned:
    """The case whose largest batch within ``limit`` bytes (0: all that the device has) is asked."""
    return replace(planned, case=replace(planned.case, evaluation={MAX_BATCH: {"limit": limit}}))


def limited(cases: list[Planned], limit: int) -> list[Planned]:
    """With the limit in cases whose largest batch is asked: it decides how many images that is."""
    return [asked(planned, limit) if MAX_BATCH in planned.case.evaluation else planned for planned in cases]


def at(planned: Planned, batch: int) -> Planned:
    """The case with that many images at once."""
    return replace(planned, case=replace(planned.case, batch=batch, seeds=SEEDS, samples=batch))


def bisect(first: int, attempt: Callable[[int], Outcome], most: int = MOST) -> Largest:
    """Bisect from ``first`` images on. ``attempt(batch)`` ends as ok or oom; any other end ends the search with what fitted so far, as
    does ``not_reached``, of a batch that cannot end before a deadline."""
    tried: dict[int, Outcome] = {}

    def fits(batch: int) -> bool:
        tried[batch] = attempt(batch)
        return tried[batch].ok

    low, high = 0, first
    while high <= most and fits(high):
        low, high = high, high * 2
    high = min(high, most + 1)
    while _out_of_memory(tried) and high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return Largest(low, tried)


def _out_of_memory(tried: dict[int, Outcome]) -> bool:
    """True where every failure was for want of memory, so that fewer images may fit."""
    return all(outcome.ok or outcome.status is Status.OOM for outcome in tried.values())


def outcome(planned: Planned, found: Largest) -> Outcome:
    """The end of a search as one outcome: throughput at the plan's own batch, and at the largest."""
    facts: dict[str, Any] = {"tried": [[batch, str(o.status)] for batch, o in sorted(found.tried.items())]}
    seconds = sum(o.seconds for o in found.tried.values())
    if not found.batch:
        last = found.tried[min(found.tried)]
        log = f"Not even {min(found.tried)} images fit.\n{last.log}" if last.status is Status.OOM else last.log
        return outcome_of(planned, Measurement(last.status, log=log, seconds=seconds, facts=facts))
    best, own = found.tried[found.batch], found.tried.get(planned.case.batch)
    costs = Costs(planned.case.batch, seconds=own.samples[TIME] if own is not None and own.ok else (), peak_bytes=best.samples[PEAK][0],
                  largest_batch=found.batch, largest_seconds=best.samples[TIME])
    samples = cost_values(costs, searched=True)
    other = [o for o in found.tried.values() if not o.ok and o.status is not Status.OOM]
    note = f"{NO_IMAGES}; the search ended early: {other[0].status}" if other else NO_IMAGES
    facts |= {ENDED: {"status": str(other[0].status), "log": other[0].log}} if other else {}
    return outcome_of(planned, Measurement(Status.OK, samples, note, seconds=seconds, facts={**best.facts, **facts}))


def unfinished(outcome: Outcome) -> bool:
    """True where a deadline ended the search: more images may fit, so another run searches again."""
    ended: dict[str, str] = outcome.facts.get(ENDED, {})
    return ended.get("status") == Status.NOT_REACHED
