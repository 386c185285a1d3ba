"""Proof of a method, a model or a metric, ours or anybody's, by the checks that ours are held to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..core import installed, plugins, registry
from ..core.errors import BadPlugin, Unsupported
from ..core.secrets import hidden
from ..core.units import METRICS
from ..kit.findings import Checked, KitProof
from ..kit.method_kit import check_method, check_metric, check_model
from ..kit.metric_checks import MetricExample
from ..models.protocol import Request
from ..plans.installed_things import TABLES, require
from ..plans.plugin_import import imported
from ..trial.child.metric_judge import answer

OnCheck = Callable[[Checked], None]
SILENT: OnCheck = lambda checked: None  # noqa: E731 - a name for nothing


@hidden()  # from the code of others
def prove_method(named: str | Path, *, knobs: Mapping[str, Any] | None = None, on_check: OnCheck = SILENT) -> list[KitProof]:
    """Make every check of the kit on a method, by its name or on those of a Python file. ``knobs`` go beside those of its budgets.
    ``on_check`` is called after each check. UnknownName where there is none, BadPlugin where the file has none, BadKnob for knobs that it
    has not."""
    found = [registry.methods.get(name) for name in names_of("methods", named)]
    for cls in found:
        cls.build(knobs or {})
    return [check_method(cls, knobs, on_check) for cls in found]


@hidden()  # from the code of others
def prove_model(named: str | Path, *, weights: str = "", decoder_weights: str = "", on_check: OnCheck = SILENT) -> list[KitProof]:
    """Make every check of the kit on a model, by its name or on those of a Python file, as :func:`prove_method` does. It is loaded with
    the weights that are named, else with those that it has without any."""
    request = Request(weights=weights, decoder_weights=decoder_weights)
    return [check_model(registry.models.get(name), on_check, request) for name in names_of("models", named)]


@hidden()  # from the code of others
def prove_metric(named: str | Path, *, on_check: OnCheck = SILENT) -> list[KitProof]:
    """Make every check of the kit on a metric of a plug-in, by its name or on those of a Python file, as :func:`prove_method` does.
    Unsupported for one of cachemark itself."""
    if str(named) in METRICS:
        raise Unsupported(f"{named} is a metric of cachemark itself.", remedy="Name one of a plug-in or of an installed package.")
    return [check_metric(metric_example(name), on_check) for name in names_of("metrics", named)]


def metric_example(name: str) -> MetricExample:
    """A metric that has been registered, with a process of its own such as a run measures it in."""
    cls = registry.metrics.get(name)
    origin = plugins.origin(cls)
    return MetricExample(cls, partial(answer, origin[0], name) if origin else None)


def names_of(kind: installed.Kind, named: str | Path) -> list[str]:
    """The things of a kind that are meant: all of a file, which is imported, or the one of that name."""
    table = TABLES[kind]
    if Path(named).suffix == ".py" or "/" in str(named):
        imported(named)
        found = [name for name in table if (origin := plugins.origin(table.get(name))) and origin[0] == str(Path(named).resolve())]
        if not found:
            raise BadPlugin(f"Plug-in {str(named)!r} registers no {table.kind}.", remedy=f"Register one with @registry.{kind}.add('name').")
        return found
    require(kind, [str(named)])
    table.get(str(named))
    return [str(named)]
