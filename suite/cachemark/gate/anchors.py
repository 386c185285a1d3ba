"""Anchors: published values that the full cache must reach here before other values compare with them.

Values of a cache method compare with a paper only if the baseline reproduces the paper's. An *anchor* is the table ``[anchor]`` of a plan:
a metric, its published value, the tolerance and the source. Once a run reaches it, the value is recorded with the weights, and reports no
longer warn about exactly these weights.

Bundled models need no anchor: no value of them is published, and the package contains their weights.
"""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as validated

from ..core.errors import BadBaseline
from ..core.result import Outcome
from ..core.spec import FULL
from .baselines import file_in, read, write

ROOT = Path("baselines/anchors")
PASSED, FAILED, NOT_MEASURED = "passed", "failed", "not measured"


@validated(frozen=True, config=ConfigDict(strict=True, allow_inf_nan=False, extra="forbid"))
class Anchor:
    """A published value of the full cache of ``model``: ``metric`` within ``tolerance`` of ``expected``.

    ``source`` is the publication, ``sampling`` its known sampling settings."""

    model: str
    metric: Annotated[str, Field(min_length=1)]
    expected: float
    tolerance: Annotated[float, Field(gt=0)]
    source: Annotated[str, Field(min_length=1)]
    sampling: Mapping[str, Any] = field(default_factory=dict)


@validated(frozen=True, config=ConfigDict(strict=True, allow_inf_nan=False, extra="forbid"))
class ReachedAnchor:
    """An anchor reached with these ``weights`` and ``value``; ``facts`` are for people."""

    anchor: Anchor
    weights: str
    value: float
    case: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)
    format: Literal[1] = 1


def judge(anchor: Anchor, outcome: Outcome) -> tuple[str, str]:
    """Compare a result with the anchor: return ``passed``, ``failed`` or ``not measured``, and the reason in a sentence.

    It is ``not measured`` for another model, method or sampling, a failed case, or random weights."""
    if reason := _unfit(anchor, outcome):
        return NOT_MEASURED, reason
    value = outcome.mean(anchor.metric)
    assert value is not None  # else it would have been unfit
    off = value - anchor.expected
    text = f"{anchor.metric} = {value:.4g}, published {anchor.expected:g} ± {anchor.tolerance:g} ({anchor.source})"
    if abs(off) <= anchor.tolerance:
        return PASSED, f"{text}."
    return FAILED, (f"{text}: {abs(off):.4g} {'above' if off > 0 else 'below'} it. "
                    "Weights, sampling or evaluation are not those of the publication.")


def _unfit(anchor: Anchor, outcome: Outcome) -> str:
    """Return the reason why the result does not compare with the anchor, or an empty text."""
    case = outcome.case
    if case.model != anchor.model:
        return f"This is a case of {case.model}, the anchor is of {anchor.model}."
    if (case.method, case.role, case.codec) != (FULL, "baseline", "native"):
        return f"An anchor is for the full cache in its native codec; this is {case.label} ({case.role})."
    if "random" in [part.partition(":")[0] for part in case.weights.split("/")]:
        return f"The weights are random ({case.weights}); an anchor needs the published ones."
    differing = {key: value for key, value in anchor.sampling.items() if getattr(case.sampling, key, None) != value}
    if differing:
        key, value = next(iter(differing.items()))
        return f"The images were drawn with {key} = {getattr(case.sampling, key, None)!r}, the published ones with {value!r}."
    if not outcome.ok:
        return f"The case ended as {outcome.status}: {(outcome.log.strip().splitlines() or [''])[0]}"
    if anchor.metric not in outcome.samples:
        return f"{anchor.metric} was not measured. {outcome.judgement}".strip()
    return ""


# -- what has been reached ---------------------------------------------------------------------------------------------
def save(folder: Path | str, anchor: Anchor, outcome: Outcome, facts: Mapping[str, Any] | None = None) -> Path:
    """Record that the anchor was reached, in one step. Raises BadBaseline if it was not reached."""
    state, reason = judge(anchor, outcome)
    value = outcome.mean(anchor.metric) if state == PASSED else None
    if value is None:
        raise BadBaseline(f"The anchor of {anchor.model} is {state}. {reason}", remedy="Record only one that passed.")
    stored = ReachedAnchor(anchor, outcome.case.weights, value, outcome.case.to_json(), dict(facts or {}))
    path = file_in(folder, anchor.model, "model")
    write(path, json.dumps(asdict(stored), indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n",
          remedy="Name another folder for anchors.")
    return path


def load(folder: Path | str = ROOT) -> list[ReachedAnchor]:
    """Read all recorded anchors, by model; none if the folder does not exist.

    Raises BadBaseline for a damaged file, or one with a value outside its own tolerance."""
    anchors = []
    for path in sorted(Path(folder).glob("*.json")):
        stored = read(path, ReachedAnchor)
        if path.stem != stored.anchor.model or abs(stored.value - stored.anchor.expected) > stored.anchor.tolerance:
            raise BadBaseline(f"{path} has value = {stored.value:g} of {stored.anchor.model}, which did not reach "
                              f"{stored.anchor.expected:g} ± {stored.anchor.tolerance:g}.", remedy="Take the file from version control.")
        anchors.append(stored)
    return anchors


# -- what reports say ---------------------------------------------------------------------------------------------------
def not_reproduced(model: str, weights: str, anchors: Iterable[ReachedAnchor]) -> str:
    """Return the warning of a report about a model that was run with ``weights``.

    Empty if the anchor was reached with exactly these weights, and for bundled models."""
    own = [stored.weights for stored in anchors if stored.anchor.model == model]
    if weights in own or model in bundled():
        return ""
    if "random:" in weights:
        why = "its weights are random, so its images are noise and no quality here compares with a published one."
        return f"{model} is not anchored: {why}"
    why = "its anchor was reached with other weights" if own else "its full cache has not been shown to reach a published quality here"
    plan = f" To show it: cachemark run anchor-{model}" if model in shipped() else ""
    return f"{model} is not anchored: {why}, so its values do not compare with those of papers.{plan}"


@functools.cache
def shipped() -> Mapping[str, Anchor]:
    """Return the anchors of the shipped plans, by model."""
    folder = resources.files("cachemark") / "data" / "plans"
    tables = (tomllib.loads(file.read_text(encoding="utf-8")) for file in folder.iterdir() if file.name.endswith(".toml"))
    anchors = (Anchor(plan["cells"][0]["model"], **plan["anchor"]) for plan in tables if "anchor" in plan)
    return {anchor.model: anchor for anchor in sorted(anchors, key=lambda a: a.model)}


@functools.cache
def bundled() -> frozenset[str]:
    """Return the names of the bundled models."""
    folder = resources.files("cachemark") / "data" / "weights"
    described = (json.loads(file.read_text(encoding="utf-8")) for file in folder.iterdir() if file.name.endswith(".json"))
    return frozenset(data["model"] for data in described if "model" in data)
