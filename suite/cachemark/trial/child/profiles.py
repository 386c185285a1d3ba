"""Profiles of models under the full cache on a fixed subset of seeds: attention of the layers or heads of a next-scale or next-token
model, redundancy between passes of a masked one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...cache.arena import Memory
from ...contract.method import Method
from ...core import seeds
from ...core.errors import Unsupported
from ...methods.profiles.inter_scale import ScaleProfile
from ...methods.profiles.redundancy import Redundancy
from ...models.protocol import Loaded, ModelEntry, Request
from ...models.registry import MODELS
from .judge import Job

DIGITS = 6


def profiled(job: Job) -> dict[str, Any]:
    """Inter-scale similarity and attention of every layer over the job's samples, and the seconds that it took."""
    watcher = ScaleProfile()
    seconds = _watched(job, watcher)
    return {
        "scales": list(watcher.layout.scales), "seeds": job.subset.name, "samples": len(job.subset),
        "similarity": _rounded(watcher.similarity), "mass": _rounded(watcher.mass), "seconds": seconds,
    }


def repeated(job: Job) -> dict[str, Any]:
    """Likeness of successive passes of a masked model, over the job's samples, and the seconds that it took."""
    watcher = Redundancy()
    seconds = _watched(job, watcher)
    return {"seeds": job.subset.name, "samples": len(job.subset), **_rounded(watcher.profile()), "seconds": seconds}


def _watched(job: Job, watcher: Method) -> float:
    """Generate the job's samples under one watcher; the seconds that it took."""
    began = time.perf_counter()
    for part in job.chunks():
        replace(job, method=lambda: watcher, memory=Memory(job.device)).generate(part)
    return round(time.perf_counter() - began, 2)


def _rounded(content: Any) -> Any:
    """A copy with fewer digits."""
    if isinstance(content, dict):
        return {name: _rounded(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_rounded(value) for value in content]
    return round(content, DIGITS) if isinstance(content, float) else content


def calibrated(method: type[Method], model: str, request: Request, *, subset: str, samples: int, batch: int = 4) -> dict[str, Any]:
    """The facts that a method asks for, measured of a model by name under its ``paper`` sampling and the full cache; with the identity of
    its weights, the samples, and the seconds that it took."""
    watcher = method.profiler()
    if watcher is None:
        raise Unsupported(f"{method.name} asks for no calibration.", remedy="It runs on a model as it is.")
    loaded, job = _job(model, request, subset, batch, method.paradigms, samples)
    assert isinstance(watcher, Method)
    seconds = _watched(job, watcher)
    return {"model": model, "weights": loaded.weights, "seeds": subset, "samples": len(job.subset), **watcher.facts, "seconds": seconds}


def _job(
    model: str, request: Request, subset: str, batch: int, paradigms: Sequence[str], samples: int = 0,
) -> tuple[Loaded, Job]:
    """A model of one of these families, and the task of drawing some samples of a subset, by default all."""
    entry: ModelEntry = MODELS.get(model)
    if entry.paradigm not in paradigms:
        lacks = " and has no scales" if "next-scale" in paradigms else ""
        raise Unsupported(f"{model} is a {entry.paradigm} model{lacks}.",
                          remedy=f"Name a {' or '.join(paradigms)} model: cachemark list models.")
    loaded, chosen = entry.load(request), seeds.subset(subset, entry.classes)
    chosen = chosen.first(samples) if samples else chosen
    job = Job(loaded, Method, Memory(request.device), entry.presets["paper"], chosen, min(batch, len(chosen)), request.device)
    return loaded, job
