"""Metrics of plug-ins, computed in the trial. A fault of one leaves the other values of the case as they are."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...core import plugin_modules as plugin_modules
from ...core import registry
from ...core.outside_metrics import DIGITS
from ...core.spec import Case
from ...core.units import metric
from ...metrics.base import CostMetric, Costs, ImageBatch, ImageMetric, ImageSet, MetricBase, SetMetric, part_of, problem
from ...plugins import loading as plugins
from ..bounds import bounded_text


class Fault(Exception):
    """The reason why a metric has no values: a kind of fault, and the details."""

    def __init__(self, fault: str, details: str) -> None:
        super().__init__(fault, details)
        self.fault, self.details = fault, details


Figures = tuple[dict[str, list[float]], dict[str, dict[str, str]]]  # values by metric, and the faults of those that have none


class PluginMetrics:
    """The metrics of plug-ins that a case states; ``files`` are the plug-ins of the trial."""

    def __init__(self, case: Case, files: Sequence[str]) -> None:
        self._stated = {name: case.metrics[name] for name in case.plugin_metrics}
        self._files = {plugins.digest(file): file for file in files} if self._stated else {}

    def images(self, shown: ImageBatch, batch: int, alive: Callable[[int], None], paired: bool = True) -> Figures:
        """Values by seed, of ``batch`` images at once. Without ``paired`` seeds draw other images than the full cache's, and nothing is
        compared with these."""
        def values(instance: Any) -> list[float]:
            measured = list[float]()
            for start in range(0, len(shown.images), batch):
                measured += _measured(instance, part_of(shown, slice(start, start + batch)))
                alive(0)
            return measured

        return self._figures([name for name in self._of("image") if paired or metric(name).kind != "fidelity"], values)

    def image_set(self, images: ImageSet) -> Figures:
        """Values of a whole set of images."""
        return self._figures(self._of("set"), lambda instance: _plain(instance, images))

    def costs(self, costs: Costs) -> Figures:
        """Values of what was timed and counted."""
        return self._figures(self._of("case"), lambda instance: _plain(instance, costs))

    def _of(self, per: str) -> list[str]:
        return [name for name in self._stated if metric(name).per == per]

    def _figures(self, names: Sequence[str], values: Callable[[Any], list[float]]) -> Figures:
        samples, faults = dict[str, list[float]](), dict[str, dict[str, str]]()
        for name in names:
            try:
                file = self._files.get(str(self._stated[name]["code"]), "")
                if not file:
                    raise Fault("changed", "its plug-in is not what it was when the run began")
                if figures := values(_instance(file, name[: -DIGITS - 1])):
                    samples[name] = figures
            except Fault as error:
                faults[name] = {"fault": error.fault, "said": bounded_text(error.details)}
        return samples, faults


def in_sentences(faults: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Footnotes about metrics without values."""
    return [f"{metric(name).title} ({name}) was not measured: {fault['fault']}, {fault['said']}." for name, fault in faults.items()]


def _instance(file: str, name: str) -> MetricBase:
    try:
        plugins.load(file)
        return registry.metrics.get(name)()
    except Exception as error:
        raise Fault("raised", _place(error)) from error


def _measured(instance: ImageMetric, shown: ImageBatch) -> list[float]:
    values = _answer(instance, shown)
    fault, details = problem(values, len(shown.images), instance.within)
    if fault:
        raise Fault(fault, details)
    return [float(value) for value in values.double().tolist()]


def _plain(instance: SetMetric | CostMetric, inputs: ImageSet | Costs) -> list[float]:
    """The numbers that a metric of a set or of costs returns."""
    values = _answer(instance, inputs)
    try:
        figures = [float(value) for value in values]
    except (TypeError, ValueError):
        raise Fault("wrong shape", f"a {type(values).__name__} in place of a sequence of numbers") from None
    fault, details = problem(torch.tensor(figures, dtype=torch.float64), len(figures), instance.within)
    if fault:
        raise Fault(fault, details)
    return figures


def _answer(instance: Any, inputs: Any) -> Any:
    try:
        with torch.inference_mode():
            return instance.measure(inputs)
    except (Exception, SystemExit) as error:
        raise Fault("raised", _place(error)) from error


def _place(error: BaseException) -> str:
    """The error with the file and line of the plug-in that raised it."""
    fault = plugin_modules.fault(error)
    return fault.message if fault else traceback.format_exception_only(error)[-1].strip()
