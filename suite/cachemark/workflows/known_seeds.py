"""Samples that a run need not generate, because the store has them from the same cases with other numbers of samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..core.result import Environment, Outcome
from ..core.seeds import series_of
from ..core.spec import MAX_BATCH, QUALITY_PASS, Case
from ..plans.planned import Prepared
from ..plans.reuse import KnownSeeds, result_parts
from ..store.db import Store
from ..trial.child import quality

TOKENS = "tokens.safetensors"


def with_known_seeds(cases: Sequence[Prepared], store: Store, here: Environment, memory_cap: int = 0) -> list[Prepared]:
    """Return the cases, each with the stored tokens of some of its samples and of its full cache's, if there are any.

    Finished parts of a stored quality pass become parts of the case's own.
    """
    searched = _Stored(store, here, {"memory_cap": str(memory_cap)} if memory_cap else {})
    for case in store.measured_cases({planned.case.model for planned in cases}) if cases else ():
        if MAX_BATCH not in case.evaluation:
            searched.alike[case.generation].append(case)
    found = []
    for planned in cases:
        case = planned.case
        if planned.stored or planned.unsupported_reason or MAX_BATCH in case.evaluation or case.weights.startswith("random:"):
            found.append(planned)
            continue
        full = searched.newest(case.full_cache) if case.engine != "reference" else None
        found.append(replace(planned, known=searched.newest(case), known_full=full))
        if planned.feature_cache is not None and case.measures(QUALITY_PASS):
            searched.link_parts(case, planned.feature_cache)
    return found


@dataclass
class _Stored:
    """Measured cases, by what their tokens depend on."""

    store: Store
    here: Environment
    cap: dict[str, str]
    alike: dict[str, list[Case]] = field(default_factory=lambda: defaultdict(list))

    def newest(self, case: Case) -> KnownSeeds | None:
        """Return the stored tokens of most samples of a case, or None."""
        known = [seeds for outcome in self._outcomes(case) if (seeds := self._seeds(outcome, case)) is not None]
        return max(known, key=lambda seeds: seeds.among(case), default=None)

    def link_parts(self, case: Case, folder: Path) -> None:
        """Add the complete parts of other numbers of quality images, generated in equal batches, to the folder of a case."""
        mine = case.evaluation[QUALITY_PASS]
        for outcome in self._outcomes(case):
            theirs = outcome.case.evaluation[QUALITY_PASS] if outcome.case.measures(QUALITY_PASS) else {}
            alike = theirs and theirs["batch"] == mine["batch"] and series_of(theirs["seeds"]) == series_of(mine["seeds"])
            if alike and self._seeds(outcome, case) is not None:
                whole = min(theirs["samples"], mine["samples"]) // quality.PART
                theirs_cached = quality.FeatureCache(folder.parent / outcome.result_key)
                quality.FeatureCache(folder).take(theirs_cached, range(whole))

    def _outcomes(self, case: Case) -> list[Outcome]:
        stored = [self.store.latest_for_case(other.key, ok=True) for other in self.alike[case.generation]]
        return [outcome for outcome in stored if outcome is not None]

    def _seeds(self, outcome: Outcome, case: Case) -> KnownSeeds | None:
        """Return the tokens of an outcome if nothing has changed that they depend on."""
        if TOKENS not in outcome.artifacts:
            return None
        parts = result_parts(case, self.here) | self.cap
        return KnownSeeds.from_outcome(outcome, parts, self.store.artifacts.path(outcome.artifacts[TOKENS]))
