"""Measure one case in a loaded model: time, memory and images."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from safetensors.torch import load

from ...cache.arena import Memory
from ...cache.codec import NATIVE
from ...core import seeds
from ...core.errors import Unsupported
from ...core.facts import DeclaredFacts, Facts, SetFacts, TakenOver, TimingFacts
from ...core.result import Status
from ...core.spec import FULL, QUALITY_PASS, TOKENS, Case
from ...machine.energy import Span
from ...methods.registry import METHODS
from ...metrics.base import Costs, ImageSet
from ...metrics.compute.image_features import ImageFeatures
from ...metrics.compute.quality_intervals import intervals
from ...metrics.registry import cost_values
from ...models.costs import case_bill
from ...plans.decoding import BATCHES
from ...plans.planned import Prepared
from ...plugins.loading import needs
from ..measurement import Measurement, failed
from . import quality
from .bench import Bench, Job, KnownTokens, NotFinite, case_job, hashed, method_factory
from .facts import case_facts, roofline, slope
from .judge import JudgedImages, image_hash, inexact, judge, redrawn, storable
from .plugin_metrics import PluginMetrics
from .timing import Ran, TimedTokens, captured_passes, counted, noting, pass_values, timed, tokens_per_pass

OfSet = tuple[dict[str, list[float]], SetFacts]  # samples and facts of a quality pass
RANDOM = "random weights: fidelity and quality are not measured"
PAIRED = "a side of a pair: both sides' tokens are compared by their hash"


def run_case(planned: Prepared, bench: Bench) -> Measurement:
    """Measure one case. The trial turns errors into a status."""
    case = planned.case
    job = case_job(case, bench)
    judged_job = _judged_job(case, job)
    if needs(METHODS.get(case.method)) and not bench.loaded.random:  # before the plug-in's own code computes anything
        bench.reference(case, judged_job, planned.known_full)
    limit = roofline(case, bench.entry, method_factory(case)(), planned.rates)
    facts = Facts() | case_facts(planned, bench) | DeclaredFacts(limit=limit)
    samples, plugin_metrics, timed_tokens = dict[str, list[float]](), PluginMetrics(case, bench.plug_ins), TimedTokens()
    spans: Sequence[Span] = ()
    if case.role in ("candidate", "baseline"):
        costs, noted, timed_tokens = _costs(planned, bench, job, compared=not facts.quality_only)
        facts |= noted
        if rate := facts.tokens_per_pass:
            facts = facts.noted(f"It generates {rate.mean:.2f} tokens per pass, {rate.least:.2f} to {rate.most:.2f} over the timed "
                                "batches.")
        samples, spans = cost_values(costs) | plugin_metrics.costs(costs), costs.spans
    if bench.loaded.random:
        return Measurement(Status.OK, samples, RANDOM, facts=plugin_metrics.added_to(facts), spans=spans)
    judgement = _judge_case(planned, job, bench, plugin_metrics)
    if reason := inexact(case, judged_job, bench.reference(case, judged_job, planned.known_full), judgement):
        return failed(Status.ERROR, reason, facts)
    if other := _other_tokens(timed_tokens, judged_job, judgement):
        facts = replace(facts, quality_only=other) if planned.runs_plugin else facts.noted(other)
    if case.measures(QUALITY_PASS):
        of_set, set_facts = _reused_quality(planned, job, bench, judgement) or _distribution(planned, job, bench, plugin_metrics)
        samples, facts = samples | of_set, facts | set_facts
    if job.decoder is not None and not job.decoder().scheduled and (case.method, case.codec) == (FULL, NATIVE.name):
        facts = replace(facts, redrawn=redrawn(judged_job, bench.reference(case, judged_job, planned.known_full)))
    if (prompts := bench.entry.prompts) and judgement.facts.grid_classes:
        facts = replace(facts, grid_prompts=[prompts[label] for label in judgement.facts.grid_classes])
    return Measurement(Status.OK, samples | judgement.samples, output_hash=judgement.output_hash,
                       facts=plugin_metrics.added_to(facts | judgement.facts), artifacts=judgement.artifacts, spans=spans)


def _other_tokens(timed_tokens: TimedTokens, job: Job, images: JudgedImages) -> str:
    """Return a sentence if timed generations gave other tokens than the evaluated ones, else nothing.

    The speed of a plug-in's method then is not the speed of these images; on some devices built-in methods round differently each time."""
    evaluated = load(images.artifacts["tokens.safetensors"])["tokens"]
    parts = {(part.start, part.stop) for part in job.chunks()} & timed_tokens.keys()
    other = sum(timed_tokens[part] != {hashed(evaluated[slice(*part)].contiguous())} for part in parts)
    return f"Timed generations gave other tokens than the evaluated ones in {other} of {len(parts)} batches." if other else ""


