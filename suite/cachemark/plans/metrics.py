"""Metrics that a plan requests: the definition or files of each, or why it cannot be requested."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import registry
from ..core.errors import UnknownName, Unsupported, unknown
from ..core.outside_metrics import full_name
from ..core.units import FAMILIES, METRICS
from ..metrics.base import ImageMetric, MetricBase, MetricContext
from ..metrics.registry import built_in, image_metrics
from ..models.protocol import ModelEntry, Request
from ..plugins import installed, loading as plugins

if TYPE_CHECKING:
    from .schema import MetricTable

OF_SETS = ("is a metric of whole sets of images.", "Add a table [quality] to the plan.")


def metrics_of(files: Iterable[str | Path], *, of_sets: bool = True) -> list[str]:
    """Return the metrics of imported plug-in files; without ``of_sets`` none of whole sets."""
    paths = {str(Path(file).resolve()) for file in files}
    return [name for name in registry.metrics if (origin := plugins.origin(registry.metrics.get(name))) and origin[0] in paths
            and (of_sets or registry.metrics.get(name).per != "set")]


def is_built_in(name: str) -> bool:
    """Return whether a name is a built-in metric, or starts with a family's name."""
    return name in built_in() or name.partition("_")[0] in FAMILIES


def options_of(tables: Sequence[MetricTable]) -> tuple[tuple[str, str, str], ...]:
    """Return the options of a plan's metrics as (metric, option, path)."""
    return tuple((table.name, option, path) for table in tables for option, path in sorted(table.options.items()))


def setting(name: str, entry: ModelEntry, request: Request, shared: dict[Any, Any] | None = None) -> MetricContext:
    """Return the context of a metric."""
    options = {option: path for metric, option, path in request.metrics if metric == name}
    return MetricContext(request.device, options, entry.prompts, request.prompts, entry.preset, {} if shared is None else shared)


def stated(
    tables: Sequence[MetricTable], entry: ModelEntry, request: Request, image_set: str | None = None,
) -> dict[str, Mapping[str, Any]]:
    """Return what determines the values of each optional metric, by name.

    For built-in metrics identities of their files, with ``missing`` if one is absent; for plug-in metrics their definitions. ``image_set``
    names the images of the quality pass: empty for a block without one, None for a plan without one. Raises UnknownName for an unknown
    metric or option."""
    by_name: dict[str, Mapping[str, Any]] = {}
    for table in tables:
        if not is_built_in(table.name):
            _refuse_options(table, ())
            definition = defined(table.name, image_set or "")
            if any(about["per"] == "set" for about in definition.values()):
                if image_set is None:
                    raise UnknownName(f"{table.name!r} {OF_SETS[0]}", remedy=OF_SETS[1])
                definition = definition if image_set else {}
            by_name |= definition
            continue
        cls = _asked_for(table)
        if entry.prompts or not cls.prompted:
            by_name[table.name] = _identity(cls, setting(table.name, entry, request))
    for name in entry.quality:
        if (cls := image_metrics()[name]).plan_name == name:
            by_name[name] = _identity(cls, setting(name, entry, request))
    return by_name


def _identity(cls: type[ImageMetric], context: MetricContext) -> dict[str, str]:
    try:
        return cls.identity(context)
    except Unsupported as error:
        return {"missing": str(error)}


def defined(name: str, image_set: str = "") -> dict[str, dict[str, Any]]:
    """Return a plug-in metric's definition by its full name. Raises UnknownName if it is not registered."""
    if name not in registry.metrics:
        error = unknown("metric", name, [*METRICS, *registry.metrics, *(offer.name for offer in installed.offers("metrics"))])
        raise UnknownName(error.message, remedy=f"{error.remedy} A file that brings one is given with --plugin FILE.")
    cls: type[MetricBase] = registry.metrics.get(name)
    origin = plugins.origin(cls)
    definition = cls.definition(origin[1] if origin else "", image_set)
    return {full_name(name, definition): definition}


def _asked_for(table: MetricTable) -> type[ImageMetric]:
    """Return the class of a built-in metric that a plan may request by this name."""
    cls = built_in().get(table.name)
    if cls is None or cls.per == "set":
        raise UnknownName(f"{table.name!r} {OF_SETS[0]}", remedy=OF_SETS[1])
    if not issubclass(cls, ImageMetric) or cls.of_model or not cls.plan_name:
        raise UnknownName(f"{table.name!r} is always measured.", remedy="Leave it out of metrics.")
    if cls.plan_name != table.name:
        raise UnknownName(f"{table.name!r} is a part of {cls.plan_name!r}.", remedy=f"Add: {_example(cls)}")
    _refuse_options(table, cls.options)
    if cls.options and not table.options.get(cls.options[0]):
        raise UnknownName(f"{table.name!r} needs {cls.options[0]}.", remedy=f"Add: {_example(cls)}")
    return cls


def _refuse_options(table: MetricTable, options: Sequence[str]) -> None:
    for option in table.options:
        if option not in options:
            raise unknown(f"option of metric {table.name}", option, options)


def _example(cls: type[ImageMetric]) -> str:
    options = "".join(f', {option} = "FOLDER"' for option in cls.options)
    return f'metrics = [{{ name = "{cls.plan_name}"{options} }}]' if options else f'metrics = ["{cls.plan_name}"]'
