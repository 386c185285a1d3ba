"""A loaded model, the tasks of generation that cases give it, and the full cache's output."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ...cache.arena import Memory
from ...cache.codecs import codec
from ...cache.engines import GRAPH, engine
from ...cache.kernels.fused import fusing
from ...cache.kernels.plain import fused
from ...cache.kernels.table import AUTO, forced
from ...cache.layout import Layout
from ...cache.masked_layout import MaskedLayout
from ...contract.decoder import Decoder
from ...contract.method import Method
from ...core import seeds
from ...core.errors import Unsupported
from ...core.seeds import Subset
from ...core.spec import FULL, QUALITY_PASS, Case, Sampling
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
from ...plans.metrics import setting
from ...plans.planned import Planned
from ...plans.reuse import KnownSeeds

KEPT_BYTES = 512 * 2**20  # log-probabilities of the full cache that are kept rather than computed again


class NotFinite(ArithmeticError):
    """Tokens, images or values hold NaN or infinity."""


@dataclass(frozen=True)
class Job:
    """Images to generate in chunks of ``batch`` samples, each with a new method and decoder.

    ``kernel``: the attention kernel to try first, of those that a CUDA graph can contain if ``captured``. ``fused``: use fused passes on a
    GPU. ``alive`` is called with the number of images after each chunk, ``noted`` with that number and the decoder after each generation
    without forced tokens."""

    loaded: Loaded
    method: Callable[[], Method]
    memory: Memory
    sampling: Sampling
    subset: Subset
    batch: int
    device: str
    alive: Callable[[int], None] = lambda images: None
    decoder: Callable[[], Decoder] | None = None
    noted: Callable[[int, Decoder], None] = lambda images, decoder: None
    kernel: str = AUTO
    fused: bool = True
    captured: bool = False

    @property
    def layout(self) -> Layout:
        """Shape of a generation of all samples at once."""
        return self._layout(slice(len(self.subset)))

    def _layout(self, part: slice) -> Layout:
        labels = (self.subset.labels[part],) if self.loaded.prompted else ()
        return self.loaded.generator.layout(self.subset.seeds[part], self.sampling, *labels)

    @property
    def continuous(self) -> bool:
        """True if tokens are vectors instead of indices."""
        return isinstance(self.layout, MaskedLayout)

    def first(self, samples: int) -> Job:
        """Return the same task for its first samples."""
        return replace(self, subset=self.subset.first(samples))

    def chunks(self) -> list[slice]:
        return [slice(at, min(at + self.batch, len(self.subset))) for at in range(0, len(self.subset), self.batch)]

    def alike(self) -> list[slice]:
        """Return the whole batches with conditions as long as the first one's, which share a storage.

        Without a whole batch, return all samples as one."""
        full_batches = [part for part in self.chunks() if part.stop - part.start == self.batch] or [slice(len(self.subset))]
        return [part for part in full_batches if self._layout(part).condition == self._layout(full_batches[0]).condition]

    def generate(
        self, part: slice, forced: Tensor | None = None, see: Callable[[Any, Tensor], None] | None = None,
        mark: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Return tokens of some samples, (part, N) or (part, N, C).

        A part that does not fit the storage (another size than ``batch``, conditions of other lengths) gets its own."""
        labels = torch.tensor(self.subset.labels[part], device=self.device)
        alike = len(labels) == self.batch and self._layout(part).condition == self._layout(slice(self.batch)).condition
        memory = self.memory if alike else self.memory.another()
        tokens = self.drawn(labels, self.subset.seeds[part], memory, forced=forced, see=see, mark=mark)
        self.alive(len(labels))
        return tokens

    def generate_all(self, known: KnownTokens | None = None) -> Tensor:
        """Return the tokens of all samples, except ``known`` ones newly generated."""
        parts = ((part, known.tokens(part) if known else None) for part in self.chunks())
        return torch.cat([self.generate(part) if tokens is None else tokens for part, tokens in parts])

    def drawn(self, labels: Tensor, seeds: Sequence[int], memory: Memory, **options: Any) -> Tensor:
        """Return the tokens of one generation under a new method, with a fused attention kernel."""
        decoder = None if self.decoder is None else self.decoder()
        if decoder is not None:
            options["decoder"] = decoder
        method = self.method()
        with fused(self.device), forced(self.kernel, captured=self.captured), fusing(self.fused):
            tokens = self.loaded.generator.generate(labels, seeds, method, self.sampling, memory, **options)
        if decoder is not None and options.get("forced") is None:
            self.noted(len(labels), decoder)
        return tokens

    def decode(self, tokens: Tensor) -> Tensor:
        """Return images of some tokens, (part, 3, H, W) fp32."""
        with torch.inference_mode():
            return self.loaded.decode(tokens).float()

    def decode_all(self, tokens: Tensor) -> Tensor:
        """Return images of all samples, decoded in chunks."""
        images = []
        for part in self.chunks():
            images.append(self.decode(tokens[part]))
            self.alive(0)
        return torch.cat(images)

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return log-probabilities at the case's temperature, without truncation (KL would be infinite)."""
        return (logits / max(self.sampling.temperature, 1e-5)).log_softmax(-1)


