"""The metrics of the package, in the order of tables. Only a measurement needs torch."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from ..core.units import Metric
from .base import CostMetric, Costs, ImageMetric, MetricBase, SetMetric

MODULES = ("costs", "tokens", "similarity", "color_consistency", "caption_scores", "object_scores", "question_score",
           "preference_scores", "text_similarity", "image_sets")


@cache
def built_in() -> dict[str, type[MetricBase]]:
    """Return the package's metrics by name; metrics of sets by the first part of the name, ``fid``."""
    classes = [cls for module in MODULES for cls in vars(import_module(f"{__package__}.{module}")).values()
               if isinstance(cls, type) and issubclass(cls, MetricBase) and cls.__module__.endswith(f".{module}")]
    return {cls.name: cls for cls in classes if "name" in vars(cls)}


def image_metrics() -> dict[str, type[ImageMetric]]:
    """Return the metrics of single images that are measured, by name."""
    return {name: cls for name, cls in built_in().items() if issubclass(cls, ImageMetric) and not cls.mean_of}


def set_metrics() -> list[type[SetMetric]]:
    """Return the metrics of whole sets of images."""
    return [cls for cls in built_in().values() if issubclass(cls, SetMetric)]


def cost_values(costs: Costs, *, searched: bool = False) -> dict[str, list[float]]:
    """Return the values of cost metrics by name, of a case or of a search for the largest batch."""
    classes = [cls for cls in built_in().values() if issubclass(cls, CostMetric) and (cls.searched if searched else not cls.alone)]
    return {cls.name: list(values) for cls in classes if (values := cls().measure(costs))}


def declarations() -> dict[str, Metric]:
    """Return the declarations of all metrics by name, in the order of tables."""
    return {name: cls.declared() for name, cls in built_in().items()}
