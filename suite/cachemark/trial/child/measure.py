"""One case in a loaded model: time it, measure its memory, judge its images."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ...cache.arena import Memory
from ...cache.attention.attention import KERNEL
from ...cache.attention.kernels import chosen
from ...cache.attention.mass import FUSED_MASS_KERNEL, MASS_KERNEL
from ...cache.attention.mass import name as mass_kernel
from ...cache.codec import codec
from ...cache.engine.by_name import engine
from ...cache.engine.graph import Graph
from ...cache.layout import Layout
from ...cache.masked_layout import MaskedLayout
from ...contract.method import Method
from ...core import registry, seeds
from ...core.errors import Unsupported
from ...core.result import IMAGES, Outcome, Status
from ...core.spec import FULL, QUALITY_PASS, Case
from ...core.units import quality_name
from ...machine.memory import allocated, peak_bytes
from ...machine.timer import clock
from ...methods.base.paper_baseline import REFERENCE
from ...metrics import named_presets as presets
from ...metrics.clip import ClipScore, class_names
from ...metrics.feature_preset import Preset
from ...metrics.image_features import ImageFeatures
from ...metrics.lpips import Lpips
from ...metrics.speed import halves, watched
from ...models.protocol import Loaded, ModelEntry
from ...plan.expand import Planned
from ...roofline.kv_bytes import entries
from ...roofline.masked_flops import share, work
from . import floor as limit
from . import quality
from .judge import FullCacheOutput, Job, JudgedImages, Likeness, Prompted, decoded, hashed, image_hash, judge, reseeded, storable
from .profiles import profiled, repeated

Ended = tuple[Outcome, dict[str, bytes]]  # with artifacts by file name
WATCHED = 16  # samples whose passes are watched: what is found hardly differs between samples, and watching costs as much as a case
ENGINE_REASON = "engine_reason"  # of an outcome's facts: why the engine that a plan leaves open is not graph here
LIVE = "live_bytes"  # of an outcome's facts: those of keys and values over an image
RANDOM = "random weights: fidelity and quality are not measured"
PAIRED = "an arm of a pair: both arms' tokens are compared by their hash"


@dataclass
class Bench:
    """A loaded model and what the cases of one trial share: the full cache's output per set of samples."""

    entry: ModelEntry
    loaded: Loaded
    device: str
    references: dict[str, FullCacheOutput] = field(default_factory=dict)
    features: dict[str, ImageFeatures] = field(default_factory=dict)
    feature_preset: Preset | None = None
    likeness: Likeness | None = None
    clip: ClipScore | None = None

    @classmethod
    def load(cls, planned: Planned) -> Bench:
        entry: ModelEntry = registry.models.get(planned.case.model)
        return cls(entry, entry.load(planned.request), planned.case.device_class)

    def reference(self, case: Case, job: Job) -> FullCacheOutput:
        """The full cache in the native codec on the case's engine, generated once per trial: for the reference rows too, which differ from
        their cell by the quality pass alone."""
        cell = replace(case, evaluation={k: v for k, v in case.evaluation.items() if k != QUALITY_PASS}).cell
        if cell not in self.references:
            full = replace(job, method=registry.methods.get(FULL), memory=Memory(self.device, engine=job.memory.engine.another()))
            self.references[cell] = FullCacheOutput(full)
        return self.references[cell]

    def alike(self, case: Case) -> dict[str, Likeness]:
        """LPIPS where the case has it and its weights are here, loaded once per trial."""
        if not case.measures("lpips"):
            return {}
        if self.likeness is None:
            self.likeness = Lpips(device=self.device)
        return {"lpips": self.likeness}

    def prompted(self, planned: Planned) -> dict[str, Prompted]:
        """The CLIP score where the case has it and the model is here, loaded once per trial."""
        if not planned.case.measures("clip"):
            return {}
        if self.clip is None:
            self.clip = ClipScore(planned.request.clip, class_names(self.entry.preset), device=self.device)
        return {"clip_score": self.clip}

    def preset(self, planned: Planned) -> Preset:
        """The preset by which the images of all cases are compared with real ones, loaded once per trial."""
        if self.feature_preset is None:
            name, request = planned.case.evaluation[QUALITY_PASS]["preset"], planned.request
            self.feature_preset = presets.preset(name, weights=request.extractor, reference=request.reference, device=self.device)
        return self.feature_preset


