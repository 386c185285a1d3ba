"""Anchors: published values that the full cache must reach here before other values compare with them.

Values of a cache method compare with a paper only if the baseline reproduces the paper's. An *anchor* is the table ``[anchor]`` of a plan:
a metric, its published value, the tolerance and the source. Once a stored run of such a plan reaches it, reports of the store no longer
warn about exactly these weights.

Bundled models need no anchor: no value of them is published, and the package contains their weights.
"""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..core.errors import BadStore
from ..core.files import PACKAGE
from ..core.result import Outcome
from ..core.shipped_plans import run_command
from ..core.spec import FULL
from ..core.stored_table import BadField, OtherVersion, StoredTable, needed
from ..store.db import Store
from ..store.rows import RunRecord

PASSED, FAILED, NOT_MEASURED = "passed", "failed", "not measured"
Reached = Collection[tuple[str, str]]  # models and their weights


@dataclass(frozen=True)
class Anchor(StoredTable):
    """A published value of a full cache: ``metric`` within ``tolerance`` of ``expected``, from ``source``."""

    metric: str = needed("metric")
    expected: float = needed("published value")
    tolerance: float = needed("largest difference from it")
    source: str = needed("publication")


def judge(anchor: Anchor, outcome: Outcome) -> tuple[str, str]:
    """Compare a result with the anchor; return ``passed``, ``failed`` or ``not measured``, and the reason.

    Only a successful full cache with published weights is compared; anything else is ``not measured``."""
    if reason := _unfit(anchor, outcome):
        return NOT_MEASURED, reason
    value = outcome.mean(anchor.metric)
    assert value is not None  # else it would have been unfit
    off = value - anchor.expected
    text = f"{anchor.metric} = {value:.4g}, published {anchor.expected:g} ± {anchor.tolerance:g} ({anchor.source})"
    if abs(off) <= anchor.tolerance:
        return PASSED, f"{text}."
    return FAILED, (f"{text}: {abs(off):.4g} {'above' if off > 0 else 'below'} it. "
                    "Weights, sampling or evaluation differ from the publication.")


def _unfit(anchor: Anchor, outcome: Outcome) -> str:
    """Return the reason why the result does not compare with the anchor, or an empty text."""
    case = outcome.case
    if (case.method, case.role, case.codec) != (FULL, "baseline", "native"):
        return f"An anchor is for the full cache in its native codec; this is {case.label} ({case.role})."
    if "random" in [part.partition(":")[0] for part in case.weights.split("/")]:
        return f"The weights are random ({case.weights}); an anchor needs the published ones."
    if not outcome.ok:
        return f"The case ended as {outcome.status}: {(outcome.log.strip().splitlines() or [''])[0]}"
    if anchor.metric not in outcome.samples:
        return f"{anchor.metric} was not measured. {outcome.unjudged}".strip()
    return ""


def reached(store: Store) -> Reached:
    """Return the models and weights whose anchor a run of the store has reached. Raises BadStore for an anchor that is none."""
    anchored = [(run, _stored_anchor(store, run)) for run in store.runs() if run.plan_json.get("anchor")]
    return {(outcome.case.model, outcome.case.weights) for run, anchor in anchored for outcome in store.outcomes(run.id)
            if judge(anchor, outcome)[0] == PASSED}


def _stored_anchor(store: Store, run: RunRecord) -> Anchor:
    try:
        return Anchor.from_json(run.plan_json["anchor"], "anchor")
    except (BadField, OtherVersion) as error:
        raise BadStore(f"{store.where} is damaged: run {run.id} has no usable anchor ({error}).", remedy="Restore a backup.") from error


def not_reproduced(model: str, weights: str, reached: Reached) -> str:
    """Return the warning of a report about a model that was run with ``weights``.

    Empty if its anchor was ``reached`` with exactly these weights, for bundled models, and without weights, as of ingested benchmarks."""
    if (model, weights) in reached or model in bundled() or weights == "none":
        return ""
    if "random:" in weights:
        why = "its weights are random, so its images are noise and no quality here compares with a published one."
        return f"{model} is not anchored: {why}"
    other_weights = model in {name for name, _ in reached}
    why = "its anchor was reached with other weights" if other_weights else "its full cache has not reproduced a published quality here"
    plan = f" To show it: {run_command(f'anchor-{model}')}" if model in shipped() else ""
    return f"{model} is not anchored: {why}, so its values are not comparable with papers.{plan}"


@functools.cache
def shipped() -> Mapping[str, Anchor]:
    """Return the anchors of the shipped plans, by model."""
    tables = (tomllib.loads(file.read_text(encoding="utf-8")) for file in (PACKAGE / "data" / "plans").glob("*/*.toml"))
    return {plan["cells"][0]["model"]: Anchor(**plan["anchor"]) for plan in tables if "anchor" in plan}


@functools.cache
def bundled() -> frozenset[str]:
    """Return the names of the bundled models."""
    described = (json.loads(file.read_text(encoding="utf-8")) for file in (PACKAGE / "data" / "weights").glob("*.json"))
    return frozenset(data["model"] for data in described if "model" in data)
