"""``cachemark list``: what there is."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ..core.docstrings import sentence
from .options import echo_json, existing, json_option, plugin_option, store_option

KINDS = ("models", "methods", "metrics", "plans", "runs")


@click.command("list")
@click.argument("kind", type=click.Choice(KINDS))
@store_option
@plugin_option
@json_option
def list(kind: str, store_url: str, plugin_files: tuple[str, ...], as_json: bool) -> None:
    """Name every model, method, metric, shipped plan, or stored run."""
    if plugin_files:
        from ..core import plugins

        for file in plugin_files:
            plugins.load(file)
    sources = {"models": _models, "methods": _methods, "metrics": _metrics, "plans": _plans,
               "runs": lambda: _runs(store_url)}
    rows = sources[kind]()
    if as_json:
        echo_json(rows)
        return
    width = max((len(str(row["name"])) for row in rows), default=0)
    for row in rows:
        click.echo(f"{row['name']:<{width}}  {row['summary']}")
    if not rows:
        click.echo(f"No {kind}.")


def _models() -> Any:
    from ..core import registry
    from ..models import catalogue
    from ..models.weights import packaged

    assert catalogue  # importing it registers the models
    entries = [registry.models.get(name) for name in registry.models]
    return [{"name": e.name, "summary": e.summary, "family": e.family, "paradigm": e.paradigm, "grid": e.grid, "classes": e.classes,
             "presets": {name: asdict(preset) for name, preset in e.presets.items()},
             "packaged": packaged(f"{e.name}.safetensors").is_file()}
            for e in entries]


def _methods() -> Any:
    from .. import methods
    from ..core import registry

    found = {name: registry.methods.get(name) for name in registry.methods}
    return [{"name": name, "summary": sentence(cls.__doc__), "source": cls.source, "knobs": cls().knobs(),
             "paradigms": cls.paradigms, "builtin": cls.__module__.startswith(methods.__name__)} for name, cls in found.items()]


def _metrics() -> Any:
    from ..core.units import METRICS

    return [{"name": m.name, "summary": ", ".join(filter(None, (m.title, m.unit, f"{m.better} is better. {m.meaning}"))), **asdict(m)}
            for m in METRICS.values()]


def _plans() -> Any:
    from ..plan import schema as plan

    return [{"name": name, "summary": plan.load(name).description} for name in plan.names()]


def _runs(store_url: str) -> Any:
    with existing(store_url) as store:
        return [{"name": str(r.id), "summary": f"{r.plan}, {r.state}, {r.started}, {r.environment.machine_class}"} for r in store.runs()]
