"""Proof of a method, a model or a metric, ours or anybody's, by the checks that ours are held to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from ..core import plugin_modules, registry
from ..core.errors import BadPlugin, Unsupported
from ..core.units import METRICS
from ..kit.findings import Checked, Flaw, KitProof
from ..kit.method_kit import check_method, check_metric, check_model
from ..kit.metric_checks import MetricExample
from ..machine import keeper
from ..machine.shared_state import SharedState
from ..methods.registry import METHODS
from ..metrics.base import ImageMetric
from ..models.protocol import Request
from ..models.registry import MODELS
from ..plans import attempt
from ..plans.attempt import Attempt
from ..plans.installed_things import TABLES, require
from ..plans.plugin_import import imported
from ..plugins import installed
from ..plugins import loading as plugins
from . import proving_apart

OnCheck = Callable[[Checked], None]
REGISTRATION = {  # how a plug-in registers a thing of each kind
    "methods": "@cachemark.method('name')", "models": "cachemark.models.registry.MODELS.add('name')",
    "metrics": "@cachemark.core.registry.metrics.add('name')",
}
LEFT_ALONE = "all checks: process is left alone"
LEFT_ALONE_ASKS = "All checks together change nothing of the process: settings of torch, functions of others, threads, environment."
SILENT: OnCheck = lambda checked: None  # noqa: E731 - a name for nothing


def prove_method(named: str | Path, *, knobs: Mapping[str, Any] | None = None, on_check: OnCheck = SILENT) -> list[KitProof]:
    """Make every check of the kit on a method, by its name or on those of a Python file. ``knobs`` go beside those of its budgets.
    ``on_check`` is called after each check. What a plug-in brings is checked in a process of its own, on one thread, in which its file is
    imported too. UnknownName where there is none, BadPlugin where the file has none, BadKnob for knobs that it has not."""
    return _proved("methods", named, dict(knobs or {}), on_check)


def prove_model(named: str | Path, *, weights: str = "", decoder_weights: str = "", on_check: OnCheck = SILENT) -> list[KitProof]:
    """Make every check of the kit on a model, by its name or on those of a Python file, as :func:`prove_method` does. It is loaded with
    the weights that are named, else with those that it has without any."""
    return _proved("models", named, {"weights": weights, "decoder_weights": decoder_weights}, on_check)


def prove_metric(named: str | Path, *, on_check: OnCheck = SILENT) -> list[KitProof]:
    """Make every check of the kit on a metric of a plug-in, by its name or on those of a Python file, as :func:`prove_method` does.
    Unsupported for one of cachemark itself."""
    if str(named) in METRICS:
        raise Unsupported(f"{named} is a metric of cachemark itself.", remedy="Name one of a plug-in or of an installed package.")
    return _proved("metrics", named, {}, on_check)


def _proved(kind: installed.Kind, named: str | Path, given: Mapping[str, Any], on_check: OnCheck) -> list[KitProof]:
    """Make the checks of things of a kind: of ours here, of those that a plug-in brings in a process of its own."""
    if _brought(kind, named):
        return proving_apart.heard(_started(kind, str(named), given), TABLES[kind].kind, str(named), on_check)
    return [check(on_check) for check in _checks(kind, named, given).values()]


def _brought(kind: installed.Kind, named: str | Path) -> bool:
    """True of a file, and of the name of what a plug-in or an installed package brings."""
    if _is_file(named):
        return True
    if (name := str(named)) in TABLES[kind]:
        return plugins.origin(TABLES[kind].get(name)) is not None
    return installed.offer(kind, name) is not None


def _is_file(named: str | Path) -> bool:
    return Path(named).suffix == ".py" or "/" in str(named)


def _checks(kind: installed.Kind, named: str | Path, given: Mapping[str, Any]) -> dict[str, Callable[[OnCheck], KitProof]]:
    """The checks of what is meant, by its name. ``given``: the knobs of methods, the fields of the request of models."""
    names = names_of(kind, named)
    if kind == "methods":
        for name in names:
            METHODS.get(name).build(given)  # knobs that one of them has not are refused before any check
        return {name: partial(check_method, METHODS.get(name), given) for name in names}
    if kind == "models":
        return {name: partial(check_model, MODELS.get(name), request=Request(**given)) for name in names}
    return {name: partial(check_metric, metric_example(name)) for name in names}


def _prove(kind: installed.Kind, named: str, given: Mapping[str, Any], told: proving_apart.Told) -> None:
    """Make the checks in a process of their own. What replaces a check does not pass: behind all of them, what the process shares is as it
    was before them."""
    for name, check in _checks(kind, named, given).items():
        told(name, None)
        state = SharedState()
        check(partial(told, name))
        if changes := state.changes():
            told(name, Checked(LEFT_ALONE, LEFT_ALONE_ASKS, (Flaw("the process as it was", "; ".join(map(str, changes))),), examples=1))
            state.restore()


def _started(kind: installed.Kind, named: str, given: Mapping[str, Any]) -> Attempt:
    """A process that makes the checks: a copy of this one where that is as good as a new one."""
    if attempt.possible():
        sys.stdout.flush()
        return attempt.speaking(lambda answer: proving_apart.speak(partial(_prove, kind, named, given), answer), aloud=True)
    command = [sys.executable, "-P", "-m", __name__, kind, named, json.dumps(given), *plugin_modules.files()]
    found_in = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # packages that this process finds
    started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True, env=found_in)
    assert started.stdout is not None
    return Attempt(started.pid, os.dup(started.stdout.fileno()), started.wait)


def main() -> None:
    """Entry of an interpreter that checks what its first two arguments name, a kind and a name or file, with the knobs or weights of the
    third as JSON, after the plug-ins that have been imported where it was started; it answers through what was standard output."""
    kind, named, given, *earlier = sys.argv[1:]
    answer = os.dup(1)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    for file in earlier:
        plugins.load(file)
    keeper.keep(lambda: proving_apart.speak(partial(_prove, cast("installed.Kind", kind), named, json.loads(given)), answer))


def metric_example(name: str) -> MetricExample:
    """A metric that has been registered."""
    return MetricExample(cast("type[ImageMetric]", registry.metrics.get(name)))


def names_of(kind: installed.Kind, named: str | Path) -> list[str]:
    """The things of a kind that are meant: all of a file, which is imported, or the one of that name."""
    table = TABLES[kind]
    if _is_file(named):
        imported(named)
        found = [name for name in table if (origin := plugins.origin(table.get(name))) and origin[0] == str(Path(named).resolve())]
        if not found:
            raise BadPlugin(f"Plug-in {str(named)!r} registers no {table.kind}.", remedy=f"Register one with {REGISTRATION[kind]}.")
        return found
    require(kind, [str(named)])
    table.get(str(named))
    return [str(named)]


if __name__ == "__main__":
    main()