@dataclass(frozen=True)
class KnownTokens:
    """Tokens of some samples, and values along the full cache's tokens, from a stored outcome."""

    about: KnownSeeds
    stored: Tensor
    device: str

    @classmethod
    def read(cls, about: KnownSeeds | None, job: Job) -> KnownTokens | None:
        """Return the tokens that an outcome stored; None without one, or if the file is damaged."""
        try:
            stored = load_file(about.file)["tokens"] if about else None
        except (OSError, KeyError, SafetensorError):
            return None
        if about is None or stored is None or hashed(stored) != about.output_hash:
            return None
        return cls(about, stored if job.continuous else stored.long(), job.device)

    def tokens(self, part: slice) -> Tensor | None:
        """Return the tokens of a part that was generated alone, else None."""
        return self.stored[part].to(self.device) if self.about.has(part) else None

    def along(self, part: slice) -> Tensor | None:
        """Return the values of a part along the full cache's tokens, fp64, else None."""
        values = self.about.along[part]
        return torch.tensor(values, dtype=torch.float64, device=self.device) if self.about.has(part, along=True) else None


def hashed(stored: Tensor) -> str:
    """Return the hash of all tokens of a case."""
    return hashlib.sha256(stored.numpy().tobytes()).hexdigest()


class FullCacheOutput:
    """The full cache's tokens, images and, for indices, log-probabilities of one set of samples.

    Raises NotFinite for a log-probability that is NaN or infinite: a token is drawn even then."""

    def __init__(self, job: Job, known: KnownTokens | None = None) -> None:
        self._job = job
        self._kept: dict[int, Tensor] = {}
        self._unseen: list[slice] = []  # chunks whose tokens were known
        self.tokens = job.generate_all(known) if job.continuous else torch.cat([self._observed(part, known) for part in job.chunks()])
        self.images = job.decode_all(self.tokens)
        self._whole, self._all_tokens = job, self.tokens

    def first(self, samples: int) -> FullCacheOutput:
        """Return the output for the first samples."""
        part = copy.copy(self)
        part._job, part.tokens, part.images = self._job.first(samples), self.tokens[:samples], self.images[:samples]
        return part

    def _observed(self, part: slice, known: KnownTokens | None) -> Tensor:
        if known and (stored := known.tokens(part)) is not None:
            self._unseen.append(part)
            return stored
        tokens, log_probs = self._watched(self._job, part)
        self._keep(part, log_probs, self._job)
        return tokens

    def _keep(self, part: slice, log_probs: Tensor, job: Job) -> None:
        if not bool(torch.isfinite(log_probs).all()):
            raise NotFinite("The full cache's log-probabilities hold NaN or infinity.")
        if log_probs[0].nbytes * len(job.subset) <= KEPT_BYTES:
            self._kept.update({part.start + i: row for i, row in enumerate(log_probs)})

    def log_probs(self, part: slice) -> Tensor:
        """Return log-probabilities (part, N, …, vocab) under the full cache's own tokens.

        Chunks that were not generated here run as they did then: another number of rows would round differently."""
        for chunk in [chunk for chunk in self._unseen if chunk.start < part.stop and part.start < chunk.stop]:
            self._unseen.remove(chunk)
            self._keep(chunk, self._watched(self._whole, chunk, self._all_tokens[chunk])[1], self._whole)
        if all(i in self._kept for i in range(part.start, part.stop)):
            return torch.stack([self._kept[i] for i in range(part.start, part.stop)])
        log_probs = self._watched(self._job, part, self.tokens[part])[1]
        self._keep(part, log_probs, self._job)
        return log_probs

    def _watched(self, job: Job, part: slice, forced: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return tokens of some samples, and their log-probabilities (part, N, vocab)."""
        passes: list[Tensor] = []
        tokens = job.generate(part, forced, lambda first, logits: passes.append(job.log_probs(logits)))
        return tokens, torch.cat(passes, 1)


@dataclass
class Bench:
    """A loaded model, and full cache outputs, features and networks that the cases of a trial share.

    ``plug_ins`` are the files of the trial. ``alive`` is called during long work with the number of images since its last call."""

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
        """Load the model of a case. Raises Unsupported if its prompts changed since the plan was read."""
        entry = planned.entry
        if planned.request.prompts and entry.prompts and entry.conditions != planned.case.conditions:
            raise Unsupported(f"The prompts in {planned.request.prompts!r} have changed since the plan was read.", remedy="Run it again.")
        return cls(entry, entry.load(planned.request), planned.request, alive, plug_ins=plug_ins)

    @property
    def device(self) -> str:
        return self.request.device

    def reference(self, case: Case, job: Job, known: KnownSeeds | None = None) -> FullCacheOutput:
        """Return the full cache's output for a job's samples, on the case's engine, generated once per trial but for ``known`` samples.

        Reference rows share it: they differ from their configuration by the quality pass alone and may have fewer samples."""
        cell = replace(case, evaluation={k: v for k, v in case.evaluation.items() if k != QUALITY_PASS}).cell
        reference = self.references.get(cell)
        if reference is None or len(reference.tokens) < len(job.subset):
            memory = Memory(self.device, engine=job.memory.engine.another())
            samples = len(job.subset)
            if known:  # whole batches of the first run, since the number of rows decides the rounding
                samples = max(samples, min(-(-samples // job.batch) * job.batch, known.samples))
            subset = seeds.subset(case.seeds, self.entry.classes).first(samples)
            full = replace(job, subset=subset, method=METHODS.get(FULL), memory=memory, decoder=None)
            reference = self.references[cell] = FullCacheOutput(full, KnownTokens.read(known, full))
        return reference.first(len(job.subset))

    def metrics(self, case: Case) -> list[ImageMetric]:
        """Return the case's metrics of single images whose requirements are met."""
        labels = seeds.subset(case.seeds, self.entry.classes).labels[: case.compared]
        prepared = [cls().prepared(setting(cls.plan_name, self.entry, self.request, self.networks)) for cls in image_metrics().values()
                    if (not cls.plan_name or case.measures(cls.plan_name)) and (not cls.of_model or cls.name in self.entry.quality)]
        return [metric for metric in prepared if metric.applies(labels)]

    def preset(self, case: Case) -> Preset:
        """Return the preset for comparing the images of all cases with real ones."""
        if self.feature_preset is None:
            name, request = case.evaluation[QUALITY_PASS]["preset"], self.request
            self.feature_preset = presets.preset(name, weights=request.extractor, reference=request.reference, device=self.device)
        return self.feature_preset


def case_job(case: Case, bench: Bench) -> Job:
    """Return the job of a case, in a storage with its codec and its engine."""
    subset = seeds.subset(case.seeds, bench.entry.classes).first(case.samples)
    memory = Memory(bench.device, codec(case.codec), engine(case.engine, bench.device))
    return Job(bench.loaded, method_factory(case), memory, case.sampling, subset, case.batch, bench.device, bench.alive,
               decoder_factory(case), kernel=case.kernel, fused=case.engine != "reference", captured=case.engine == GRAPH)


def method_factory(case: Case) -> Callable[[], Method]:
    """Return the factory of a case's method; on the reference engine, of the papers' full cache."""
    if case.engine == "reference":
        return REFERENCE[MODELS.get(case.model).paradigm]
    cls: type[Method] = METHODS.get(case.method)
    return lambda: cls.build(case.parameters)


def decoder_factory(case: Case) -> Callable[[], Decoder] | None:
    """Return the factory of a case's decoder, or None if it is sequential."""
    if not case.decoder:
        return None
    cls: type[Decoder] = DECODERS.get(case.decoder["name"])
    parameters = {parameter: value for parameter, value in case.decoder.items() if parameter not in NAMING}
    return lambda: cls.build(parameters)
