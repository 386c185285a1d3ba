"""Lists of everything that has a name: models, methods, metrics, shipped plans and stored runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from ..core import registry
from ..core.secrets import hidden
from ..core.units import FAMILIES, METRICS
from .stores import DEFAULT_STORE, reading

Kind = Literal["models", "methods", "metrics", "plans", "runs"]


def listing(kind: Kind, *, store: str | Path = DEFAULT_STORE, plugins: Sequence[str | Path] = ()) -> list[dict[str, Any]]:
    """Everything of a kind, each with ``name`` and ``summary`` and the facts that its kind has. Methods of ``plugins`` are among them;
    runs are those of ``store``, newest first."""
    if plugins:
        from ..plans.plugin_import import imported

        for file in plugins:
            imported(file)
    sources: dict[Kind, Callable[[], list[dict[str, Any]]]] = {
        "models": _models, "methods": _methods, "metrics": _metrics, "plans": _plans, "runs": lambda: _runs(store)}
    return sources[kind]()


def _models() -> list[dict[str, Any]]:
    from ..models import catalogue

    entries = [registry.models.get(name) for name in registry.models]
    return [{"name": e.name, "summary": e.summary, "family": e.family, "paradigm": e.paradigm, "grid": e.grid, "classes": e.classes,
             "presets": {name: asdict(preset) for name, preset in e.presets.items()},
             "packaged": catalogue.packaged(f"{e.name}.safetensors").is_file()}
            for e in entries]


@hidden()  # those of plug-ins are asked for their knobs
def _methods() -> list[dict[str, Any]]:
    from .. import methods

    found = {name: registry.methods.get(name) for name in registry.methods}
    return [{"name": name, "summary": sentence(cls.__doc__), "source": cls.source, "knobs": cls().knobs(),
             "paradigms": cls.paradigms, "builtin": cls.__module__.startswith(methods.__name__)} for name, cls in found.items()]


def _metrics() -> list[dict[str, Any]]:
    """Fixed metrics, then families, whose names go on with what the images are compared with and how many there are."""
    named = {**METRICS, **{f"{name}_<preset>_<images>": family for name, family in FAMILIES.items()}}
    return [{**asdict(m), "name": name, "summary": ", ".join(filter(None, (m.title, m.unit, f"{m.better} is better. {m.meaning}")))}
            for name, m in named.items()]


def _plans() -> list[dict[str, Any]]:
    from ..plans import schema

    return [{"name": name, "summary": schema.load(name).description} for name in schema.names()]


def _runs(store: str | Path) -> list[dict[str, Any]]:
    with reading(store) as source:
        return [{"name": str(r.id), "summary": f"{r.plan}, {r.state}, {r.started}, {r.environment.machine_class}"} for r in source.runs()]


def sentence(text: str | None) -> str:
    """The first sentence of a docstring, on one line."""
    first, dot, _ = " ".join((text or "").split("\n\n")[0].split()).partition(". ")
    return first + dot.rstrip()
