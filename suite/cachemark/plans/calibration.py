"""Facts measured once of certain weights, which a method's planning step reads: a packaged file for each method that has any."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from ..contract.method import Method


@cache
def _packaged(method: str) -> dict[str, dict[str, Any]]:
    file = resources.files("cachemark") / "data" / "calibration" / f"{method}.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def measured(method: str, weights: str) -> dict[str, Any]:
    """The facts for a method by name and the identity of the weights; of these the transformer's counts. Empty where there are none."""
    return _packaged(method).get(weights.partition("/")[0], {})


def calibrated(cls: type[Method], knobs: Mapping[str, Any], weights: str) -> Method:
    """An instance that knows the facts measured of these weights; errors are those of :meth:`Method.build`."""
    method = cls.build(knobs)
    method.calibrate(measured(cls.name, weights))
    return method