def run_case(planned: Planned, bench: Bench, alive: Callable[[], None] = lambda: None) -> Ended:
    """Measure one case. Returns its outcome and artifacts by file name; raises what the trial turns into a status. ``alive`` is called
    now and then in its long parts."""
    try:
        return _measured(planned, bench, alive)
    except quality.NotFinite as error:
        return Outcome(planned.case, Status.NAN_OUTPUT, log=str(error)), {}


def _measured(planned: Planned, bench: Bench, alive: Callable[[], None]) -> Ended:
    began, case = time.perf_counter(), planned.case
    if planned.unsupported_reason:
        raise Unsupported(planned.unsupported_reason)
    job = _job(case, bench)
    samples: dict[str, list[float]] = {}
    facts = _facts(planned, bench) | limit.facts(case, bench.entry, _factory(case)(), planned.rates)
    if case.role in ("arm", "baseline"):
        first = replace(job, subset=job.subset.first(case.batch))
        weighed, noted = _bytes(case, first)
        samples, facts = samples | weighed, facts | noted
        timed, marks = _timed(case, first)
        samples, facts = samples | timed, facts | _graphs(job.memory) | limit.slope(marks, first.layout, first.method())
    if bench.loaded.random:
        return Outcome(case, Status.OK, samples, RANDOM, seconds=time.perf_counter() - began, facts=facts), {}
    judged = _judge_case(planned, replace(job, alive=alive), bench)
    if not judged.finite:
        raise quality.NotFinite("The decoded images or their figures hold NaN or infinity.")
    if case.role == "baseline" and job.layout.scales:
        facts["layers"] = profiled(_watched(job))
    elif case.role == "baseline" and job.continuous:
        facts["redundancy"] = repeated(_watched(job))
    if QUALITY_PASS in case.evaluation:
        figures, told = _carried(planned, job, bench, judged) or _distribution(planned, job, bench, alive)
        samples, facts = samples | figures, facts | told
    samples, facts, seconds = samples | judged.samples, facts | judged.facts, time.perf_counter() - began
    return Outcome(case, Status.OK, samples, seconds=seconds, output_hash=judged.output_hash, facts=facts), judged.artifacts


def run_arm(planned: Planned, bench: Bench, alive: Callable[[], None] = lambda: None) -> Ended:
    """Measure one case as an arm of a pair: its bytes and times, and the hashes of the tokens of one batch and of its images. No image is
    judged."""
    began, case = time.perf_counter(), planned.case
    job, samples, facts = _one_batch(planned, bench)
    drawn = job.generate(slice(len(job.subset)))
    tokens, facts[IMAGES] = storable(job, drawn), image_hash(decoded(job, drawn))
    if not bool(torch.isfinite(tokens).all()):
        return Outcome(case, Status.NAN_OUTPUT, log="The tokens hold NaN or infinity.", facts=facts), {}
    return Outcome(case, Status.OK, samples, PAIRED, seconds=time.perf_counter() - began, output_hash=hashed(tokens), facts=facts), {}


def see_arm(planned: Planned, bench: Bench, alive: Callable[[], None] = lambda: None) -> Ended:
    """Judge the images of one case as an arm of a pair, against the full cache of its own code; nothing is timed and no picture is kept.
    ``alive`` is called after each batch."""
    began, case = time.perf_counter(), planned.case
    if planned.unsupported_reason or bench.loaded.random:
        raise Unsupported(planned.unsupported_reason or RANDOM)
    judged = _judge_case(planned, replace(_job(case, bench), alive=alive), bench)
    if not judged.finite:
        return Outcome(case, Status.NAN_OUTPUT, log="The decoded images or their figures hold NaN or infinity."), {}
    facts, seconds = _facts(planned, bench) | {IMAGES: judged.facts[IMAGES]}, time.perf_counter() - began
    return Outcome(case, Status.OK, judged.samples, seconds=seconds, output_hash=judged.output_hash, facts=facts), {}


def fill(planned: Planned, bench: Bench, share: tuple[int, int], alive: Callable[[], None]) -> Ended:
    """Make a share of the images of a case's quality pass and nothing else; their features stay on its shelf."""
    case = planned.case
    wide = quality.job_of(_job(case, bench), case, bench.entry.classes)
    try:
        quality.make(wide, bench.preset(planned), quality.FeatureCache(planned.feature_cache), share, alive)
    except quality.NotFinite as error:
        return Outcome(case, Status.NAN_OUTPUT, log=str(error)), {}
    done = f"Share {share[0] + 1} of {share[1]} of its quality images is made; nothing is measured."
    return Outcome(case, Status.NOT_REACHED, log=done), {}


