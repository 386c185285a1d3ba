"""Times, bytes and passes of a case, from timed generations and one whose memory is observed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from ...cache.arena import Memory
from ...cache.engines import Graph
from ...cache.kernels.check import measuring
from ...cache.layout import Layout, Step, window_step
from ...cache.masked_layout import MaskedLayout
from ...contract.decoder import Decoder, Rehearsal
from ...contract.method import Method
from ...core.facts import CapturedPasses, LiveBytes, TimingFacts, TokensPerPass
from ...core.spec import FLOPS, Case
from ...machine.energy import Energy, PackageEnergy, Span
from ...machine.load import OtherLoad
from ...machine.memory import allocated, exhausted, peak_bytes
from ...machine.timer import clock
from ...metrics.base import Costs
from ...metrics.compute.speed import first_half, watched
from ...roofline.flops_budget import image_flops
from .bench import Job, hashed
from .judge import storable

UNWATCHED = "The device was not watched while its generations were timed."
TimedTokens = dict[tuple[int, int], set[str]]  # hashes of the tokens of timed generations, by the samples of the batch


class _Timed:
    """A job whose generations are timed, image decoding included, one of its batches after the other."""

    def __init__(self, job: Job) -> None:
        self.job, self.layout = job, paced(job.first(job.batch).layout, job.method())
        self._watch = clock(job.device, watched(self.layout))
        self.batches = [(part, torch.tensor(job.subset.labels[part], device=job.device)) for part in job.alike()]
        self.hashes: TimedTokens = {}
        self.spans: list[Span] = []
        self._package = PackageEnergy() if job.device == "cpu" else None

    def once(self, turn: int = 0) -> tuple[float, dict[int, float]]:
        """Return the seconds of one more generation, and its marks.

        The hash of its tokens and its span are kept.
        """
        part, labels = self.batches[turn % len(self.batches)]
        seeds = self.job.subset.seeds[part]
        began = self._began()
        self._watch.start()
        with torch.inference_mode():
            tokens = self.job.drawn(labels, seeds, self.job.memory, mark=self._watch.mark)
            self.job.loaded.decode(tokens)
        times = self._watch.stop(), self._watch.marks()
        self._ended(began)
        self.hashes.setdefault((part.start, part.stop), set()).add(hashed(storable(self.job, tokens)))
        self.job.alive(len(seeds))
        return times


    def _began(self) -> float:
        """Return the time before a generation, after all earlier work; start the energy counter of a CPU."""
        if self.job.device != "cpu":
            torch.cuda.synchronize()
        now = time.monotonic()
        if self._package:
            self._package.start(now)
        return now

    def _ended(self, began: float) -> None:
        now = time.monotonic()
        self.spans.append((began, now))
        if self._package:
            self._package.stop(now)

    def energy(self, count: int) -> Energy:
        """Return the energy of the last ``count`` generations on a CPU.

        The parent measures the energy of a GPU.
        """
        return self._package.of_last(count) if self._package else Energy(absent=UNWATCHED)


@dataclass(frozen=True)
class Timed:
    """Timed generations of a case: costs, energy, the full cache's seconds in turns, and token hashes.

    ``other_load`` is the mean number of processors that other processes kept busy meanwhile, None if unknown."""

    costs: Costs
    energy: Energy
    full: Sequence[float]
    tokens: TimedTokens
    other_load: float | None


def timed(case: Case, job: Job, full: Job | None = None) -> Timed:
    """Run other warm-ups and timed generations, in turns with the full cache.

    The speed of a machine drifts, so each timed generation has one of ``full``, the full cache, right before or after it in turns, and
    their ratio is the speedup; it is missing if both do not fit in memory. A job of several batches, whose time depends on the images,
    runs each at least once, and the full cache runs the same batch."""
    own, beside = _Timed(job), _warmed(full, case.warmup) if full else None
    seconds, marks, full_seconds, load = list[float](), list[dict[int, float]](), list[float](), OtherLoad()
    for repeat in range(1, case.warmup + max(case.repeats, len(own.batches))):
        counted, turn = repeat >= case.warmup, max(0, repeat - case.warmup)
        if beside and counted and repeat % 2:
            full_seconds.append(beside.once(turn)[0])
        with measuring(counted):
            total, moments = own.once(turn)
        if beside and counted and not repeat % 2:
            full_seconds.append(beside.once(turn)[0])
        if counted:
            seconds.append(total)
            marks.append(moments)
    energy = own.energy(len(seconds))
    costs = Costs(job.batch, own.layout.visual, first_half(own.layout), seconds, marks, spans=own.spans[-len(seconds):],
                  joules=energy.joules, watts=energy.watts)
    return Timed(costs, energy, full_seconds, own.hashes, load.processors())


def _warmed(job: Job, times: int) -> _Timed | None:
    """Return the job after its warm-up generations, or None if memory does not hold it."""
    timed_job = _Timed(job)
    try:
        for _ in range(times):
            timed_job.once()
    except Exception as error:
        if not exhausted(error):
            raise
        return None
    return timed_job


def paced(layout: Layout, method: Method) -> Layout:
    """Return the layout with as many passes or scales as the method makes."""
    if not isinstance(layout, MaskedLayout) and not layout.scales:
        return layout
    method.resolve(layout)
    return method.paced(layout) if isinstance(layout, MaskedLayout) else layout.ending(method.scales(layout))


def counted(job: Job) -> tuple[dict[str, Any], TimingFacts]:
    """Return fields of :class:`~cachemark.metrics.base.Costs`, and facts, from the first warm-up.

    Bytes come from the arena, and the peak is above the loaded weights. FLOPs come from arithmetic. An engine that
    captures does so in a generation before; its pool always exists, so it is part of the peak. The fact has the bytes that are ``live``
    when so many ``tokens`` of an image are drawn: at the watched ones and at the next, whose pass has written and evicted them."""
    method, memory, drawn, live = job.method(), job.memory, [], {}
    labels, stops = torch.tensor(job.subset.labels, device=job.device), set(watched(paced(job.layout, job.method())))

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
        "kv_logical": method.logical_bytes, "kv_peak": method.peak_live_bytes, "slot_bytes": memory.nbytes("slots"),
        "workspace_bytes": memory.nbytes("workspace"), "state_bytes": memory.nbytes("state"), "peak_bytes": peak,
    }
    if isinstance(memory.engine, Graph):
        counts |= {"graph_bytes": memory.engine.nbytes, "capture_seconds": memory.engine.seconds}
    if isinstance(job.layout, MaskedLayout) or (job.layout.work and (job.method().budget_kind == FLOPS or job.layout.drafter)):
        counts["flops"] = [float(image_flops(job.method(), job.layout))]
    kv_by_step = LiveBytes(tokens=list(live), live=list(live.values())) if any(live.values()) else None
    return counts, TimingFacts(kv_by_step=kv_by_step)


def _capture(job: Job) -> int:
    """Run a generation for the graph engine's captures. Return the bytes it keeps, with its pool.

    A decoder may skip passes here that it runs for other images, so all of them are run."""
    if not isinstance(engine := job.memory.engine, Graph):
        return 0
    before = allocated(job.device)
    if job.decoder is not None and not (decoder := job.decoder()).scheduled:
        job = replace(job, decoder=partial(Rehearsal, window=decoder.reach, look_ahead=decoder.ahead > 0))
    job.generate(slice(len(job.subset)))
    return allocated(job.device) - before + engine.pool_bytes


def captured_passes(memory: Memory) -> CapturedPasses | None:
    """Return how many passes were captured, and how many ran as written for want of memory."""
    return CapturedPasses(captured=memory.engine.captured, missed=memory.engine.missed) if isinstance(memory.engine, Graph) else None


# -- passes under a decoder ----------------------------------------------------------------------------------------------
class Ran(NamedTuple):
    """One generation: images, tokens fed and kept by each pass, and the passes if scheduled."""

    images: int
    fed: tuple[int, ...]
    kept: tuple[int, ...]
    scheduled: tuple[Step, ...] = ()

    def steps(self, layout: Layout) -> Sequence[Step]:
        """Return its passes, each with the edges of its kept tokens."""
        if self.scheduled:
            return self.scheduled
        behind = [sum(self.kept[:i]) for i in range(1, len(self.kept))]
        ran = zip(behind, self.fed[1:], self.kept[1:], strict=True)
        return [Step(0, layout.visual), *(window_step(layout, accepted - 1, fed, fed - correct) for accepted, fed, correct in ran)]


def noting(job: Job, ran: list[Ran]) -> Job:
    """Return the job, with its generations added to ``ran``, except those with forced tokens."""
    def note(images: int, decoder: Decoder) -> None:
        scheduled = tuple(front.step for front in decoder.schedule(decoder.layout))
        ran.append(Ran(images, tuple(decoder.fed), tuple(decoder.kept), scheduled))

    return replace(job, noted=note)


def pass_values(ran: Sequence[Ran]) -> dict[str, list[float]]:
    """Return passes and rejected drafts of each image, equal within a batch, which advances together."""
    each = [batch for batch in ran for _ in range(batch.images)]
    return {"passes": [float(len(batch.kept)) for batch in each], "rejected": [float(sum(batch.fed) - sum(batch.kept)) for batch in each]}


def tokens_per_pass(ran: Sequence[Ran], tokens: int) -> TokensPerPass:
    """Return the tokens per pass in all generations: mean, spread, least and most."""
    rates = [tokens / len(batch.kept) for batch in ran]
    return TokensPerPass(mean=statistics.fmean(rates), spread=statistics.pstdev(rates), least=min(rates), most=max(rates))
