"""Metrics of plug-ins, each in a process of its own: whatever it does there touches neither the case nor another metric.

Images go there in batches, and a figure for each comes back. Where one batch has none, the metric has none for this case, and the fact
:data:`~cachemark.core.outside_metrics.FAULTS` says why: it ended its process, did not answer in time, raised, or answered no figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...core import plugins
from ...core.outside_metrics import DIGITS, FAULTS
from ...core.units import metric
from ...metrics.image_metric import Shown
from ..bounds import bounded_text
from .metric_host import Fault, MetricHost


def metric_figures(
    names: Sequence[str], stated: Mapping[str, Mapping[str, Any]], shown: Shown, files: Sequence[str], batch: int,
    alive: Callable[[int], None], host: MetricHost,
) -> tuple[dict[str, list[float]], dict[str, object]]:
    """Figures of these metrics by seed, and the fact that says what was wrong with those that have none. ``files`` are plug-ins of the
    trial, ``batch`` how many images are shown at once, ``host`` the process of which each metric gets a copy."""
    samples, faults = dict[str, list[float]](), dict[str, dict[str, str]]()
    known = {plugins.digest(file): file for file in files} if names else {}
    for name in names:
        try:
            samples[name] = _figures(name, known.get(str(stated[name]["code"]), ""), shown, batch, alive, host)
        except Fault as found:
            faults[name] = {"fault": found.fault, "said": bounded_text(found.said)}
    return samples, {FAULTS: faults} if faults else {}


def answer(file: str, name: str, shown: Shown) -> tuple[list[float], str, str]:
    """Figures of some images by a metric of a plug-in, in a process of its own; or none, which fault there was, and more words about it."""
    host = MetricHost()
    try:
        with host.measuring(file, name) as asked:
            return asked(shown), "", ""
    except Fault as found:
        return [], found.fault, found.said
    finally:
        host.end()


def in_sentences(faults: Any) -> list[str]:
    """Footnotes on what was wrong with metrics, the fact of :func:`metric_figures`."""
    return [f"{metric(name).title} ({name}) was not measured: {found['fault']}, {found['said']}." for name, found in faults.items()]


def _figures(name: str, file: str, shown: Shown, batch: int, alive: Callable[[int], None], host: MetricHost) -> list[float]:
    if not file:
        raise Fault("changed", "its plug-in is not what it was when the run began")
    values: list[float] = []
    with host.measuring(file, name[: -DIGITS - 1]) as asked:
        for start in range(0, len(shown.images), batch):
            values += asked(_part(shown, slice(start, start + batch)))
            alive(0)
    return values


def _part(shown: Shown, part: slice) -> Shown:
    return replace(shown, images=shown.images[part], reference=shown.reference[part], tokens=shown.tokens[part],
                   reference_tokens=shown.reference_tokens[part], labels=shown.labels[part], seeds=shown.seeds[part])
