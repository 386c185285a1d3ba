"""Times and bytes of a case: the generations that are timed, and the one before them whose memory is watched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ...cache.arena import Memory
from ...cache.engine.graph import Graph
from ...cache.layout import Layout
from ...cache.masked_layout import MaskedLayout
from ...contract.method import Method
from ...core.spec import Case
from ...machine.memory import allocated, peak_bytes
from ...machine.timer import clock
from ...metrics.speed import halves, watched
from ...roofline.masked_flops import work
from .judge import Job

LIVE = "live_bytes"  # of an outcome's facts: those of keys and values over an image


def timed(case: Case, job: Job) -> tuple[dict[str, list[float]], list[dict[int, float]]]:
    """The other warm-up generations, then the counted ones: latency with and without image decoding, tokens/s of both halves; and the
    marks of each counted one."""
    layout = _paced(job.layout, job.method())
    watch = clock(job.device, watched(layout))
    labels = torch.tensor(job.subset.labels, device=job.device)
    samples: dict[str, list[float]] = {name: [] for name in ("latency", "latency_tokens", "tokens_per_s_first", "tokens_per_s_last")}
    counted: list[dict[int, float]] = []
    for repeat in range(1, case.warmup + case.repeats):
        watch.start()
        with torch.inference_mode():
            job.loaded.decode(job.drawn(labels, job.subset.seeds, job.memory, mark=watch.mark))
        total, marks = watch.stop(), watch.marks()
        if repeat >= case.warmup:
            first, last = halves(marks, layout, len(labels))
            figures = (total, marks[layout.visual - 1], first, last)
            for name, value in zip(samples, figures, strict=True):
                samples[name].append(value)
            counted.append(marks)
    return samples, counted


def _paced(layout: Layout, method: Method) -> Layout:
    """The layout with as many passes as the method makes."""
    return replace(layout, steps=method.passes(layout.steps)) if isinstance(layout, MaskedLayout) else layout


def byte_figures(job: Job) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """A generation that is watched and not timed, the first warm-up: bytes from the arena, and the peak above the loaded weights. In a
    masked model also FLOPs, from arithmetic. What an engine records, it records in a generation before that, and its pool is at hand
    all the time, so it counts in the peak. And, as a fact, the bytes that ``live`` when so many ``tokens`` of an image are drawn: at
    the watched ones and at the next, whose pass has written them and dropped what goes there."""
    method, memory, drawn, live = job.method(), job.memory, [], {}
    labels, stops = torch.tensor(job.subset.labels, device=job.device), set(watched(_paced(job.layout, job.method())))

    def mark(index: int) -> None:
        now = method.live_bytes if {index, index - 1} & stops else None
        if now is not None:
            live[index + 1] = now

    def once() -> None:
        with torch.inference_mode():
            drawn.append(replace(job, method=lambda: method).drawn(labels, job.subset.seeds, memory, mark=mark))

    peak = _recorded(job) + peak_bytes(job.device, once, job.loaded.parameters)
    with torch.inference_mode():
        job.loaded.decode(drawn[0])
    stage = memory.nbytes("stage")
    figures: dict[str, float] = {"kv_logical": method.logical_bytes, "kv_allocated": memory.nbytes("slots") + stage, "kv_stage": stage,
               "kv_state": memory.nbytes("state"), "peak_memory": peak}
    if isinstance(memory.engine, Graph):
        figures |= {"graph_pool": memory.engine.nbytes, "capture_seconds": memory.engine.seconds}
    if isinstance(job.layout, MaskedLayout):
        figures["flops"] = work(job.method(), job.layout).total
    noted = {LIVE: {"tokens": list(live), "live": list(live.values())}} if any(live.values()) else {}
    return {name: [float(value)] for name, value in figures.items()}, noted


def _recorded(job: Job) -> int:
    """Let an engine that records do so, in a generation of its own: bytes that are taken from then on, its pool included."""
    if not isinstance(engine := job.memory.engine, Graph):
        return 0
    before = allocated(job.device)
    job.generate(slice(len(job.subset)))
    return allocated(job.device) - before + engine.pool_bytes


def graph_facts(memory: Memory) -> dict[str, Any]:
    """Numbers of passes that were recorded, and of those that ran as written because their recording had no room."""
    if not isinstance(memory.engine, Graph):
        return {}
    return {"graph": {"recorded": memory.engine.recorded, "missed": memory.engine.missed}}