def _costs(planned: Prepared, bench: Bench, job: Job, *, compared: bool) -> tuple[Costs, Facts, TimedTokens]:
    """Return the costs of a case, facts about them, and the timed tokens.

    ``compared``: timed in turns with its full cache.
    """
    case, first, ran = planned.case, job.first(planned.case.batch), list[Ran]()
    counts, of_bytes = counted(first)
    clocked = job.first(min(BATCHES * case.batch, case.samples)) if case.decoder else first
    beside = None
    if compared and case.role == "candidate":
        full_cache = method_factory(replace(case, method=FULL, parameters={}))
        memory = Memory(job.device, engine=job.memory.engine.another())
        beside = replace(clocked, method=full_cache, memory=memory, decoder=None)
    ran_in_turns = timed(case, noting(clocked, ran), beside)
    costs, timed_tokens = ran_in_turns.costs, ran_in_turns.tokens
    load = ran_in_turns.other_load
    facts = Facts() | of_bytes | TimingFacts(
        graph=captured_passes(job.memory), energy=ran_in_turns.energy.facts, full_beside=ran_in_turns.full or None,
        other_load=None if load is None else round(load, 2))
    if not case.decoder:
        return replace(costs, **counts), replace(facts, slope=slope(costs.marks, first.layout, first.method())), timed_tokens
    drawn, noted = _decoded(planned, bench, first, ran)
    return replace(costs, **counts, **drawn), facts | noted, timed_tokens


