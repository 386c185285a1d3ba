"""Profiles of models under the full cache, which calibrate methods."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import Any

from ...cache.arena import Memory
from ...contract.method import Method
from ...core import seeds
from ...core.errors import Unsupported
from ...models.protocol import ModelEntry, Request
from ...models.registry import MODELS
from .bench import Job


def calibrated(method: type[Method], model: str, request: Request, *, subset: str, samples: int, batch: int = 4) -> dict[str, Any]:
    """Return a method's calibration facts, measured under a model's ``paper`` sampling and full cache.

    Includes the identity of its weights, the samples, and the seconds it took."""
    watcher = method.profiler()
    if watcher is None:
        raise Unsupported(f"{method.name} needs no calibration.", remedy="It runs on a model as it is.")
    entry: ModelEntry = MODELS.get(model).for_request(request)
    if entry.paradigm not in method.paradigms:
        lacks = " and has no scales" if "next-scale" in method.paradigms else ""
        raise Unsupported(f"{model} is a {entry.paradigm} model{lacks}.",
                          remedy=f"Name a {' or '.join(method.paradigms)} model: cachemark list models.")
    loaded, chosen = entry.load(request), seeds.subset(subset, entry.classes)
    chosen = chosen.first(samples) if samples else chosen
    job = Job(loaded, Method, Memory(request.device), entry.presets["paper"], chosen, min(batch, len(chosen)), request.device)
    assert isinstance(watcher, Method)
    began = perf_counter()
    for part in job.chunks():
        replace(job, method=lambda: watcher, memory=Memory(job.device)).generate(part)
    seconds = round(perf_counter() - began, 2)
    return {"model": model, "weights": loaded.weights, "seeds": subset, "samples": len(job.subset), **watcher.facts, "seconds": seconds}
