"""Metrics of plug-ins in a plan: which a file brings, and what the cases state of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..core import plugins, registry
from ..core.outside_metrics import KEY, full_name
from ..metrics.image_metric import ImageMetric

__all__ = ["KEY", "metrics_of", "stated"]


def metrics_of(files: Iterable[str | Path]) -> list[str]:
    """Names of the metrics that some plug-in files, which have been imported, bring."""
    paths = {str(Path(file).resolve()) for file in files}
    return [name for name in registry.metrics if (found := plugins.origin(registry.metrics.get(name))) and found[0] in paths]


def stated(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Definitions of metrics of plug-ins by their whole names. UnknownName for one that nobody has registered."""
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(names):
        cls: type[ImageMetric] = registry.metrics.get(name)
        origin = plugins.origin(cls)
        definition = cls.definition(origin[1] if origin else "")
        found[full_name(name, definition)] = definition
    return found
