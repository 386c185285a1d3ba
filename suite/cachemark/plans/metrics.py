"""Metrics of plug-ins in a plan: which a file brings, and what the cases state of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..core import registry
from ..core.errors import UnknownName, unknown
from ..core.outside_metrics import KEY, full_name
from ..core.units import FAMILIES, METRICS
from ..metrics.image_metric import ImageMetric
from ..plugins import installed
from ..plugins import loading as plugins

__all__ = ["KEY", "metrics_of", "stated"]
ASKED_BY = {"lpips": "lpips = true", "clip_score": 'clip = "FOLDER"', "geneval": 'detector = "FOLDER"', "dpg": 'vqa = "FOLDER"',
            "image_reward": 'image_reward = "FOLDER"', "hpsv2": 'hpsv2 = "FOLDER"'}  # metrics of ours that take a key of the table


def metrics_of(files: Iterable[str | Path]) -> list[str]:
    """Names of the metrics that some plug-in files, which have been imported, bring."""
    paths = {str(Path(file).resolve()) for file in files}
    return [name for name in registry.metrics if (found := plugins.origin(registry.metrics.get(name))) and found[0] in paths]


def stated(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Definitions of metrics of plug-ins by their whole names. UnknownName for one that nobody has registered,
    with what asks for it where it is one of ours."""
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(names):
        if name not in registry.metrics:
            raise _not_of_plug_ins(name)
        cls: type[ImageMetric] = registry.metrics.get(name)
        origin = plugins.origin(cls)
        definition = cls.definition(origin[1] if origin else "")
        found[full_name(name, definition)] = definition
    return found


def _not_of_plug_ins(name: str) -> UnknownName:
    """The error for a name in the list of metrics of plug-ins that is none of them."""
    base = name.partition("_")[0]
    if name not in METRICS and base not in FAMILIES:
        error = unknown("metric of a plug-in", name, [*registry.metrics, *(each.name for each in installed.offers("metrics"))])
        return UnknownName(error.message, remedy=f"{error.remedy} A file that brings one is given with --plugin FILE.")
    if base in FAMILIES:
        remedy = "It judges whole sets of images: give the plan a table [quality]."
    elif asked := ASKED_BY.get(name) or ASKED_BY.get(base):
        remedy = f"Ask for it under [fidelity] with: {asked}"
    else:
        remedy = "It is measured wherever it can be, without being named: leave it out."
    return UnknownName(f"{name!r} is a metric of cachemark itself, and metrics names those of plug-ins.", remedy=remedy)
