"""Profiles of models under the full cache: attention per layer or head, redundancy between passes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from ...cache.arena import Memory
from ...contract.method import Method
from ...core import seeds
from ...core.errors import Unsupported
from ...methods.base.profiles import Redundancy, ScaleProfile, rounded
from ...models.protocol import ModelEntry, Request
from ...models.registry import MODELS
from .bench import Job

DIGITS = 6


def scale_profile(job: Job) -> dict[str, Any]:
    """Return inter-scale similarity and attention of every layer over the job's samples, timed."""
    watcher = ScaleProfile()
    seconds = _watched(job, watcher)
    return {
        "scales": list(watcher.layout.scales), "seeds": job.subset.name, "samples": len(job.subset),
        "similarity": rounded(watcher.similarity, DIGITS), "mass": rounded(watcher.mass, DIGITS), "seconds": seconds,
    }


def redundancy(job: Job) -> dict[str, Any]:
    """Return the similarity of successive passes of a masked model over the job's samples, timed."""
    watcher = Redundancy()
    seconds = _watched(job, watcher)
    return {"seeds": job.subset.name, "samples": len(job.subset), **rounded(watcher.profile(), DIGITS), "seconds": seconds}


def _watched(job: Job, watcher: Method) -> float:
    """Generate the job's samples under one observing method and return the seconds it took."""
    began = time.perf_counter()
    for part in job.chunks():
        replace(job, method=lambda: watcher, memory=Memory(job.device)).generate(part)
    return round(time.perf_counter() - began, 2)


def calibrated(method: type[Method], model: str, request: Request, *, subset: str, samples: int, batch: int = 4) -> dict[str, Any]:
    """Return a method's calibration facts, measured under a model's ``paper`` sampling and full cache.

    Includes the identity of its weights, the samples, and the seconds it took."""
    watcher = method.profiler()
    if watcher is None:
        raise Unsupported(f"{method.name} needs no calibration.", remedy="It runs on a model as it is.")
    entry: ModelEntry = MODELS.get(model)
    if entry.paradigm not in method.paradigms:
        lacks = " and has no scales" if "next-scale" in method.paradigms else ""
        raise Unsupported(f"{model} is a {entry.paradigm} model{lacks}.",
                          remedy=f"Name a {' or '.join(method.paradigms)} model: cachemark list models.")
    loaded, chosen = entry.load(request), seeds.subset(subset, entry.classes)
    chosen = chosen.first(samples) if samples else chosen
    job = Job(loaded, Method, Memory(request.device), entry.presets["paper"], chosen, min(batch, len(chosen)), request.device)
    assert isinstance(watcher, Method)
    seconds = _watched(job, watcher)
    return {"model": model, "weights": loaded.weights, "seeds": subset, "samples": len(job.subset), **watcher.facts, "seconds": seconds}