def _decoded(planned: Prepared, bench: Bench, job: Job, ran: Sequence[Ran]) -> tuple[dict[str, Any], Facts]:
    """Return fields of the costs, and facts, of the timed passes under a decoder."""
    case = planned.case
    counted_passes = ran[case.warmup - 1 :]
    steps = [decoded_pass.steps(job.layout) for decoded_pass in counted_passes]
    typical = sorted(steps, key=len)[len(steps) // 2]  # its number of passes is the median
    bills = [case_bill(case, bench.entry, job.method(), each, images=False) for each in steps]
    flops = {"flops": [bill.flops / case.batch for bill in bills if bill is not None]}
    facts = Facts(tokens_per_pass=tokens_per_pass(counted_passes, job.layout.visual),
                  limit=roofline(case, bench.entry, job.method(), planned.rates, typical))
    return pass_values(counted_passes) | (flops if all(bills) else {}), facts


def run_side(planned: Prepared, bench: Bench) -> Measurement:
    """Measure one side of a pair: bytes, times, and the hashes of one batch's tokens and images."""
    job, measured = _one_batch(planned, bench)
    tokens = job.generate(slice(len(job.subset)))
    images = job.decode_all(tokens)
    if not bool(torch.isfinite(tokens).all() and torch.isfinite(images).all()):  # tokens that are indices always are finite
        raise NotFinite("The tokens or their images hold NaN or infinity.")
    facts = replace(measured.facts, images_hash=image_hash(images))
    return replace(measured, unjudged=PAIRED, output_hash=hashed(storable(job, tokens)), facts=facts)


def see_side(planned: Prepared, bench: Bench) -> Measurement:
    """Judge the images of one side of a pair against the full cache of its own code, without timing."""
    case = planned.case
    if bench.loaded.random:
        raise Unsupported(RANDOM)
    plugin_metrics = PluginMetrics(case, bench.plug_ins)
    judgement = _judge_case(planned, case_job(case, bench), bench, plugin_metrics)
    facts = plugin_metrics.added_to(Facts(images_hash=judgement.facts.images_hash) | case_facts(planned, bench))
    return Measurement(Status.OK, judgement.samples, output_hash=judgement.output_hash, facts=facts)


def fill(planned: Prepared, bench: Bench, share: tuple[int, int]) -> Measurement:
    """Generate a share of a case's quality images, whose features stay in its feature cache."""
    case = planned.case
    wide = quality.job_of(case_job(case, bench), case, bench.entry.classes)
    for _ in quality.parts(wide, bench.preset(case), quality.FeatureCache(planned.feature_cache), share):
        pass
    done = f"Share {share[0] + 1} of {share[1]} of its quality images is made; nothing is measured."
    return failed(Status.NOT_REACHED, done, Facts(share=list(share)))


def probe(planned: Prepared, bench: Bench) -> Measurement:
    """Time a case at its batch without evaluating images: does the batch fit, and how fast is it?"""
    return _one_batch(planned, bench)[1]


def _one_batch(planned: Prepared, bench: Bench) -> tuple[Job, Measurement]:
    """Return the job of a case's first batch, and its bytes and times."""
    job = case_job(planned.case, bench).first(planned.case.batch)
    counts, _ = counted(job)
    ran, plugin_metrics = timed(planned.case, job), PluginMetrics(planned.case, bench.plug_ins)
    costs = replace(ran.costs, **counts)
    samples = cost_values(costs) | plugin_metrics.costs(costs)
    facts = plugin_metrics.added_to(Facts(energy=ran.energy.facts) | case_facts(planned, bench))
    return job, Measurement(Status.OK, samples, "timed only", facts=facts, spans=costs.spans)


def _judged_job(case: Case, job: Job) -> Job:
    """Return the job whose images are evaluated, in the plan's own batches or as many as are timed."""
    return replace(job.first(case.compared), batch=case.compared_batch, memory=job.memory.another())


def _judge_case(planned: Prepared, job: Job, bench: Bench, plugin_metrics: PluginMetrics) -> JudgedImages:
    """Compare a case's images with the baseline's; reference rows use other seeds or half the batch."""
    case = planned.case
    job = _judged_job(case, job)
    reference, known = bench.reference(case, job, planned.known_full), KnownTokens.read(planned.known, job)
    if case.role == "other_seeds":
        job = replace(job, subset=seeds.other_seeds(job.subset))
    if case.role == "other_batch":
        job = replace(job, batch=case.own_batch)
    itself = case.role == "baseline" and case.engine != "reference"
    paired = job.decoder is None or job.decoder().keeps == TOKENS or job.decoder().same_noise
    forced = 0 if job.method().reorders else case.forced
    images = judge(job, reference, bench.metrics(case), forced=forced, sprite=case.role == "candidate", itself=itself, paired=paired,
                   plugin_metrics=plugin_metrics, known=known)
    if known and (samples := known.about.among(case)):
        images = replace(images, facts=replace(images.facts, taken_over=TakenOver(samples=samples, source=known.about.source)))
    return images


def _reused_quality(planned: Prepared, job: Job, bench: Bench, images: JudgedImages) -> OfSet | None:
    """Return the quality of an earlier result of the case, if it can be reused.

    Candidates are compared with the full cache's features. So its quality is reused only while these exist; they are copied to its feature
    cache, where candidates in other processes look for them. Outdated parts of that cache are removed."""
    earlier, case, mine = planned.reusable, planned.case, planned.feature_cache
    if earlier is None or planned.sample_batch[1]:  # whose images have to be generated
        return None
    old = mine and mine.parent / earlier.source
    valid = earlier.matches(images.output_hash, str(images.facts.images_hash), images.samples)
    if valid and case.role == "baseline":
        wide = quality.job_of(job, case, bench.entry.classes)
        features = quality.cached_features(wide, bench.preset(case), quality.FeatureCache(old))
        valid = features is not None
        if features is not None:
            bench.features[case.cell] = features
            quality.FeatureCache(mine).take(quality.FeatureCache(old))
    if not valid and mine is not None and mine == old:
        shutil.rmtree(mine, ignore_errors=True)
    return earlier.restore() if valid else None


def _distribution(planned: Prepared, job: Job, bench: Bench, plugin_metrics: PluginMetrics) -> OfSet:
    """Return samples and facts of the quality pass. Candidates reuse the full cache's features."""
    case = planned.case
    began, preset, wide = perf_counter(), bench.preset(case), quality.job_of(job, case, bench.entry.classes)
    feature_cache, prompts = quality.FeatureCache(planned.feature_cache), bench.entry.prompts
    with quality.sample_batch(planned, wide, prompts) as take:
        features = ImageFeatures.joined(list(quality.parts(wide, preset, feature_cache, take=take)))
    full = None
    if case.role == "baseline":
        bench.features[case.cell] = features
    else:
        full = bench.features.get(case.cell) or quality.cached_features(wide, preset, quality.FeatureCache(planned.full_features))
    images = ImageSet(features, preset, wide.subset.labels, intervals(features, preset.reference, **preset.options), full)
    samples, facts = quality.set_values(images)
    more = plugin_metrics.image_set(images)
    samples |= more
    ends = {**(facts.intervals or {}), **dict.fromkeys(more, (None, None))}
    return samples, replace(facts, intervals=ends, quality_metrics=sorted(samples), quality_seconds=round(perf_counter() - began, 1))
