"""The fidelity and quality pass: a case's images against the full cache's at the same seeds."""

from __future__ import annotations

import copy
import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from PIL import Image
from safetensors.torch import save
from torch import Tensor

from ...cache.arena import Memory
from ...cache.attention import fused
from ...cache.layout import Layout
from ...cache.masked_layout import MaskedLayout, take
from ...contract.decoder import Decoder
from ...contract.method import Method
from ...core.result import IMAGES
from ...core.seeds import Subset
from ...core.spec import Sampling
from ...core.units import PIXELS
from ...metrics.base import ImageBatch, ImageMetric
from ...metrics.compute import fidelity
from ...metrics.compute.image_bytes import nearest_bytes
from ...models.protocol import Loaded
from .plugin_metrics import Figures

WORST, FIXED = 8, 4  # tiles of a sprite: the seeds that differ most, then the first of the subset
KEPT_BYTES = 512 * 2**20  # log-probabilities of the full cache that are kept rather than computed again


@dataclass(frozen=True)
class Job:
    """A task of generation: a method anew for each generation, a storage for chunks of ``batch`` samples. ``alive`` is called with the
    number of images after each chunk, since many of them take long. ``decoder``: one anew too, None for sequential decoding, which every
    family knows; ``noted`` is given it with the number of images behind each generation whose tokens are not forced."""

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

    @property
    def layout(self) -> Layout:
        """Shape of a generation of all samples at once."""
        return self._layout(slice(len(self.subset)))

    def _layout(self, part: slice) -> Layout:
        labels = (self.subset.labels[part],) if self.loaded.prompted else ()
        return self.loaded.generator.layout(self.subset.seeds[part], self.sampling, *labels)

    @property
    def continuous(self) -> bool:
        """True where its tokens are vectors rather than indices."""
        return isinstance(self.layout, MaskedLayout)

    def first(self, samples: int) -> Job:
        """Return the same task for its first samples."""
        return replace(self, subset=self.subset.first(samples))

    def chunks(self) -> Iterator[slice]:
        yield from (slice(at, min(at + self.batch, len(self.subset))) for at in range(0, len(self.subset), self.batch))

    def alike(self) -> list[slice]:
        """Whole batches with conditions of the first one's lengths, whose generations use one storage; what there is, where that is less
        than a batch."""
        full_batches = [part for part in self.chunks() if part.stop - part.start == self.batch] or [slice(len(self.subset))]
        return [part for part in full_batches if self._layout(part).condition == self._layout(full_batches[0]).condition]

    def generate(self, part: slice, forced: Tensor | None = None, see: Callable[[Any, Tensor], None] | None = None) -> Tensor:
        """Tokens of some samples, (part, N) or (part, N, C). A part of another size than ``batch``, or with conditions of other lengths
        than those of the first, is generated in a storage of its own."""
        labels = torch.tensor(self.subset.labels[part], device=self.device)
        alike = len(labels) == self.batch and self._layout(part).condition == self._layout(slice(self.batch)).condition
        memory = self.memory if alike else self.memory.another()
        tokens = self.drawn(labels, self.subset.seeds[part], memory, forced=forced, see=see)
        self.alive(len(labels))
        return tokens

    def drawn(self, labels: Tensor, seeds: Sequence[int], memory: Memory, **options: Any) -> Tensor:
        """One generation under a new method, with a fused attention kernel."""
        decoder = None if self.decoder is None else self.decoder()
        if decoder is not None:
            options["decoder"] = decoder
        with fused(self.device):
            tokens = self.loaded.generator.generate(labels, seeds, self.method(), self.sampling, memory, **options)
        if decoder is not None and options.get("forced") is None:
            self.noted(len(labels), decoder)
        return tokens

    def decode(self, tokens: Tensor) -> Tensor:
        """Images of some tokens, (part, 3, H, W) fp32."""
        with torch.inference_mode():
            return self.loaded.decode(tokens).float()

    def log_probs(self, logits: Tensor) -> Tensor:
        """Log-probabilities of guided logits at the case's temperature; truncation is left out, it would make KL infinite."""
        return (logits / max(self.sampling.temperature, 1e-5)).log_softmax(-1)


