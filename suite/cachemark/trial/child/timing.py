"""Times and bytes of a case: the generations that are timed, and the one before them whose memory is watched."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from ...cache.arena import Memory
from ...cache.engine.graph import Graph
from ...cache.layout import Layout
from ...cache.masked_layout import MaskedLayout
from ...contract.decoder import Rehearsal
from ...contract.method import Method
from ...core.spec import Case
from ...machine.memory import allocated, exhausted, peak_bytes
from ...machine.timer import clock
from ...metrics.compute.speed import halves, watched
from ...roofline.masked_flops import work
from .judge import Job

SPEED = ("latency", "latency_tokens", "tokens_per_s_first", "tokens_per_s_last")
LIVE = "live_bytes"  # of an outcome's facts: those of keys and values over an image


@dataclass
class Times:
    """Figures of each counted generation by metric, the marks of each, and the latencies of the full cache that ran in turns with it."""

    samples: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in SPEED})
    marks: list[dict[int, float]] = field(default_factory=list)
    full: list[float] = field(default_factory=list)


class _Timed:
    """A job whose generations are timed, image decoding included, one of its batches after the other."""

    def __init__(self, job: Job) -> None:
        self.job, self.layout = job, _paced(job.first(job.batch).layout, job.method())
        self._watch = clock(job.device, watched(self.layout))
        self._batches = [(torch.tensor(job.subset.labels[part], device=job.device), job.subset.seeds[part]) for part in job.alike()]

    @property
    def batches(self) -> int:
        return len(self._batches)

    def once(self, turn: int = 0) -> tuple[float, dict[int, float]]:
        """Seconds of one more generation, and its marks."""
        labels, seeds = self._batches[turn % len(self._batches)]
        self._watch.start()
        with torch.inference_mode():
            self.job.loaded.decode(self.job.drawn(labels, seeds, self.job.memory, mark=self._watch.mark))
        took = self._watch.stop(), self._watch.marks()
        self.job.alive(len(seeds))
        return took


def timed(case: Case, job: Job, full: Job | None = None) -> Times:
    """The other warm-up generations, then the counted ones: latency with and without image decoding, tokens/s of both halves.

    A machine is faster at one time than at another, so each counted generation has one of ``full``, the full cache, right before or right
    after it by turns, and their ratio is the speed-up. Where memory does not hold both, there is none. A job of several batches, whose
    time depends on the images, takes each of them at least once, and the full cache the same one."""
    own, beside, found = _Timed(job), _warmed(full, case.warmup) if full else None, Times()
    for repeat in range(1, case.warmup + max(case.repeats, own.batches)):
        counted, turn = repeat >= case.warmup, max(0, repeat - case.warmup)
        if beside and counted and repeat % 2:
            found.full.append(beside.once(turn)[0])
        total, marks = own.once(turn)
        if beside and counted and not repeat % 2:
            found.full.append(beside.once(turn)[0])
        if counted:
            figures = (total, marks[own.layout.visual - 1], *halves(marks, own.layout, job.batch))
            for name, value in zip(SPEED, figures, strict=True):
                found.samples[name].append(value)
            found.marks.append(marks)
    return found


def _warmed(job: Job, times: int) -> _Timed | None:
    """The job after its warm-up generations, or None where there is no memory for it."""
    found = _Timed(job)
    try:
        for _ in range(times):
            found.once()
    except Exception as error:
        if not exhausted(error):
            raise
        return None
    return found


def _paced(layout: Layout, method: Method) -> Layout:
    """The layout with as many passes as the method makes."""
    if not isinstance(layout, MaskedLayout):
        return layout
    method.resolve(layout)
    return method.paced(layout)


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
    job.alive(len(job.subset))
    stage = memory.nbytes("stage")
    figures: dict[str, float] = {"kv_logical": method.logical_bytes, "kv_allocated": memory.nbytes("slots") + stage, "kv_stage": stage,
               "kv_state": memory.nbytes("state"), "peak_memory": peak}
    if method.high_water_bytes is not None:
        figures["kv_high_water"] = method.high_water_bytes
    if isinstance(memory.engine, Graph):
        figures |= {"graph_pool": memory.engine.nbytes, "capture_seconds": memory.engine.seconds}
    if isinstance(job.layout, MaskedLayout):
        figures["flops"] = work(job.method(), job.layout).total
    noted = {LIVE: {"tokens": list(live), "live": list(live.values())}} if any(live.values()) else {}
    return {name: [float(value)] for name, value in figures.items()}, noted


def _recorded(job: Job) -> int:
    """Let an engine that records do so, in a generation of its own: bytes that are taken from then on, its pool included. A decoder skips
    passes there that it may run for other images, so all of them are run."""
    if not isinstance(engine := job.memory.engine, Graph):
        return 0
    before = allocated(job.device)
    if job.decoder is not None:
        decoder = job.decoder()
        job = replace(job, decoder=partial(Rehearsal, window=decoder.reach, look_ahead=decoder.ahead > 0))
    job.generate(slice(len(job.subset)))
    return allocated(job.device) - before + engine.pool_bytes


def graph_facts(memory: Memory) -> dict[str, Any]:
    """Numbers of passes that were recorded, and of those that ran as written because their recording had no room."""
    if not isinstance(memory.engine, Graph):
        return {}
    return {"graph": {"recorded": memory.engine.recorded, "missed": memory.engine.missed}}
