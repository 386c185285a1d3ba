"""The inspection of a case whose method is a plug-in's: behind its figures, in its own process, and what is found in its outcome."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from ...cache.arena import Memory
from ...cache.codec import codec
from ...core import registry
from ...core.plugins import needs
from ...core.result import FLAGGED, INSPECTED, Outcome
from ...core.spec import FULL
from ...kit.findings import Flaw
from ...kit.inspection import Inspected, broken_off, inspect
from ...machine.memory import exhausted
from ...plans.expand import Planned
from ..bounds import bounded_notes
from .bench import Bench, case_job, method_factory

SEEDS = 1 << 31  # as many as there are: nobody can know which are drawn


def inspected(planned: Planned, bench: Bench, outcome: Outcome) -> Outcome:
    """The outcome with what an inspection has found, and the seconds that it took; itself where nobody's plug-in defines the method."""
    case = planned.case
    own = set(needs(registry.methods.get(case.method)))
    if not outcome.ok or case.role != "arm" or not own:
        return outcome
    began, left_out = time.perf_counter(), ""
    found: Sequence[Flaw] = ()
    try:
        found = inspect(_case(planned, bench, shared=bool(own & set(needs(registry.models.get(case.model))))))
    except BaseException as error:  # SystemExit among them: what was measured is kept, whatever its method raises now
        if exhausted(error):
            left_out = "There was no memory for it."
        else:
            found = [broken_off(error)]
    told = {"seconds": time.perf_counter() - began, **({"left_out": left_out} if left_out else {})}
    return flagged(replace(outcome, facts={**outcome.facts, INSPECTED: told}), found)


def flagged(outcome: Outcome, found: Sequence[Flaw]) -> Outcome:
    """The outcome with these findings as a fact, as footnotes, and as the reason why its speed is not compared."""
    if not found:
        return outcome
    notes = bounded_notes([f"Flagged: {flaw.expected} was expected; found {flaw.found}." for flaw in found])
    facts: dict[str, Any] = dict(outcome.facts)
    facts[FLAGGED] = [*facts.get(FLAGGED, ()), *({k: v for k, v in asdict(flaw).items() if v not in ("", (), None)} for flaw in found)]
    facts["footnotes"] = [*facts.get("footnotes", ()), *notes]
    facts["quality_only"] = f"{' '.join(notes)} Its figures are not those of what it says it does."
    return replace(outcome, facts=facts)


def _case(planned: Planned, bench: Bench, *, shared: bool) -> Inspected:
    """The batch that was timed, without a decoder and without recordings, which would show no work."""
    case = planned.case
    job = case_job(case, bench).first(case.batch)
    full = method_factory(replace(case, method=FULL, knobs={}))
    fresh = [secrets.randbelow(SEEDS) for _ in job.subset.seeds]
    return Inspected(bench.loaded, job.method, full, lambda: Memory(bench.device, codec(case.codec)), case.sampling, job.subset.labels,
                     job.subset.seeds, fresh, bench.device, shared)
