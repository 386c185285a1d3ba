"""Times and bytes of a case: the generations that are timed, and the one before them whose memory is watched."""

from __future__ import annotations

from dataclasses import replace
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
from ...metrics.base import Costs
from ...metrics.compute.speed import first_half, watched
from ...roofline.masked_flops import work
from .judge import Job

LIVE = "live_bytes"  # of an outcome's facts: those of keys and values over an image


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


def timed(case: Case, job: Job, full: Job | None = None) -> tuple[Costs, list[float]]:
    """The other warm-up generations, then the counted ones: their seconds and marks, and the seconds of the full cache beside them.

    A machine is faster at one time than at another, so each counted generation has one of ``full``, the full cache, right before or right
    after it by turns, and their ratio is the speedup. Where memory does not hold both, there is none. A job of several batches, whose
    time depends on the images, takes each of them at least once, and the full cache the same one."""
    own, beside = _Timed(job), _warmed(full, case.warmup) if full else None
    seconds, marks, full_seconds = list[float](), list[dict[int, float]](), list[float]()
    for repeat in range(1, case.warmup + max(case.repeats, own.batches)):
        counted, turn = repeat >= case.warmup, max(0, repeat - case.warmup)
        if beside and counted and repeat % 2:
            full_seconds.append(beside.once(turn)[0])
        total, moments = own.once(turn)
        if beside and counted and not repeat % 2:
            full_seconds.append(beside.once(turn)[0])
        if counted:
            seconds.append(total)
            marks.append(moments)
    return Costs(job.batch, own.layout.visual, first_half(own.layout), seconds, marks), full_seconds


def _warmed(job: Job, times: int) -> _Timed | None:
    """The job after its warm-up generations, or None where there is no memory for it."""
    timed_job = _Timed(job)
    try:
        for _ in range(times):
            timed_job.once()
    except Exception as error:
        if not exhausted(error):
            raise
        return None
    return timed_job


def _paced(layout: Layout, method: Method) -> Layout:
    """The layout with as many passes as the method makes."""
    if not isinstance(layout, MaskedLayout):
        return layout
    method.resolve(layout)
    return method.paced(layout)


def counted(job: Job) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of :class:`~cachemark.metrics.base.Costs`, and facts, from a generation that is watched and not timed, the first warm-up.

    Bytes come from the arena, and the peak is above the loaded weights. In a masked model FLOPs come from arithmetic. An
    engine that captures does so in a generation before that; its pool exists all the time, so it counts in the peak. The fact holds the
    bytes that ``live`` when so many ``tokens`` of an image are drawn: at the watched ones and at the next, whose pass has written them
    and dropped what goes there."""
    method, memory, drawn, live = job.method(), job.memory, [], {}
    labels, stops = torch.tensor(job.subset.labels, device=job.device), set(watched(_paced(job.layout, job.method())))

    def mark(index: int) -> None:
        now = method.live_bytes if {index, index - 1} & stops else None
        if now is not None:
            live[index + 1] = now

    def once() -> None:
        with torch.inference_mode():
            drawn.append(replace(job, method=lambda: method).drawn(labels, job.subset.seeds, memory, mark=mark))

    peak = _capture(job) + peak_bytes(job.device, once, job.loaded.parameters)
    with torch.inference_mode():
        job.loaded.decode(drawn[0])
    job.alive(len(job.subset))
    counts: dict[str, Any] = {
        "live_bytes": method.logical_bytes, "peak_live_bytes": method.peak_live_bytes, "slot_bytes": memory.nbytes("slots"),
        "workspace_bytes": memory.nbytes("workspace"), "state_bytes": memory.nbytes("state"), "peak_bytes": peak,
    }
    if isinstance(memory.engine, Graph):
        counts |= {"graph_bytes": memory.engine.nbytes, "capture_seconds": memory.engine.seconds}
    if isinstance(job.layout, MaskedLayout):
        counts["flops"] = [float(work(job.method(), job.layout).total)]
    noted = {LIVE: {"tokens": list(live), "live": list(live.values())}} if any(live.values()) else {}
    return counts, noted


def _capture(job: Job) -> int:
    """Let the graph engine capture in a generation of its own, and return the bytes that it keeps, its pool included.

    A decoder may skip passes here that it runs for other images, so all of them are run."""
    if not isinstance(engine := job.memory.engine, Graph):
        return 0
    before = allocated(job.device)
    if job.decoder is not None:
        decoder = job.decoder()
        job = replace(job, decoder=partial(Rehearsal, window=decoder.reach, look_ahead=decoder.ahead > 0))
    job.generate(slice(len(job.subset)))
    return allocated(job.device) - before + engine.pool_bytes


def graph_facts(memory: Memory) -> dict[str, Any]:
    """Return how many passes were captured, and how many ran as written for want of memory."""
    if not isinstance(memory.engine, Graph):
        return {}
    return {"graph": {"captured": memory.engine.captured, "missed": memory.engine.missed}}
