"""The least cost of a case on the device that measures it, as a fact: the report has neither models nor torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from ...cache.layout import Layout, Site, raster_steps
from ...cache.masked_layout import MaskedLayout
from ...contract.method import Method
from ...core.limits import Limit, Rates
from ...core.spec import Case
from ...metrics.speed import ends
from ...models.costs import case_bill
from ...models.protocol import ModelEntry
from ...stats.least_squares import fitted_line

RATES = "rates"  # of an environment's facts
LIMIT, SLOPE = "limit", "slope"  # of an outcome's


def facts(case: Case, entry: ModelEntry, method: Method, rates: Rates | None) -> dict[str, Any]:
    """The limit as a fact of an arm or a full cache whose rates are known; else nothing. The reference engine has the full cache's: its
    padding and copies are what it is shown for."""
    if rates is None or case.role not in ("arm", "baseline"):
        return {}
    found = case_bill(case, entry, method)
    return {} if found is None else {LIMIT: Limit.of(found, rates).to_json()}


def slope(marks: Sequence[Mapping[int, float]], layout: Layout, method: Method) -> dict[str, Any]:
    """Growth of the time of a decode step with the entries it looks at, from the marks at line ends of every counted generation: the
    median seconds of a step in each line, on a line. A fact of next-token cases of which several lines differ; else nothing."""
    if layout.scales or isinstance(layout, MaskedLayout) or not marks:
        return {}
    method.resolve(layout)
    points = _points(marks, layout, method)
    line = fitted_line(points)
    if line is None:
        return {}
    entry = 2 * layout.rows * layout.kv_heads * layout.head_dim * layout.dtype.itemsize * layout.layers
    return {SLOPE: {**line._asdict(), "bytes_per_s": entry / line.slope if line.slope > 0 else None, "lines": len(points)}}


def _points(marks: Sequence[Mapping[int, float]], layout: Layout, method: Method) -> list[tuple[float, float]]:
    """(entries that a step of this line looks at, its seconds), for each line but the first, whose first step is the condition's."""
    site = Site("decoder", layout.layers - 1)
    seen = [method.attended(layout, site, step) for step in raster_steps(layout)]
    points, stops = [], ends(layout)
    for before, end in pairwise(stops):
        steps = end - before
        taken = sorted((held[end] - held[before]) / steps for held in marks)[len(marks) // 2]
        points.append((sum(seen[before + 1 : end + 1]) / steps, taken))
    return points


def stated(rates: Mapping[str, Rates]) -> dict[str, Any]:
    """Rates by dtype as a fact of the environment."""
    return {RATES: {name: {k: v for k, v in asdict(found).items() if k != "device"} for name, found in rates.items()}}
