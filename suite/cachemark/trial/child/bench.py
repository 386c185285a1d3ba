"""A loaded model, and what the cases of one trial share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...cache.arena import Memory
from ...cache.codec import codec
from ...cache.engine.graph import engine
from ...contract.method import Method
from ...core import registry, seeds
from ...core.spec import FULL, QUALITY_PASS, Case
from ...methods.base.paper_baseline import REFERENCE
from ...metrics import named_presets as presets
from ...metrics.clip import ClipScore, class_names
from ...metrics.feature_preset import Preset
from ...metrics.image_features import ImageFeatures
from ...metrics.legend import legend_score
from ...metrics.lpips import Lpips
from ...models.protocol import Loaded, ModelEntry, Request
from ...plans.expand import Planned
from .judge import Figure, FullCacheOutput, Job

QUALITY: dict[str, Figure] = {"legend": lambda images, reference, labels: legend_score(images)}  # those that a model has of its own


@dataclass
class Bench:
    """A loaded model and what the cases of one trial share: the full cache's output per set of samples, and networks, each loaded when it
    is first asked for. ``alive`` is called now and then in what takes long."""

    entry: ModelEntry
    loaded: Loaded
    request: Request
    alive: Callable[[], None] = lambda: None
    references: dict[str, FullCacheOutput] = field(default_factory=dict)
    features: dict[str, ImageFeatures] = field(default_factory=dict)
    feature_preset: Preset | None = None

    @classmethod
    def load(cls, planned: Planned, alive: Callable[[], None] = lambda: None) -> Bench:
        entry: ModelEntry = registry.models.get(planned.case.model)
        return cls(entry, entry.load(planned.request), planned.request, alive)

    @property
    def device(self) -> str:
        return self.request.device

    @cached_property
    def lpips(self) -> Lpips:
        return Lpips(device=self.device)

    @cached_property
    def clip(self) -> ClipScore:
        if self.entry.prompts:
            return ClipScore(self.request.clip, self.entry.prompts, template="{}", device=self.device)
        return ClipScore(self.request.clip, class_names(self.entry.preset), device=self.device)

    def reference(self, case: Case, job: Job) -> FullCacheOutput:
        """The full cache in the native codec on the case's engine at the samples of a job, generated once per trial: for the reference rows
        too, which differ from their cell by the quality pass alone and may take fewer samples."""
        cell = replace(case, evaluation={k: v for k, v in case.evaluation.items() if k != QUALITY_PASS}).cell
        held = self.references.get(cell)
        if held is None or held.samples < len(job.subset):
            full = replace(job, method=registry.methods.get(FULL), memory=Memory(self.device, engine=job.memory.engine.another()))
            held = self.references[cell] = FullCacheOutput(full)
        return held.first(len(job.subset))

    def figures(self, case: Case) -> dict[str, Figure]:
        """Figures of single images: LPIPS and the CLIP score where the case has them and their weights are here, and the model's own."""
        found: dict[str, Figure] = {}
        if case.measures("lpips"):
            found["lpips"] = lambda images, reference, labels: self.lpips(images, reference)
        found |= {name: QUALITY[name] for name in self.entry.quality}
        if case.measures("clip"):
            found["clip_score"] = lambda images, reference, labels: self.clip(images, labels)
        return found

    def preset(self, case: Case) -> Preset:
        """The preset by which the images of all cases are compared with real ones."""
        if self.feature_preset is None:
            name, given = case.evaluation[QUALITY_PASS]["preset"], self.request
            self.feature_preset = presets.preset(name, weights=given.extractor, reference=given.reference, device=self.device)
        return self.feature_preset


def case_job(case: Case, bench: Bench) -> Job:
    """The images of a case, to be generated in a storage with its codec and its engine."""
    subset = seeds.subset(case.seeds, bench.entry.classes).first(case.samples)
    memory = Memory(bench.device, codec(case.codec), engine(case.engine, bench.device))
    return Job(bench.loaded, method_factory(case), memory, case.sampling, subset, case.batch, bench.device, bench.alive)


def method_factory(case: Case) -> Callable[[], Method]:
    """Makes the method of a case anew; on the reference engine the full cache of the papers' code."""
    if case.engine == "reference":
        return REFERENCE[registry.models.get(case.model).paradigm]
    cls: type[Method] = registry.methods.get(case.method)
    return lambda: cls.build(case.knobs)
