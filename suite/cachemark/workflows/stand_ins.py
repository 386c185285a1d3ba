"""Assumed calibrations for weights that were never calibrated, to estimate the cost of a method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..cache.layout import Layout
from ..contract.method import Method
from ..methods.ams_kv import AMSKV
from ..methods.base import calibrations
from ..methods.base.calibrations import Calibrated, even
from ..methods.registry import METHODS
from ..models.protocol import ModelEntry, Request
from ..models.registry import MODELS
from ..plans.schema import Cells, MethodTable, Plan


def sixth(layout: Layout) -> int:
    """Return the number of demanding layers in AMS-KV's Table 2, a sixth."""
    return layout.layers // 6


def calibration_parameter(cls: type[Method], entry: ModelEntry) -> dict[str, str]:
    """Return the parameter that names the calibration of a model or of its packaged weights, if any."""
    if not issubclass(cls, Calibrated):
        return {}
    facts = calibrations.packaged(cls.name).get(entry.name) or calibrations.measured(cls.name, entry.identity(Request()))
    return {"calibration": calibrations.remember(cls.name, facts)} if facts else {}


def stand_in(cls: type[Method], entry: ModelEntry) -> dict[str, Any]:
    """Return parameters that replace a missing calibration.

    AMS-KV: a sixth of the layers is demanding. A calibrated method: the model's calibration, else one of even attention. Other methods need
    none.
    """
    layout = entry.shape(entry.presets["paper"], 1)
    if layout.paradigm not in cls.paradigms:
        return {}
    if issubclass(cls, AMSKV):
        return {"demanding": list(range(sixth(layout)))}
    if not issubclass(cls, Calibrated):
        return {}
    return calibration_parameter(cls, entry) or {"calibration": _even(cls, layout)}


def with_stand_ins(plan: Plan, bare: Plan) -> Plan:
    """Return ``bare``, the plan with random weights for missing files, with assumed calibrations."""
    cells = [_with_stand_ins(own) if own.weights != planned.weights else own for planned, own in zip(plan.cells, bare.cells, strict=True)]
    return bare.model_copy(update={"cells": cells})


def _with_stand_ins(block: Cells) -> Cells:
    if block.model not in MODELS:
        return block
    entry: ModelEntry = MODELS.get(block.model)
    budgets = [_table(method, entry) if isinstance(method, str | MethodTable) else method for method in block.budgets]
    return block.model_copy(update={"methods": [_table(method, entry) for method in block.methods], "budgets": budgets})


def _table(method: str | MethodTable, entry: ModelEntry) -> str | MethodTable:
    """Return a method with assumed values for parameters that the plan does not set; else the name itself."""
    named = MethodTable(name=method) if isinstance(method, str) else method
    if named.name not in METHODS or not (parameters := stand_in(METHODS.get(named.name), entry)):
        return method
    return MethodTable.model_validate({**parameters, **named.model_dump()})


def _even(cls: type[Calibrated], layout: Layout) -> str:
    """Return the digest of a calibration with equal layers, heads and scales, and all its tables."""
    name, facts = calibrations.named(cls.name, even(layout, cls.name))
    lacking = {table: _zeros(shape) for table, shape in cls().tables(facts, layout).items() if table not in facts}
    return calibrations.remember(cls.name, {**facts, **lacking}) if lacking else name


def _zeros(shape: Sequence[int]) -> Any:
    return [_zeros(shape[1:]) for _ in range(shape[0])] if shape else 0.0
