"""A campaign on a machine without a GPU: every stage with small models, to find errors early."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cachemark.core.spec import digest
from cachemark.models.registry import MODELS
from cachemark.plans.schema import Cells, Fidelity, MethodTable, Plan, Quality, SamplingTable, Timing

SMALL = {"next-token": "tiny-llamagen", "next-scale": "tiny-var", "masked": "tiny-mar"}
FITTING: dict[str, dict[str, Any]] = {"ams_kv": {"demanding": [1]}, "fastvar": {}}
BATCH, STEPS, DIFFUSION = 2, 6, 2
IMAGES, QUICK = 400, "next-scale"  # the least that a FID is stated of, and the family that makes so many soon


def rehearsed(plan: Plan, *, engine: str = "eager", models: dict[str, str] = SMALL) -> Plan:
    """Return the plan with small models, a small batch, few images and this ``engine``; merge equal blocks."""
    cells = distinct(_small(cells, engine, models) for cells in plan.cells)
    quality = plan.quality and Quality(seeds="s2k", samples=IMAGES, batch=50)
    fidelity = Fidelity(seeds="s64", samples=BATCH, batch=BATCH)
    return plan.model_copy(update={"cells": cells, "timing": Timing(warmup=1, repeats=3), "fidelity": fidelity, "quality": quality})


def distinct(blocks: Iterable[Cells]) -> list[Cells]:
    """Return the blocks of each stage (the tens of their priority) without repetitions."""
    blocks_by_stage: dict[tuple[int, str], Cells] = {}
    for cells in blocks:
        blocks_by_stage.setdefault((cells.priority // 10, digest(cells.model_dump(mode="json", exclude={"priority"}))), cells)
    return list(blocks_by_stage.values())


def _small(cells: Cells, engine: str, models: dict[str, str]) -> Cells:
    family = MODELS.get(cells.model).paradigm
    changes: dict[str, Any] = {
        "model": models[family], "batch": BATCH, "samples": 0, "dtype": "float32", "weights": "", "decoder_weights": "",
        "methods": [_fitting(method) for method in cells.methods], "budgets": [_fitting(budget) for budget in cells.budgets],
        "engine": engine if cells.engine in ("graph", "auto") else cells.engine, "quality": cells.quality and family == QUICK,
    }
    if family == "masked":
        changes["sampling"] = SamplingTable(steps=STEPS, diffusion_steps=DIFFUSION)
    return cells.model_copy(update=changes)


def _fitting(named: Any) -> Any:
    """A method with layers and shares that a small model has."""
    if not isinstance(named, MethodTable) or named.name not in FITTING:
        return named
    layers = FITTING[named.name]
    return MethodTable.model_validate({"name": named.name, **layers}) if layers else named.name
