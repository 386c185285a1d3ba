"""Search for the largest batch that fits into memory: double until one fails, then bisect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..core.facts import Facts, SearchEnd
from ..core.result import Outcome, Status
from ..core.spec import MAX_BATCH
from ..core.units import PEAK, TIME
from ..metrics.base import Costs
from ..metrics.registry import cost_values
from ..plans.expand import SEEDS
from ..plans.planned import Planned, Prepared
from ..trial.measurement import Measurement, outcome_of

MOST = 8192  # images; larger batches are unrealistic, and the search must end on any card
NO_IMAGES = "throughput only: image metrics belong to a run at the plan's own batch"


@dataclass(frozen=True)
class Largest:
    """Result of a search: the largest ``batch`` that fits (0: none), and the outcome of each batch tried."""

    batch: int
    tried: dict[int, Outcome]


def searched(planned: Planned, limit: int) -> Planned:
    """Return the case that searches for its largest batch within ``limit`` bytes (0: all of the device's)."""
    return replace(planned, case=replace(planned.case, evaluation={MAX_BATCH: {"limit": limit}}))


def limited(cases: list[Planned], limit: int) -> list[Planned]:
    """Add the limit to cases that search for their largest batch."""
    return [searched(planned, limit) if MAX_BATCH in planned.case.evaluation else planned for planned in cases]


def at(planned: Prepared, batch: int) -> Prepared:
    """Return the case at another batch size."""
    return replace(planned, case=replace(planned.case, batch=batch, seeds=SEEDS, samples=batch))


def bisect(first: int, attempt: Callable[[int], Outcome], most: int = MOST) -> Largest:
    """Search for the largest batch, starting from ``first`` images.

    ``attempt(batch)`` ends as ok or oom; any other status, such as ``not_reached``, ends the search with the batches tried so far.
    """
    tried: dict[int, Outcome] = {}

    def fits(batch: int) -> bool:
        tried[batch] = attempt(batch)
        return tried[batch].ok

    low, high = 0, first
    while high <= most and fits(high):
        low, high = high, high * 2
    high = min(high, most + 1)
    while high - low > 1 and all(outcome.ok or outcome.status is Status.OOM for outcome in tried.values()):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return Largest(low, tried)


def outcome(planned: Prepared, largest: Largest) -> Outcome:
    """Return the search as one outcome: throughput at the plan's own batch, and at the largest."""
    facts = Facts(tried=[[batch, str(o.status)] for batch, o in sorted(largest.tried.items())])
    seconds = sum(o.seconds for o in largest.tried.values())
    if not largest.batch:
        last = largest.tried[min(largest.tried)]
        log = f"Not even {min(largest.tried)} images fit.\n{last.log}" if last.status is Status.OOM else last.log
        return outcome_of(planned, Measurement(last.status, log=log, seconds=seconds, facts=facts))
    best, own = largest.tried[largest.batch], largest.tried.get(planned.case.batch)
    costs = Costs(planned.case.batch, seconds=own.samples[TIME] if own is not None and own.ok else (), peak_bytes=best.samples[PEAK][0],
                  largest_batch=largest.batch, largest_seconds=best.samples[TIME])
    samples = cost_values(costs, searched=True)
    other = [o for o in largest.tried.values() if not o.ok and o.status is not Status.OOM]
    note = f"{NO_IMAGES}; the search ended early: {other[0].status}" if other else NO_IMAGES
    facts = replace(facts, search_ended=SearchEnd(status=str(other[0].status), log=other[0].log) if other else None)
    return outcome_of(planned, Measurement(Status.OK, samples, note, seconds=seconds, facts=best.facts | facts))


def unfinished(outcome: Outcome) -> bool:
    """Return whether a deadline ended the search, so that another run searches again."""
    ended = outcome.facts.search_ended
    return ended is not None and ended.status == Status.NOT_REACHED
