"""Lists of models, methods, decoders, metrics, shipped plans and stored runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ..core import registry
from ..core.calls import listed
from ..core.errors import Unsupported
from ..core.files import PACKAGE, read_json
from ..core.outside_metrics import KEY, know
from ..core.shipped_plans import ON_CPU
from ..core.spec import FULL
from ..core.units import FAMILIES, METRICS, Metric, metric
from ..core.version import __version__
from ..plans import schema
from ..plugins import installed
from .session import DEFAULT_STORE, reading

COSTS = PACKAGE / "data" / "plan_costs.json"  # of the shipped plans, estimated by tools/cards/plans.py
GPU = "h100"  # of these estimates
PLAN_TIMES = "one H100, and for the group tiny for one thread of an AMD EPYC"
PLAN_GROUPS = schema.GROUPS
Kind = Literal["models", "methods", "decoders", "metrics", "plans", "runs"]


def listing(
    kind: Kind, *, store: str | Path = DEFAULT_STORE, plugins: Sequence[str | Path] = (), model: str = "",
) -> list[dict[str, Any]]:
    """List everything of a kind: ``name``, ``summary``, and facts of the kind.

    Includes ``plugins`` and installed packages: ``origin`` and ``version`` state the source, ``refused`` why an installed one cannot be
    loaded. Runs come from ``store``, newest first. With ``model``, methods have ``unsupported_reason``: why they cannot run on it,
    or empty. Raises Unsupported for a model with another kind, and UnknownName.
    """
    if model and kind != "methods":
        raise Unsupported(f"A model has no effect on the list of {kind}.", remedy="Leave it out, or list methods.")
    if plugins:
        from ..plugins import loading

        for file in listed(plugins):
            loading.load(file)
    brought = kind in ("methods", "models") or (kind == "metrics" and installed.offers("metrics"))  # imports torch
    refused = _installed(kind) if brought else []
    sources: dict[Kind, Callable[[], list[dict[str, Any]]]] = {
        "models": _models, "methods": partial(_methods, model), "decoders": _decoders, "metrics": _metrics, "plans": _plans,
        "runs": partial(_runs, store)}
    return [*sources[kind](), *refused]


def _installed(kind: Kind) -> list[dict[str, Any]]:
    """Import everything of a kind that installed packages bring; a row for each thing that cannot be had."""
    from ..plugins.loading import refused

    return [{"name": offer.name, "summary": f"Refused: {reason}.", "origin": offer.package, "version": offer.version, "refused": reason}
            for offer in installed.offers(kind) if (reason := refused(offer))]  # type: ignore[arg-type]


def _origin(kind: installed.Kind, name: str, thing: Any) -> dict[str, str]:
    """Return the package of a thing and its version; for a plug-in file its path and digest."""
    from ..plugins.loading import origin

    if (source := origin(thing)) is None:
        return {"origin": "cachemark", "version": __version__}
    file, digest = source
    of = [offer for offer in installed.offers(kind) if offer.name == name and str(offer.file.resolve()) == file]
    return {"origin": of[0].package, "version": of[0].version} if of else {"origin": file, "version": digest}


def _models() -> list[dict[str, Any]]:
    from ..contract.planning import SEEN
    from ..models.registry import MODELS
    from ..models.weights import packaged

    entries = [MODELS.get(name) for name in MODELS]
    return [{"name": e.name, "summary": e.summary, "family": e.family, "paradigm": e.paradigm, "grid": e.grid, "classes": e.classes,
             "presets": {name: asdict(preset) for name, preset in e.presets.items()},
             "packaged": packaged(f"{e.name}.safetensors").is_file(), "cache_bytes": cache_bytes(e), "authors_code": e.authors_code,
             "code_seen": SEEN if e.authors_code else "", **_origin("models", e.name, e)}
            for e in entries]


def cache_bytes(entry: Any) -> int:
    """Return the bytes that the full cache allocates for one image in bf16, all rows of guidance included."""
    import torch

    from ..methods.registry import METHODS
    from ..roofline.memory import allocated

    return allocated(METHODS.get(FULL)(), replace(entry.shape(entry.presets["paper"], 1), dtype=torch.bfloat16))


def _methods(model: str) -> list[dict[str, Any]]:
    from ..contract.planning import SEEN
    from ..methods.registry import METHODS

    classes = {name: METHODS.get(name) for name in METHODS}
    rows = [{"name": name, "summary": sentence(cls.__doc__), "source": cls.source, "authors_code": cls.authors_code,
             "code_seen": SEEN if cls.authors_code else "", "parameters": cls().parameters(), "unstated": dict(cls.unstated),
             "paradigms": cls.paradigms, "builtin": cls.__module__.startswith("cachemark."), **_origin("methods", name, cls)}
            for name, cls in classes.items()]
    if model:
        from ..models.registry import MODELS
        from .roofline import why_not

        entry = MODELS.get(model)
        rows = [{**row, "unsupported_reason": why_not(METHODS.get(str(row["name"])), entry)} for row in rows]
    return rows


def _decoders() -> list[dict[str, Any]]:
    from ..decoders.registry import DECODERS

    classes = {name: DECODERS.get(name) for name in DECODERS}
    return [{"name": name, "summary": sentence(cls.__doc__), "source": cls.source, "parameters": cls().parameters(), "keeps": cls().keeps,
             "builtin": cls.__module__.startswith("cachemark.")} for name, cls in classes.items()]


def _metrics() -> list[dict[str, Any]]:
    """List fixed metrics, metric families by name pattern, and metrics of plug-ins."""
    named = {**METRICS, **{f"{name}_<preset>_<images>": family for name, family in FAMILIES.items()}}
    own = {"origin": "cachemark", "version": __version__}
    return [{**asdict(m), "name": name, "summary": _metric_summary(m), **own} for name, m in named.items()] + [
        {**asdict(m), "name": name, "stored": "" if m.per == "set" else m.name, "summary": _metric_summary(m),
         **_origin("metrics", name, registry.metrics.get(name))}
        for name in registry.metrics for m in (_of_plug_in(name),)]


def _metric_summary(of: Metric) -> str:
    return ", ".join(filter(None, (of.title, of.unit, f"{of.better} is better. {of.meaning}")))


def _of_plug_in(name: str) -> Metric:
    """Return a plug-in's metric as cases store it."""
    from ..plans.metrics import defined

    know({KEY: (definitions := defined(name))})
    return metric(next(iter(definitions)))


