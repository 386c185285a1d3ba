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
from ...kit.inspection import Inspected, broken_off, first_line, inspect
from ...machine.memory import exhausted
from ...machine.shared_state import Change
from ...plans.expand import Planned
from ..bounds import bounded_notes
from .bench import Bench, case_job, method_factory

SEEDS = 1 << 31  # as many as there are: nobody can know which are drawn


def inspected(planned: Planned, bench: Bench, outcome: Outcome) -> tuple[Outcome, bool]:
    """The outcome with what an inspection has found, and the seconds that it took; itself where nobody's plug-in defines the method. And
    whether the inspection came to its end: where it did not, nobody knows what it left behind."""
    case = planned.case
    method = registry.methods.get(case.method)
    own = set(needs(method))
    if not outcome.ok or case.role != "arm" or not own:
        return outcome, True
    began, whole, left_out = time.perf_counter(), False, ""
    found: Sequence[Flaw] = ()
    try:
        found = inspect(_case(planned, bench, shared=bool(own & set(needs(registry.models.get(case.model))))))
        whole = True
    except BaseException as error:  # SystemExit among them: what was measured is kept, whatever its method raises now
        if flaw := broken_off(error, method):
            found = [flaw]
        else:
            left_out = "There was no memory for it." if exhausted(error) else first_line(error)
    told = {"seconds": time.perf_counter() - began, **({"left_out": left_out} if left_out else {})}
    outcome = replace(outcome, facts={**outcome.facts, INSPECTED: told})
    if left_out:  # else it would look like a case in which nothing was found
        outcome = _noted(outcome, f"Not inspected: {left_out}")
    return flagged(outcome, found), whole


def disturbed(outcome: Outcome, changes: Sequence[Change]) -> Outcome:
    """The outcome with what its inspection has changed of the process: a footnote and no fault, since its figures were made before."""
    if not changes:
        return outcome
    return _noted(outcome, f"Changed while it was inspected: {', '.join(map(str, changes))}. The process was ended after it, so that no "
                           "other case is touched.")


def flagged(outcome: Outcome, found: Sequence[Flaw]) -> Outcome:
    """The outcome with these findings as a fact, as footnotes, and as the reason why its speed is not compared."""
    if not found:
        return outcome
    notes = bounded_notes([f"Flagged: expected {flaw.expected}; found {flaw.found}." for flaw in found])
    facts: dict[str, Any] = dict(outcome.facts)
    facts[FLAGGED] = [*facts.get(FLAGGED, ()), *({k: v for k, v in asdict(flaw).items() if v not in ("", (), None)} for flaw in found)]
    facts["footnotes"] = [*facts.get("footnotes", ()), *notes]
    facts["quality_only"] = f"{' '.join(notes)} Its figures are not those of what it says it does."
    return replace(outcome, facts=facts)


def _noted(outcome: Outcome, note: str) -> Outcome:
    return replace(outcome, facts={**outcome.facts, "footnotes": [*outcome.facts.get("footnotes", ()), *bounded_notes([note])]})


def _case(planned: Planned, bench: Bench, *, shared: bool) -> Inspected:
    """The batch that was timed, without a decoder and without recordings, which would show no work."""
    case = planned.case
    job = case_job(case, bench).first(case.batch)
    full = method_factory(replace(case, method=FULL, knobs={}))
    fresh = [secrets.randbelow(SEEDS) for _ in job.subset.seeds]
    return Inspected(bench.loaded, job.method, full, lambda: Memory(bench.device, codec(case.codec)), case.sampling, job.subset.labels,
                     job.subset.seeds, fresh, bench.device, shared, bench.alive)
