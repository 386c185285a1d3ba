"""Numbers of seeds that the tests of a plan need, before it is measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..analysis.quality_claims import MARGINS
from ..core.outside_metrics import KEY
from ..core.seeds import SIZES, smallest_subset
from ..core.spec import MAX_BATCH, QUALITY_PASS
from ..core.units import metric, scores
from ..core.wording import count
from ..plans.planned import Planned
from ..stats.non_inferiority import least_seeds


def seeds_for_a_rank(cases: Sequence[Planned]) -> tuple[int, int, int]:
    """Return the number of non-inferiority tests, the seeds that they need, and the seeds there are.

    All are 0 if no case is tested by such a score: random weights, models without a score, or a FID that ranks instead."""
    tested = [(planned.case.samples, score) for planned in cases if (score := _score(planned))]
    if not tested:
        return 0, 0, 0
    needed = max(least_seeds(MARGINS.score, metric(score).apart[0], len(tested)) for _, score in tested)
    return len(tested), needed, min(samples for samples, _ in tested)


def too_few_seeds(cases: Sequence[Planned]) -> str:
    """Return how many seeds a rank needs, if a plan has too few for it; else an empty text."""
    tests, needed, seeds = seeds_for_a_rank(cases)
    if seeds >= needed:
        return ""
    subset = "" if all(SIZES.get(planned.case.seeds, 0) >= needed for planned in cases) else f", seeds = \"{smallest_subset(needed)}\""
    compared = f"{count(tests, 'comparison')} need{'s' * (tests == 1)}"
    return (f"{compared} {needed} seeds for a rank among non-inferior methods; this plan has {seeds}. Set samples = {needed}{subset} in "
            "[fidelity]. Paired placings need no minimum.")


def _score(planned: Planned) -> str:
    """Return the score of single images that a case is tested by, or nothing."""
    case = planned.case
    quality = case.evaluation.get(QUALITY_PASS)
    if case.role != "candidate" or planned.unsupported_reason or case.weights.startswith("random:") or MAX_BATCH in case.evaluation:
        return ""
    if quality and "missing" not in quality:  # a FID ranks
        return ""
    measured: Iterable[str] = {*planned.entry.quality, *(name for name, of in case.evaluation.get(KEY, {}).items() if "missing" not in of)}
    return next((name for name in scores() if name in measured), "")
