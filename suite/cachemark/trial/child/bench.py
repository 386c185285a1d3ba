"""A loaded model, and what the cases of one trial share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ...cache.arena import Memory
from ...cache.codec import codec
from ...cache.engine.by_name import engine
from ...contract.method import Method
from ...core import registry, seeds
from ...core.spec import FULL, QUALITY_PASS, Case
from ...methods.base.paper_baseline import REFERENCE
from ...metrics import named_presets as presets
from ...metrics.clip import ClipScore, class_names
from ...metrics.feature_preset import Preset
from ...metrics.image_features import ImageFeatures
from ...metrics.lpips import Lpips
from ...models.protocol import Loaded, ModelEntry
from ...plans.expand import Planned
from .judge import FullCacheOutput, Job, Likeness, Prompted


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


def case_job(case: Case, bench: Bench) -> Job:
    """The images of a case, to be generated in a storage with its codec and its engine."""
    subset = seeds.subset(case.seeds, bench.entry.classes).first(case.samples)
    memory = Memory(bench.device, codec(case.codec), engine(case.engine, bench.device))
    return Job(bench.loaded, method_factory(case), memory, case.sampling, subset, case.batch, bench.device)


def method_factory(case: Case) -> Callable[[], Method]:
    """Makes the method of a case anew; on the reference engine the full cache of the papers' code."""
    if case.engine == "reference":
        return REFERENCE[registry.models.get(case.model).paradigm]
    cls: type[Method] = registry.methods.get(case.method)
    return lambda: cls.build(case.knobs)
