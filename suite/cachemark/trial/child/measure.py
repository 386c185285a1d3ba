"""One case in a loaded model: time it, measure its memory, judge its images."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ...cache.arena import Memory
from ...cache.codec import NATIVE
from ...core import seeds
from ...core.errors import Unsupported
from ...core.outside_metrics import FAULTS
from ...core.result import FULL_BESIDE, IMAGES, SHARE, Status
from ...core.spec import FULL, QUALITY_PASS, TOKENS, Case
from ...methods.registry import METHODS
from ...metrics.base import Costs, ImageSet
from ...metrics.compute.image_features import ImageFeatures
from ...metrics.compute.quality_intervals import intervals
from ...metrics.registry import cost_values
from ...models.costs import case_bill
from ...plans.decoding import BATCHES
from ...plans.expand import Planned
from ...plugins.loading import needs
from ..measurement import Measurement, failed
from . import quality
from .bench import Bench, case_job, method_factory
from .facts import case_facts, limit_facts, slope
from .judge import Job, JudgedImages, decoded, hashed, image_hash, judge, storable
from .passes import Ran, in_words, inexact, noting, pass_values, redrawn, tokens_per_pass
from .plugin_metrics import Figures, in_sentences
from .profiles import profiled, repeated
from .timing import counted, graph_facts, timed

OfSet = tuple[dict[str, list[float]], dict[str, Any], dict[str, dict[str, str]]]  # samples, facts and faults of a quality pass
WATCHED = 16  # samples whose passes are watched: what is found hardly differs between samples, and watching costs as much as a case
PER_PASS, REDRAWN = "tokens_per_pass", "redrawn"  # of an outcome's facts, under a decoder
RANDOM = "random weights: fidelity and quality are not measured"
PAIRED = "a side of a pair: both sides' tokens are compared by their hash"


def run_case(planned: Planned, bench: Bench) -> Measurement:
    """Measure one case. Raises what the trial turns into a status."""
    try:
        return _measured(planned, bench)
    except quality.NotFinite as error:
        return failed(Status.NAN_OUTPUT, str(error))


def _measured(planned: Planned, bench: Bench) -> Measurement:
    case = planned.case
    if planned.unsupported_reason:
        raise Unsupported(planned.unsupported_reason)
    job = case_job(case, bench)
    if needs(METHODS.get(case.method)) and not bench.loaded.random:  # before the plug-in's own code computes anything
        bench.reference(case, _judged_job(case, job))
    facts = case_facts(planned, bench) | limit_facts(case, bench.entry, method_factory(case)(), planned.rates)
    samples, faults = dict[str, list[float]](), dict[str, dict[str, str]]()
    if case.role in ("candidate", "baseline"):
        costs, noted = _costs(planned, bench, job, compared="quality_only" not in facts)
        facts |= noted
        facts["footnotes"] += [in_words(noted[PER_PASS])] if PER_PASS in noted else []
        samples, faults = _cost_values(costs, case, bench)
    if bench.loaded.random:
        return Measurement(Status.OK, samples, RANDOM, facts=_with_faults(facts, faults))
    judgement = _judge_case(case, job, bench)
    if not judgement.finite:
        raise quality.NotFinite("The decoded images or their values hold NaN or infinity.")
    if parted := inexact(case, _judged_job(case, job), bench.reference(case, _judged_job(case, job)), judgement):
        return failed(Status.ERROR, parted, facts)
    if case.role == "baseline" and job.layout.scales:
        facts["layers"] = profiled(_watched(case, job))
    elif case.role == "baseline" and job.continuous:
        facts["redundancy"] = repeated(_watched(case, job))
    if case.measures(QUALITY_PASS):
        of_set, about_set, set_faults = _reused_quality(planned, job, bench, judgement) or _distribution(planned, job, bench)
        samples, facts, faults = samples | of_set, facts | about_set, faults | set_faults
    if case.decoder and (case.method, case.codec) == (FULL, NATIVE.name):
        facts[REDRAWN] = redrawn(_judged_job(case, job), bench.reference(case, _judged_job(case, job)))
    facts = _with_faults(facts | judgement.facts | _asked(judgement.facts, bench.entry.prompts), faults | judgement.faults)
    return Measurement(Status.OK, samples | judgement.samples, output_hash=judgement.output_hash, facts=facts,
                       artifacts=judgement.artifacts)


def _costs(planned: Planned, bench: Bench, job: Job, *, compared: bool) -> tuple[Costs, dict[str, Any]]:
    """Everything that is timed and counted of a case, and facts about it. ``compared``: in turns with its full cache."""
    case, first, ran = planned.case, job.first(planned.case.batch), list[Ran]()
    counts, facts = counted(first)
    clocked = job.first(min(BATCHES * case.batch, case.samples)) if case.decoder else first
    costs, full = timed(case, noting(clocked, ran), _full_beside(case, clocked) if compared else None)
    facts |= graph_facts(job.memory) | ({FULL_BESIDE: full} if full else {})
    if not case.decoder:
        return replace(costs, **counts), facts | slope(costs.marks, first.layout, first.method())
    drawn, noted = _decoded(planned, bench, first, ran)
    return replace(costs, **counts, **drawn), facts | noted


def _decoded(planned: Planned, bench: Bench, job: Job, ran: Sequence[Ran]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of the costs and facts of the passes that were timed under a decoder: their numbers, FLOPs and least cost."""
    case = planned.case
    counted_passes = ran[case.warmup - 1 :]
    steps = [decoded_pass.steps(job.layout) for decoded_pass in counted_passes]
    typical = sorted(steps, key=len)[len(steps) // 2]  # its number of passes is the median
    bills = [case_bill(case, bench.entry, job.method(), each, images=False) for each in steps]
    flops = {"flops": [bill.flops / case.batch for bill in bills if bill is not None]}
    facts = {PER_PASS: tokens_per_pass(counted_passes, job.layout.visual)}
    facts |= limit_facts(case, bench.entry, job.method(), planned.rates, typical)
    return pass_values(counted_passes) | (flops if all(bills) else {}), facts


def _cost_values(costs: Costs, case: Case, bench: Bench) -> Figures:
    """Values of the metrics of costs, the package's and those of plug-ins."""
    samples, faults = bench.plugin_metrics(case).costs(costs)
    return cost_values(costs) | samples, faults


def _with_faults(facts: Mapping[str, Any], faults: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Facts with the faults of metrics of plug-ins, each a footnote too."""
    if not faults:
        return dict(facts)
    return {**facts, FAULTS: dict(faults), "footnotes": [*facts["footnotes"], *in_sentences(faults)]}


def _asked(facts: Mapping[str, Any], prompts: Sequence[str]) -> dict[str, list[str]]:
    """The prompts of a sprite's tiles, where the model is given prompts and there is a sprite."""
    return {"grid_prompts": [prompts[label] for label in facts.get("grid_classes", ())]} if prompts and "grid_classes" in facts else {}


def _full_beside(case: Case, job: Job) -> Job | None:
    """The job of a candidate as its full cache would do it, in a storage of its own; None of the full cache itself."""
    if case.role != "candidate":
        return None
    full = method_factory(replace(case, method=FULL, parameters={}))
    return replace(job, method=full, memory=Memory(job.device, engine=job.memory.engine.another()), decoder=None)


def run_side(planned: Planned, bench: Bench) -> Measurement:
    """Measure one case as a side of a pair: its bytes and times, and the hashes of the tokens of one batch and of its images. No image is
    judged."""
    job, samples, facts = _one_batch(planned, bench)
    tokens = job.generate(slice(len(job.subset)))
    images = decoded(job, tokens)
    if not bool(torch.isfinite(tokens).all() and torch.isfinite(images).all()):  # tokens that are indices always are finite
        return failed(Status.NAN_OUTPUT, "The tokens or their images hold NaN or infinity.", facts)
    facts |= {IMAGES: image_hash(images)}
    return Measurement(Status.OK, samples, PAIRED, output_hash=hashed(storable(job, tokens)), facts=facts)


def see_side(planned: Planned, bench: Bench) -> Measurement:
    """Judge the images of one case as a side of a pair, against the full cache of its own code; nothing is timed and no picture is kept."""
    case = planned.case
    if planned.unsupported_reason or bench.loaded.random:
        raise Unsupported(planned.unsupported_reason or RANDOM)
    judgement = _judge_case(case, case_job(case, bench), bench)
    if not judgement.finite:
        return failed(Status.NAN_OUTPUT, "The decoded images or their values hold NaN or infinity.")
    facts = case_facts(planned, bench) | {IMAGES: judgement.facts[IMAGES]} | ({FAULTS: judgement.faults} if judgement.faults else {})
    return Measurement(Status.OK, judgement.samples, output_hash=judgement.output_hash, facts=facts)


def fill(planned: Planned, bench: Bench, share: tuple[int, int]) -> Measurement:
    """Make a share of the images of a case's quality pass and nothing else; their features stay in its feature cache."""
    case = planned.case
    wide = quality.job_of(case_job(case, bench), case, bench.entry.classes)
    try:
        for _ in quality.parts(wide, bench.preset(case), quality.FeatureCache(planned.feature_cache), share):
            pass
    except quality.NotFinite as error:
        return failed(Status.NAN_OUTPUT, str(error))
    done = f"Share {share[0] + 1} of {share[1]} of its quality images is made; nothing is measured."
    return failed(Status.NOT_REACHED, done, {SHARE: list(share)})


def probe(planned: Planned, bench: Bench) -> Measurement:
    """Time a case at its batch and judge nothing: do so many images fit, and how fast do they come?"""
    _, samples, facts = _one_batch(planned, bench)
    return Measurement(Status.OK, samples, "timed only", facts=facts)


def _one_batch(planned: Planned, bench: Bench) -> tuple[Job, dict[str, list[float]], dict[str, Any]]:
    """The job of a case's first batch, with its bytes and times, and the facts of the case."""
    if planned.unsupported_reason:
        raise Unsupported(planned.unsupported_reason)
    job = case_job(planned.case, bench).first(planned.case.batch)
    counts, _ = counted(job)
    costs, _ = timed(planned.case, job)
    samples, faults = _cost_values(replace(costs, **counts), planned.case, bench)
    return job, samples, _with_faults(case_facts(planned, bench), faults)


def _watched(case: Case, job: Job) -> Job:
    """The job whose passes are watched: a few samples, no more than the reference rows take, in batches of those that are judged."""
    return _judged_job(case, job).first(min(WATCHED, case.noted, len(job.subset)))


def _judged_job(case: Case, job: Job) -> Job:
    """The job whose images are judged. Batches have the plan's own number of images, else as many as are timed; all, where there are
    fewer."""
    batch = min(int(case.evaluation.get("batch", case.batch)), case.samples)
    return replace(job.first(case.compared), batch=batch, memory=job.memory.another())


def _judge_case(case: Case, job: Job, bench: Bench) -> JudgedImages:
    """Compare the images of a case with the baseline's; the reference rows use other seeds, or half the batch (2 for a batch of 1)."""
    job = _judged_job(case, job)
    reference = bench.reference(case, job)
    if case.role == "other_seeds":
        job = replace(job, subset=seeds.other_seeds(job.subset))
    if case.role == "other_batch":
        job = replace(job, batch=job.batch // 2 or 2)
    itself = case.role == "baseline" and case.engine != "reference"
    paired = job.decoder is None or job.decoder().keeps == TOKENS
    forced = 0 if job.method().reorders else case.forced
    plugin_metrics = bench.plugin_metrics(case)
    return judge(job, reference, bench.metrics(case), forced=forced, sprite=case.role == "candidate", itself=itself, paired=paired,
                 plugin_values=lambda shown: plugin_metrics.images(shown, job.batch, bench.alive, paired))


def _reused_quality(planned: Planned, job: Job, bench: Bench, images: JudgedImages) -> OfSet | None:
    """Return the quality of an earlier result of the case, if it can be reused.

    Candidates are compared with the full cache's features. So its quality is reused only while these exist; they are copied to its feature
    cache, where candidates in other processes look for them. Outdated parts of that cache are removed.
    """
    earlier, case, mine = planned.reusable, planned.case, planned.feature_cache
    if earlier is None:
        return None
    old = mine and mine.parent / earlier.source
    stands = earlier.matches(images.output_hash, str(images.facts[IMAGES]), images.samples)
    if stands and case.role == "baseline":
        wide = quality.job_of(job, case, bench.entry.classes)
        features = quality.kept(wide, bench.preset(case), quality.FeatureCache(old))
        stands = features is not None
        if features is not None:
            bench.features[case.cell] = features
            quality.FeatureCache(mine).take(quality.FeatureCache(old))
    if not stands and mine is not None and mine == old:
        shutil.rmtree(mine, ignore_errors=True)
    return (*earlier.restore(), {}) if stands else None


def _distribution(planned: Planned, job: Job, bench: Bench) -> OfSet:
    """Samples, facts and faults of the quality pass. What the full cache's images look like is kept for the candidates beside it."""
    case = planned.case
    began, preset, wide = time.perf_counter(), bench.preset(case), quality.job_of(job, case, bench.entry.classes)
    features = ImageFeatures.joined(list(quality.parts(wide, preset, quality.FeatureCache(planned.feature_cache))))
    full = None
    if case.role == "baseline":
        bench.features[case.cell] = features
    else:
        full = bench.features.get(case.cell) or quality.kept(wide, preset, quality.FeatureCache(planned.full_features))
    images = ImageSet(features, preset, wide.subset.labels, intervals(features, preset.reference, **preset.options), full)
    samples, facts = quality.set_values(images)
    more, faults = bench.plugin_metrics(case).image_set(images)
    facts["intervals"] |= dict.fromkeys(more, (None, None))
    samples |= more
    return samples, {**facts, "quality_metrics": sorted(samples), "quality_seconds": round(time.perf_counter() - began, 1)}, faults


