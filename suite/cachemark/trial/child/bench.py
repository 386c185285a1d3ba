"""A loaded model, and what the cases of one trial share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ...cache.arena import Memory
from ...cache.codec import codec
from ...cache.engine.graph import engine
from ...contract.decoder import Decoder
from ...contract.method import Method
from ...core import seeds
from ...core.errors import Unsupported
from ...core.spec import FULL, QUALITY_PASS, Case
from ...decoders.registry import DECODERS
from ...methods.base.paper_baseline import REFERENCE
from ...methods.registry import METHODS
from ...metrics.base import ImageMetric
from ...metrics.compute import presets
from ...metrics.compute.image_features import ImageFeatures
from ...metrics.compute.presets import Preset
from ...metrics.registry import image_metrics
from ...models.protocol import Loaded, ModelEntry, Request
from ...models.registry import MODELS
from ...plans.decoding import NAMING
from ...plans.expand import Planned
from ...plans.metrics import setting
from .judge import FullCacheOutput, Job
from .plugin_metrics import PluginMetrics


@dataclass
class Bench:
    """A loaded model and what the cases of one trial share: the full cache's output per set of samples, and networks, each loaded when it
    is first asked for. ``plug_ins`` are the files of the trial. ``alive`` is called now and then in what takes long, with the number of
    images made since."""

    entry: ModelEntry
    loaded: Loaded
    request: Request
    alive: Callable[[int], None] = lambda images: None
    references: dict[str, FullCacheOutput] = field(default_factory=dict)
    features: dict[str, ImageFeatures] = field(default_factory=dict)
    feature_preset: Preset | None = None
    networks: dict[object, object] = field(default_factory=dict)
    plug_ins: tuple[str, ...] = ()

    @classmethod
    def load(cls, planned: Planned, alive: Callable[[int], None] = lambda images: None, plug_ins: tuple[str, ...] = ()) -> Bench:
        """Raises Unsupported where its list of prompts is another one than when the plan was read."""
        entry = planned.entry
        if planned.request.prompts and entry.prompts and entry.conditions != planned.case.conditions:
            raise Unsupported(f"The prompts in {planned.request.prompts!r} have changed since the plan was read.", remedy="Run it again.")
        return cls(entry, entry.load(planned.request), planned.request, alive, plug_ins=plug_ins)

    @property
    def device(self) -> str:
        return self.request.device

    def plugin_metrics(self, case: Case) -> PluginMetrics:
        """The metrics of plug-ins that a case states."""
        return PluginMetrics(case, self.plug_ins)

    def reference(self, case: Case, job: Job) -> FullCacheOutput:
        """The full cache in the native codec on the case's engine at the samples of a job, generated once per trial: for the reference rows
        too, which differ from their cell by the quality pass alone and may take fewer samples."""
        cell = replace(case, evaluation={k: v for k, v in case.evaluation.items() if k != QUALITY_PASS}).cell
        reference = self.references.get(cell)
        if reference is None or reference.samples < len(job.subset):
            full = replace(job, method=METHODS.get(FULL), memory=Memory(self.device, engine=job.memory.engine.another()),
                           decoder=None)
            reference = self.references[cell] = FullCacheOutput(full)
        return reference.first(len(job.subset))

    def metrics(self, case: Case) -> list[ImageMetric]:
        """The metrics of single images that the case has and that need nothing that is missing."""
        labels = seeds.subset(case.seeds, self.entry.classes).labels[: case.compared]
        return [metric for cls in image_metrics().values() if self._measures(case, cls)
                and (metric := cls().prepared(setting(cls.plan_name, self.entry, self.request, self.networks))).applies(labels)]

    def _measures(self, case: Case, cls: type[ImageMetric]) -> bool:
        return (not cls.plan_name or case.measures(cls.plan_name)) and (not cls.of_model or cls.name in self.entry.quality)

    def preset(self, case: Case) -> Preset:
        """The preset by which the images of all cases are compared with real ones."""
        if self.feature_preset is None:
            name, request = case.evaluation[QUALITY_PASS]["preset"], self.request
            self.feature_preset = presets.preset(name, weights=request.extractor, reference=request.reference, device=self.device)
        return self.feature_preset


def case_job(case: Case, bench: Bench) -> Job:
    """The images of a case, to be generated in a storage with its codec and its engine."""
    subset = seeds.subset(case.seeds, bench.entry.classes).first(case.samples)
    memory = Memory(bench.device, codec(case.codec), engine(case.engine, bench.device))
    return Job(bench.loaded, method_factory(case), memory, case.sampling, subset, case.batch, bench.device, bench.alive,
               decoder_factory(case))


def method_factory(case: Case) -> Callable[[], Method]:
    """Makes the method of a case anew; on the reference engine the full cache of the papers' code."""
    if case.engine == "reference":
        return REFERENCE[MODELS.get(case.model).paradigm]
    cls: type[Method] = METHODS.get(case.method)
    return lambda: cls.build(case.parameters)


def decoder_factory(case: Case) -> Callable[[], Decoder] | None:
    """Makes the decoder of a case anew; None where it is sequential."""
    if not case.decoder:
        return None
    cls: type[Decoder] = DECODERS.get(case.decoder["name"])
    parameters = {parameter: value for parameter, value in case.decoder.items() if parameter not in NAMING}
    return lambda: cls.build(parameters)
