"""Metrics of plug-ins, computed in the trial. A fault of one leaves the other values of the case as they are."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from ...core import plugin_modules, registry
from ...core.outside_metrics import DIGITS, FAULTS
from ...core.units import metric
from ...metrics.base import ImageMetric, Shown, problem
from ...plugins import loading as plugins
from ..bounds import bounded_text


class Fault(Exception):
    """The reason why a metric has no values: a kind of fault, and the details."""

    def __init__(self, fault: str, details: str) -> None:
        super().__init__(fault, details)
        self.fault, self.details = fault, details


def metric_figures(
    names: Sequence[str], stated: Mapping[str, Mapping[str, Any]], shown: Shown, files: Sequence[str], batch: int,
    alive: Callable[[int], None],
) -> tuple[dict[str, list[float]], dict[str, object]]:
    """Values of these metrics by seed, and the fact that names the fault of each metric without values. ``files`` are the plug-ins of the
    trial; ``batch`` images are passed to a metric at once."""
    samples, faults = dict[str, list[float]](), dict[str, dict[str, str]]()
    by_digest = {plugins.digest(file): file for file in files} if names else {}
    for name in names:
        try:
            samples[name] = _values(name, by_digest.get(str(stated[name]["code"]), ""), shown, batch, alive)
        except Fault as error:
            faults[name] = {"fault": error.fault, "said": bounded_text(error.details)}
    return samples, {FAULTS: faults} if faults else {}


def in_sentences(faults: Any) -> list[str]:
    """Footnotes about metrics without values, from the fact of :func:`metric_figures`."""
    return [f"{metric(name).title} ({name}) was not measured: {fault['fault']}, {fault['said']}." for name, fault in faults.items()]


def _values(name: str, file: str, shown: Shown, batch: int, alive: Callable[[int], None]) -> list[float]:
    if not file:
        raise Fault("changed", "its plug-in is not what it was when the run began")
    instance, values = _instance(file, name[: -DIGITS - 1]), list[float]()
    for start in range(0, len(shown.images), batch):
        values += _measured(instance, _part(shown, slice(start, start + batch)))
        alive(0)
    return values


def _instance(file: str, name: str) -> ImageMetric:
    try:
        plugins.load(file)
        cls = cast("type[ImageMetric]", registry.metrics.get(name))
        return cls()
    except Exception as error:
        raise Fault("raised", _place(error)) from error


def _measured(instance: ImageMetric, shown: Shown) -> list[float]:
    try:
        with torch.inference_mode():
            values = instance.measure(shown)
    except (Exception, SystemExit) as error:
        raise Fault("raised", _place(error)) from error
    fault, details = problem(values, len(shown.images), instance.within)
    if fault:
        raise Fault(fault, details)
    return [float(value) for value in values.double().tolist()]


def _place(error: BaseException) -> str:
    """The error with the file and line of the plug-in that raised it."""
    fault = plugin_modules.fault(error)
    return fault.message if fault else traceback.format_exception_only(error)[-1].strip()


def _part(shown: Shown, part: slice) -> Shown:
    return replace(shown, images=shown.images[part], reference=shown.reference[part], tokens=shown.tokens[part],
                   reference_tokens=shown.reference_tokens[part], labels=shown.labels[part], seeds=shown.seeds[part])