def probe(planned: Planned, bench: Bench, alive: Callable[[], None] = lambda: None) -> Ended:
    """Time a case at its batch and judge nothing: do so many images fit, and how fast do they come?"""
    began = time.perf_counter()
    _, samples, facts = _one_batch(planned, bench)
    return Outcome(planned.case, Status.OK, samples, "timed only", seconds=time.perf_counter() - began, facts=facts), {}


def _one_batch(planned: Planned, bench: Bench) -> tuple[Job, dict[str, list[float]], dict[str, Any]]:
    """The job of a case's first batch, with its bytes and times, and the facts of the case."""
    if planned.unsupported_reason:
        raise Unsupported(planned.unsupported_reason)
    job = _job(planned.case, bench)
    job = replace(job, subset=job.subset.first(planned.case.batch))
    return job, _bytes(planned.case, job)[0] | _timed(planned.case, job)[0], _facts(planned, bench)


def quality_images(planned: Planned) -> tuple[Iterator[Tensor], int]:
    """The images of a case's quality pass, in batches (B, H, W, 3) of bytes, and how many there are. Raises Unsupported where it has
    none."""
    case = planned.case
    if planned.unsupported_reason or QUALITY_PASS not in case.evaluation:
        raise Unsupported(planned.unsupported_reason or f"{case.label} has no quality pass.",
                          remedy="Name a full cache or an arm of a plan with [quality].")
    bench = Bench.load(planned)
    wide = quality.job_of(_job(case, bench), case, bench.entry.classes)
    return quality.pictures(wide, case), len(wide.subset)


def _job(case: Case, bench: Bench) -> Job:
    subset = seeds.subset(case.seeds, bench.entry.classes).first(case.samples)
    memory = Memory(bench.device, codec(case.codec), engine(case.engine, bench.device))
    return Job(bench.loaded, _factory(case), memory, case.sampling, subset, case.batch, bench.device)


def _watched(job: Job) -> Job:
    return replace(job, subset=job.subset.first(min(WATCHED, len(job.subset))))


def _factory(case: Case) -> Callable[[], Method]:
    if case.engine == "reference":
        return REFERENCE[registry.models.get(case.model).paradigm]
    cls: type[Method] = registry.methods.get(case.method)
    return lambda: cls.build(case.knobs)


def _timed(case: Case, job: Job) -> tuple[dict[str, list[float]], list[dict[int, float]]]:
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


def _bytes(case: Case, job: Job) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """A generation that is watched and not timed, the first warm-up: bytes from the arena, and the peak above the loaded weights. In a
    masked model also FLOPs, from arithmetic. What an engine records, it records in a generation before that, and its pool is at hand
    all the time, so it counts in the peak. And, as a fact, how many bytes ``live`` when how many ``tokens`` of an image are drawn: at
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


def _graphs(memory: Memory) -> dict[str, Any]:
    """Numbers of passes that were recorded, and of those that ran as written because their recording had no room."""
    if not isinstance(memory.engine, Graph):
        return {}
    return {"graph": {"recorded": memory.engine.recorded, "missed": memory.engine.missed}}


def judged_batch(case: Case) -> int:
    """Images of one generation in the fidelity pass: the plan's own number, else as many as are timed; all, where there are fewer."""
    return min(int(case.evaluation.get("batch", case.batch)), case.samples)


