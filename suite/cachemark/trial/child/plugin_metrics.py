"""Metrics of plug-ins, computed in the trial. A fault of one does not change the case's other values."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ...core import plugin_modules, registry
from ...core.facts import Facts, MetricFault
from ...core.outside_metrics import DIGITS
from ...core.spec import Case
from ...core.units import metric
from ...metrics.base import CostMetric, Costs, ImageBatch, ImageMetric, ImageSet, SetMetric, part_of, problem
from ...plugins import loading as plugins


class Fault(Exception):
    """The reason why a metric has no values: a kind of fault, and the details."""


class PluginMetrics:
    """The metrics of plug-ins that a case requests; ``files`` are the plug-ins of the trial.

    ``faults``: of the metrics that were measured without values so far."""

    def __init__(self, case: Case, files: Sequence[str]) -> None:
        self.faults: dict[str, MetricFault] = {}
        self._stated = {name: case.metrics[name] for name in case.plugin_metrics}
        self._files = {plugins.read(file).digest: file for file in files} if self._stated else {}

    def images(self, image_batch: ImageBatch, batch: int, alive: Callable[[int], None], paired: bool = True) -> dict[str, list[float]]:
        """Return values by seed, of ``batch`` images at once.

        Without ``paired`` equal seeds draw other images than the full cache's, and only metrics that do not compare them are measured."""
        def measured(instance: Any) -> list[float]:
            values = list[float]()
            for start in range(0, len(image_batch.images), batch):
                values += _image_values(instance, part_of(image_batch, slice(start, start + batch)))
                alive(0)
            return values

        return self._measured("image", measured, lambda name: paired or metric(name).kind != "fidelity")

    def image_set(self, images: ImageSet) -> dict[str, list[float]]:
        """Return values of a whole set of images."""
        return self._measured("set", lambda instance: _plain_values(instance, images))

    def costs(self, costs: Costs) -> dict[str, list[float]]:
        """Return the values of metrics of times and counts."""
        return self._measured("case", lambda instance: _plain_values(instance, costs))

    def _measured(
        self, per: str, measure: Callable[[Any], list[float]], applies: Callable[[str], bool] = lambda name: True,
    ) -> dict[str, list[float]]:
        samples = dict[str, list[float]]()
        for name in (name for name in self._stated if metric(name).per == per and applies(name)):
            try:
                file = self._files.get(str(self._stated[name]["code"]), "")
                if not file:
                    raise Fault("changed", "its plug-in has changed since the run started")
                if values := measure(_guarded(_instance, file, name)):
                    samples[name] = values
            except Fault as error:
                kind, details = error.args
                self.faults[name] = MetricFault(fault=kind, said=details)
        return samples

    def added_to(self, facts: Facts) -> Facts:
        """Return facts with the faults, each a footnote too."""
        notes = (f"{metric(name).title} ({name}) was not measured: {fault.fault}, {fault.said}." for name, fault in self.faults.items())
        return replace(facts.noted(*notes), metric_faults=self.faults or None)


def _instance(file: str, name: str) -> Any:
    plugins.load(file)
    return registry.metrics.get(name[: -DIGITS - 1])()


def _image_values(instance: ImageMetric, image_batch: ImageBatch) -> list[float]:
    values = _guarded(instance.measure, image_batch)
    fault, details = problem(values, len(image_batch.images), instance.within)
    if fault:
        raise Fault(fault, details)
    return [float(value) for value in values.double().tolist()]


def _plain_values(instance: SetMetric | CostMetric, inputs: Any) -> list[float]:
    """Return the numbers of a metric of a set or of costs."""
    values = _guarded(instance.measure, inputs)
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        raise Fault("wrong shape", f"a {type(values).__name__} instead of a sequence of numbers") from None
    fault, details = problem(torch.tensor(numbers, dtype=torch.float64), len(numbers), instance.within)
    if fault:
        raise Fault(fault, details)
    return numbers


def _guarded(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call code of a plug-in. Raises Fault with its error, file and line."""
    try:
        with torch.inference_mode():
            return call(*arguments)
    except (Exception, SystemExit) as error:
        fault = plugin_modules.fault(error)
        raise Fault("raised", fault.message if fault else traceback.format_exception_only(error)[-1].strip()) from error
