"""Calibration of a method on the tuning seeds of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..contract.method import Method
from ..core.files import writing
from ..methods.base import calibrations
from ..methods.registry import METHODS
from ..models.protocol import Request
from ..trial.child.profiles import calibrated

SEEDS = "tune64"  # no value is measured on them


@dataclass(frozen=True)
class Calibration:
    """A calibration: method, facts, digest (its name in cases), and file."""

    method: str
    facts: Mapping[str, Any]
    digest: str
    path: Path


def calibrate(
    method: str, model: str, *, samples: int = 10, weights: str = "", decoder_weights: str = "", device: str = "cpu",
    grid: tuple[int, int] | None = None, to: str | Path | None = None,
) -> Calibration:
    """Compute the calibration of a method for a model and write it to a file.

    The first ``samples`` of the tuning seeds are generated with the full cache in fp32. ``grid``: rows and columns of tokens, for a model
    with several aspect ratios. Without ``to``, the file is written where runs in
    this folder look for it. Raises Unsupported for a method without calibration.
    """
    cls: type[Method] = METHODS.get(method)
    request = Request.of(model, weights, decoder_weights, device=device, grid=grid or ())
    facts = calibrated(cls, model, request, subset=SEEDS, samples=samples)
    with writing(to or "The calibration", "Name another file with --to."):
        path = calibrations.save(method, facts, None if to is None else Path(to))
    return Calibration(method, facts, calibrations.fingerprint(facts), path)
