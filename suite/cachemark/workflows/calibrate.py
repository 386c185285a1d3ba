"""A calibration: what a method asks to be known of weights, measured on the tuning seeds and kept where runs find it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..contract.method import Method
from ..methods.base import calibrations
from ..methods.registry import METHODS
from ..models.protocol import Request
from ..trial.child.profiles import calibrated

SEEDS = "tune64"  # no value is measured on them


@dataclass(frozen=True)
class Calibration:
    """A calibration: method, facts, the digest by which cases name it, and its file."""

    method: str
    facts: Mapping[str, Any]
    digest: str
    path: Path


def calibrate(
    method: str, model: str, *, samples: int = 10, weights: str = "", decoder_weights: str = "", device: str = "cpu", seed: int = 0,
    to: str | Path | None = None,
) -> Calibration:
    """Measure what a method needs to know about a model and write it to a file.

    The first ``samples`` of the tuning seeds are generated under the full cache in fp32. Without ``to`` the file is where every run in
    this folder finds it by its weights. Raises Unsupported for a method that needs nothing.
    """
    cls: type[Method] = METHODS.get(method)
    request = Request(device, weights=weights, decoder_weights=decoder_weights, seed=seed)
    facts = calibrated(cls, model, request, subset=SEEDS, samples=samples)
    path = calibrations.save(method, facts, None if to is None else Path(to))
    return Calibration(method, facts, calibrations.fingerprint(facts), path)