def _judge_case(planned: Planned, job: Job, bench: Bench) -> JudgedImages:
    """The reference rows: *floor* is the full cache at other seeds, *numerics* the full cache at half the batch (or twice 1)."""
    case = planned.case
    job = replace(job, batch=judged_batch(case), memory=job.memory.another())
    reference = bench.reference(case, job)
    added: dict[str, Any] = {"likeness": bench.alike(case), "prompted": bench.prompted(planned)}
    if case.role == "floor":
        return judge(reseeded(job, seeds.floor(job.subset)), reference, quality=bench.entry.quality, forced=False, sprite=False, **added)
    if case.role == "numerics":
        job = replace(job, batch=job.batch // 2 or 2)
    return judge(job, reference, quality=bench.entry.quality, forced=True, sprite=case.role == "arm",
                 itself=case.role == "baseline" and case.engine != "reference", **added)


def _carried(planned: Planned, job: Job, bench: Bench, images: JudgedImages) -> tuple[dict[str, list[float]], dict[str, Any]] | None:
    """The quality of an earlier outcome of the case, where that can be reused. Arms are compared with the full cache's features,
    so its own pass stands only as long as these are kept, and then they lie on its own shelf too, where arms in other processes look for
    them. What does not stand leaves no old part on the shelf."""
    held, case = planned.reusable, planned.case
    if held is None:
        return None
    shelf = planned.feature_cache and planned.feature_cache.parent / held.source
    stands = held.matches(images.output_hash, str(images.facts[IMAGES]), images.samples)
    if stands and case.role == "baseline":
        wide = quality.job_of(job, case, bench.entry.classes)
        seen = quality.kept(wide, bench.preset(planned), quality.FeatureCache(shelf)) if shelf else None
        stands = seen is not None
        if seen is not None:
            bench.features[case.cell] = seen
            quality.FeatureCache(planned.feature_cache).take(quality.FeatureCache(shelf))
    if not stands and planned.feature_cache is not None and planned.feature_cache == shelf:
        shutil.rmtree(planned.feature_cache, ignore_errors=True)
    return held.restore() if stands else None


def _distribution(
    planned: Planned, job: Job, bench: Bench, alive: Callable[[], None]
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Samples and facts of the quality pass. What the full cache's images look like is kept for the arms beside it."""
    case, stated = planned.case, planned.case.evaluation[QUALITY_PASS]
    if not case.measures(QUALITY_PASS):
        return {}, {"not_measured": {quality_name("fid", stated["preset"], stated["samples"]): stated["missing"]}}
    began, preset, wide = time.perf_counter(), bench.preset(planned), quality.job_of(job, case, bench.entry.classes)
    seen = quality.features(wide, preset, quality.FeatureCache(planned.feature_cache), alive)
    full = None
    if case.role == "baseline":
        bench.features[case.cell] = seen
    else:
        full = bench.features.get(case.cell) or quality.kept(wide, preset, quality.FeatureCache(planned.full_features))
    samples, facts = quality.figures(seen, preset, wide.subset.labels, full)
    return samples, {**facts, "quality_metrics": sorted(samples), "quality_seconds": round(time.perf_counter() - began, 1)}


def _facts(planned: Planned, bench: Bench) -> dict[str, Any]:
    case = planned.case
    method = _factory(case)()
    layout = bench.entry.shape(case.sampling, case.batch)
    kernel = _kernel(method, replace(layout, dtype=getattr(torch, case.dtype), device=bench.device))
    facts: dict[str, Any] = {"kernel": kernel, "source": method.source, "footnotes": list(method.footnotes),
                             "paradigm": layout.paradigm}
    if planned.engine_reason:
        facts[ENGINE_REASON] = planned.engine_reason
    if isinstance(layout, MaskedLayout):
        facts["true_ratio"] = float(share(method, layout))
        facts["flops"] = asdict(work(method, layout))
    elif layout.scales and method.evicts:
        facts["true_ratio"] = entries(method, layout) / (layout.layers * layout.cacheable)
    elif "B" in case.knobs:
        facts["true_ratio"] = case.knobs["B"] / layout.visual
    return facts | _apart(case, method, kernel)


def _apart(case: Case, method: Method, kernel: str) -> dict[str, str]:
    """Facts for a reader where a method attends with another kernel than the full cache: that its speed is not compared, or, where the
    kernel is as fused as the full cache's and reads no more than the method needs, that its price is in the time."""
    if case.engine == "reference" or method.kernel == Method().kernel:
        return {}
    if kernel == FUSED_MASS_KERNEL:
        return {"own_kernel": f"It attends with {kernel}, since it needs the attention mass of every key; what that costs is in its time."}
    why = "It needs the attention mass of every key, which the fused kernel does not return" if method.needs_mass else (
        f"It attends with {method.kernel}, the full cache with {Method().kernel}")
    return {"quality_only": f"{why}; a speed-up between two kernels would measure the kernels."}


def _kernel(method: Method, layout: Layout) -> str:
    """The kernel that a method's attention runs on the device of a layout."""
    if method.kernel == MASS_KERNEL:
        return mass_kernel(layout.device)
    return chosen(layout) if method.kernel == KERNEL else method.kernel
