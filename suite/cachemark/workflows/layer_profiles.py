"""A profile of the layers of a next-scale model, and the layers that AMS-KV calls demanding by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..methods.ams_kv import AMSKV
from ..models.protocol import ModelEntry, Request
from ..models.registry import MODELS
from ..trial.child.profiles import layers


@dataclass(frozen=True)
class LayerProfile:
    """``found`` is in the form of ``data/calibration/ams_kv.json``: similarity and attention by layer and scale. ``theta``, ``c_min``
    and ``c_max`` are AMS-KV's, ``demanding`` the layers that it gives the larger budget by them."""

    model: str
    found: dict[str, Any]
    theta: float
    c_min: int
    c_max: int
    demanding: tuple[int, ...]


def layer_profile(model: str, *, weights: str = "", decoder_weights: str = "", theta: float | None = None) -> LayerProfile:
    """Measure the layers of a next-scale model on the seeds of s64, under the full cache; ``theta`` None is ams_kv's own."""
    found = layers(model, Request(weights=weights, decoder_weights=decoder_weights))
    policy = AMSKV() if theta is None else AMSKV(theta=theta)
    entry: ModelEntry = MODELS.get(model)
    policy.calibrate(found)
    policy.resolve(entry.shape(entry.presets["paper"], 1))
    return LayerProfile(model, found, policy.theta, policy.c_min, policy.c_max, tuple(policy.demanding or ()))
