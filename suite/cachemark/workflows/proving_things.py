"""Proof of a method or a model, ours or anybody's, by the checks that ours are held to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..core import installed, plugins, registry
from ..core.errors import BadPlugin
from ..core.secrets import hidden
from ..kit.findings import Checked, KitProof
from ..kit.method_kit import check_method, check_model
from ..models.protocol import Request
from ..plans.installed_things import require
from ..plans.plugin_import import imported

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


def names_of(kind: installed.Kind, named: str | Path) -> list[str]:
    """The things of a kind that are meant: all of a file, which is imported, or the one of that name."""
    table: registry.Registry[Any] = {"methods": registry.methods, "models": registry.models}[kind]
    if Path(named).suffix == ".py" or "/" in str(named):
        imported(named)
        found = [name for name in table if (origin := plugins.origin(table.get(name))) and origin[0] == str(Path(named).resolve())]
        if not found:
            raise BadPlugin(f"Plug-in {str(named)!r} registers no {table.kind}.", remedy=f"Register one with @registry.{kind}.add('name').")
        return found
    require(kind, [str(named)])
    table.get(str(named))
    return [str(named)]