def _plans() -> list[dict[str, Any]]:
    own, costs = schema.names(), read_json(COSTS)
    brought = {offer.name: offer for offer in installed.offers("plans") if offer.name not in own}
    rows = [{"name": name, "group": schema.group(name), **_plan_cost(costs[name], schema.group(name)), "origin": "cachemark",
             "version": __version__} for name in own]
    rows += [{"name": name, "group": "plug-ins", "origin": offer.package, "version": offer.version} for name, offer in brought.items()]
    return [{**row, "summary": schema.load(row["name"]).description} for row in rows]


def _plan_cost(cost: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Return an estimated cost, also in words: what the plan ``needs``, and its ``time``."""
    gigabytes = {key: f"{cost[key] / 1e9:.2g} GB" for key in ("memory", "weights")}
    needs = ["nothing"] if group == ON_CPU else [f"GPU {gigabytes['memory']}"]
    needs += [f"weights {gigabytes['weights']}"] if cost["weights"] else []
    return {**cost, "needs": ", ".join(needs), "time": _span(cost["least"], cost["most"])}


def _span(least: float, most: float) -> str:
    """Return a range of hours in words, such as ``26 min–1.4 h``."""
    (low, unit), (high, its_unit) = ((float(f"{hours:.2g}"), "h") if hours >= 1 else (float(f"{60 * hours:.2g}"), "min")
                                     for hours in (least, most))
    if (low, unit) == (high, its_unit):
        return f"{low:g} {unit}"
    return f"{low:g}{'' if unit == its_unit else f' {unit}'}–{high:g} {its_unit}"


def _runs(store: str | Path) -> list[dict[str, Any]]:
    with reading(store) as source:
        return [{"name": str(r.id), "summary": f"{r.plan}, {r.state}, {r.started}, {r.environment.machine_class}"} for r in source.runs()]


def sentence(text: str | None) -> str:
    """Return the first sentence of a docstring on one line."""
    first, dot, _ = " ".join((text or "").split("\n\n")[0].split()).partition(". ")
    return first + dot.rstrip()