class FullCacheOutput:
    """The full cache's tokens, images and, where tokens are indices, log-probabilities for one set of samples. ``finite`` is false
    where one of the latter is NaN or infinite: a token is drawn even then."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._kept: dict[int, Tensor] = {}
        self.finite = True
        self.tokens = torch.cat([job.generate(part) if job.continuous else self._observed(part) for part in job.chunks()])
        self.images = decoded(job, self.tokens)

    @property
    def samples(self) -> int:
        """The number of samples."""
        return len(self.tokens)

    def first(self, samples: int) -> FullCacheOutput:
        """Return what the full cache gave for the first samples, itself where these are all."""
        if samples == self.samples:
            return self
        part = copy.copy(self)
        part._job, part.tokens, part.images = self._job.first(samples), self.tokens[:samples], self.images[:samples]
        return part

    def _observed(self, part: slice) -> Tensor:
        tokens, log_probs = self._watched(part)
        self.finite &= bool(torch.isfinite(log_probs).all())
        if log_probs[0].nbytes * len(self._job.subset) <= KEPT_BYTES:
            self._kept.update({part.start + i: row for i, row in enumerate(log_probs)})
        return tokens

    def log_probs(self, part: slice) -> Tensor:
        """(part, N, …, vocab) under the full cache's own tokens."""
        if self._kept:
            return torch.stack([self._kept[i] for i in range(part.start, part.stop)])
        return self._watched(part, self.tokens[part])[1]

    def _watched(self, part: slice, forced: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Tokens of some samples, and their log-probabilities (part, N, vocab)."""
        passes: list[Tensor] = []
        tokens = self._job.generate(part, forced, lambda first, logits: passes.append(self._job.log_probs(logits)))
        return tokens, torch.cat(passes, 1)


@dataclass(frozen=True)
class JudgedImages:
    """Samples per seed, the hash of all tokens, artifacts by name, and facts about the images and the sprite. ``finite`` is false where an
    image, a value or the reference holds NaN or infinity: then nothing else counts. ``faults``: of metrics of plug-ins without values."""

    samples: dict[str, list[float]]
    output_hash: str
    artifacts: dict[str, bytes]
    facts: dict[str, object]
    finite: bool
    faults: dict[str, dict[str, str]] = field(default_factory=dict)


def decoded(job: Job, tokens: Tensor) -> Tensor:
    """Images of all samples, in chunks of the job's batch."""
    images = []
    for part in job.chunks():
        images.append(job.decode(tokens[part]))
        job.alive(0)
    return torch.cat(images)


def judge(
    job: Job, reference: FullCacheOutput, metrics: Sequence[ImageMetric], *, forced: int, sprite: bool, itself: bool = False,
    paired: bool = True, plugin_values: Callable[[ImageBatch], Figures] = lambda shown: ({}, {}),
) -> JudgedImages:
    """Compare a job with the reference, by ``metrics`` of single images. ``forced``: of how many samples, from the first, there is a
    teacher-forced KL or distance; ``sprite`` adds the picture of the worst seeds. ``itself``: the job is the one that the reference was
    made by, and only its forced values are computed anew. Where the image decoder has random weights, images are not judged.
    ``paired``: at one seed both draw one image, or would; else only its forced values and what images show by themselves are compared.
    ``plugin_values`` gives the values of metrics of plug-ins, and the faults of those without.
    """
    if itself:
        tokens, images = reference.tokens, reference.images
    else:
        tokens = torch.cat([job.generate(part) for part in job.chunks()])
        images = decoded(job, tokens)
    along = drift if job.continuous else divergence
    shown = ImageBatch(images, reference.images, tokens, reference.tokens, job.subset.labels, job.subset.seeds,
                  (lambda: along(job.first(forced), reference.first(forced))) if forced else None)
    samples = {metric.name: metric.measure(shown) for metric in metrics if _applies(metric, job, shown, paired)}
    stored = storable(job, tokens)
    artifacts = {"tokens.safetensors": save({"tokens": stored})}
    facts: dict[str, object] = {IMAGES: image_hash(images)}
    if sprite and job.loaded.pictures:
        worst = samples[PIXELS].argsort(stable=True)[:WORST].tolist() if paired else ()
        order = [*worst, *range(min(FIXED, len(tokens)))]
        artifacts["grid.png"] = _sprite(reference.images[order], images[order])
        facts |= {"grid_seeds": [job.subset.seeds[i] for i in order], "grid_classes": [job.subset.labels[i] for i in order]}
    plugin_samples, faults = plugin_values(ImageBatch(
        images.float().cpu(), reference.images.float().cpu(), stored, storable(job, reference.tokens), job.subset.labels, job.subset.seeds,
    )) if job.loaded.pictures else ({}, {})
    finite = reference.finite and bool(torch.isfinite(images).all()) and all(bool(torch.isfinite(v).all()) for v in samples.values())
    figured = {name: values.double().tolist() for name, values in samples.items()}
    return JudgedImages({**figured, **plugin_samples}, hashed(stored), artifacts, facts, finite, faults)


def _applies(metric: ImageMetric, job: Job, shown: ImageBatch, paired: bool) -> bool:
    """Return whether a metric has values of these tokens and images."""
    fits = metric.tokens == ("vectors" if job.continuous else "indices") if metric.tokens else job.loaded.pictures
    return fits and (paired or not metric.paired) and (shown.forced is not None or not metric.forced)


def storable(job: Job, tokens: Tensor) -> Tensor:
    """Tokens as they are stored and hashed: indices, of 32 bit where they fit, or fp32 vectors on the host."""
    return tokens.to(torch.float32 if job.continuous else job.loaded.token_dtype).cpu().contiguous()


def hashed(stored: Tensor) -> str:
    """The hash of all tokens of a case."""
    return hashlib.sha256(stored.numpy().tobytes()).hexdigest()


def image_hash(images: Tensor) -> str:
    """The hash of all images of a case, (N, 3, H, W) in [−1, 1] (clamped): of the nearest bytes, in the order of seeds."""
    total = hashlib.sha256()
    for image in images:
        total.update(nearest_bytes(image).cpu().numpy().tobytes())
    return total.hexdigest()


def divergence(job: Job, reference: FullCacheOutput) -> Tensor:
    """Mean KL(full ‖ job) per sample along the full cache's own tokens, in nats per token, (samples,) fp64. It cannot be negative, and what
    rounding leaves below 0 is 0."""
    def of(part: slice) -> Tensor:
        expected = reference.log_probs(part)
        total = torch.zeros(expected.size(0), dtype=torch.float64, device=expected.device)

        def see(first: int, logits: Tensor) -> None:
            total.add_(fidelity.divergence(expected[:, first : first + logits.size(1)], job.log_probs(logits)).flatten(1).sum(1))

        job.generate(part, forced=reference.tokens[part], see=see)
        return total.clamp_min(0.0) / expected.size(1)

    return torch.cat([of(part) for part in job.chunks()])


def drift(job: Job, reference: FullCacheOutput) -> Tensor:
    """Root mean square difference, per sample, of what is drawn along the full cache's own tokens, with the same noise: (samples,)
    fp64. Where the number of passes differs, a token is still compared at its place."""
    def of(part: slice) -> Tensor:
        own = reference.tokens[part]
        total = torch.zeros(len(own), dtype=torch.float64, device=own.device)

        def see(places: Tensor, drawn: Tensor) -> None:
            total.add_((drawn.double() - take(own, places).double()).square().flatten(1).sum(1))

        job.generate(part, forced=own, see=see)
        return (total / own[0].numel()).sqrt()

    return torch.cat([of(part) for part in job.chunks()])


def _sprite(above: Tensor, below: Tensor) -> bytes:
    """Two rows of tiles as a PNG: (n, 3, H, W) in [−1, 1] each."""
    rows = [nearest_bytes(t).permute(2, 0, 3, 1).flatten(1, 2) for t in (above, below)]
    file = io.BytesIO()
    Image.fromarray(torch.cat(rows).cpu().contiguous().numpy()).save(file, "PNG", optimize=True)
    return file.getvalue()
