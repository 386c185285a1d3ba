"""Costs of timed generations whose method decided the computation for each image."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...cache.layout import Layout
from ...contract.deciding import Deciding
from ...contract.method import Method
from ...core.facts import Facts
from ...plans.expand import Planned
from ...roofline.scale_flops import image_flops
from .bench import Bench, Job
from .facts import roofline


def decided_values(planned: Planned, bench: Bench, job: Job, methods: Sequence[Deciding]) -> tuple[dict[str, Any], Facts]:
    """Return the FLOPs of each image, and facts: mean fraction, decisions, limit of the median image."""
    layout = job.layout
    outcomes = [outcome for method in methods for outcome in method.outcomes or [Method()] * layout.batch]
    flops = [image_flops(outcome, layout) for outcome in outcomes]
    median = outcomes[sorted(range(len(flops)), key=flops.__getitem__)[len(flops) // 2]]
    facts = Facts(true_ratio=statistics.fmean(flops) / image_flops(Method(), layout), decided=decisions(outcomes, layout),
                  limit=roofline(planned.case, bench.entry, median, planned.rates))
    return {"flops": list(map(float, flops))}, facts


def decisions(outcomes: Sequence[Method], layout: Layout) -> dict[str, int]:
    """Return how many images compute all, skip scales, or have scales without guidance."""
    return dict(Counter(_named(outcome, layout) for outcome in outcomes))


def _named(outcome: Method, layout: Layout) -> str:
    skipped = len(layout.scales) - outcome.scales(layout)
    unguided = sum(outcome.computed_rows(layout, scale) < layout.rows for scale in range(len(layout.scales)))
    return f"{skipped} scales skipped" if skipped else f"{unguided} scales without guidance" if unguided else "all computed"
