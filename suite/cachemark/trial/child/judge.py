"""The fidelity and quality pass: a case's images against the full cache's at the same seeds."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from PIL import Image
from safetensors.torch import load, save
from torch import Tensor

from ...cache.arena import Memory
from ...cache.masked_layout import take
from ...cache.random_streams import seeds_tensor
from ...core.facts import ImageFacts
from ...core.spec import FULL, TOKENS, Case
from ...core.units import PIXELS
from ...metrics.base import ImageBatch, ImageMetric
from ...metrics.compute.image_bytes import nearest_bytes
from ...metrics.tokens import kl_divergence
from ...models.sampling import draw
from .bench import FullCacheOutput, Job, KnownTokens, NotFinite, hashed
from .plugin_metrics import PluginMetrics

WORST, FIXED = 8, 4  # tiles of a sprite: the seeds that differ most, then the first of the subset
PARTED = "It is not exact here: {share:.4%} of the tokens equal sequential decoding's, and in fp32 all have to."


@dataclass(frozen=True)
class JudgedImages:
    """Samples per seed, the hash of all tokens, artifacts by name, and facts about the images."""

    samples: dict[str, list[float]]
    output_hash: str
    artifacts: dict[str, bytes]
    facts: ImageFacts


def judge(
    job: Job, reference: FullCacheOutput, metrics: Sequence[ImageMetric], *, forced: int, sprite: bool, itself: bool = False,
    paired: bool = True, plugin_metrics: PluginMetrics | None = None, known: KnownTokens | None = None,
) -> JudgedImages:
    """Compare a job with the reference by metrics of single images (random image decoder: of tokens).

    ``forced``: number of samples with a teacher-forced KL or distance. ``sprite`` adds the picture of the worst seeds. ``itself``: the
    reference is the output of this job, and only its forced values are computed. Without ``paired``, equal seeds need not draw equal
    images, and only forced values and unpaired metrics are computed. ``known`` tokens are not generated. Raises NotFinite.
    """
    tokens = reference.tokens if itself else job.generate_all(known)
    images = reference.images if itself else job.decode_all(tokens)
    along = drift if job.continuous else divergence
    image_batch = ImageBatch(images, reference.images, tokens, reference.tokens, job.subset.labels, job.subset.seeds,
                       (lambda: along(job.first(forced), reference.first(forced), known)) if forced else None)
    samples = {metric.name: metric.measure(image_batch) for metric in metrics if _applies(metric, job, image_batch, paired)}
    if not all(bool(torch.isfinite(values).all()) for values in (images, *samples.values())):
        raise NotFinite("The decoded images or their values hold NaN or infinity.")
    stored = storable(job, tokens)
    artifacts = {"tokens.safetensors": save({"tokens": stored})}
    facts = ImageFacts(images_hash=image_hash(images))
    if sprite and job.loaded.pictures:
        worst = samples[PIXELS].argsort(stable=True)[:WORST].tolist() if paired else ()
        order = [*worst, *range(min(FIXED, len(tokens)))]
        artifacts["grid.png"] = _sprite(reference.images[order], images[order])
        facts = replace(facts, grid_seeds=[job.subset.seeds[i] for i in order], grid_classes=[job.subset.labels[i] for i in order],
                        grid_width=images.size(3) if images.size(2) != images.size(3) else None)
    measured = {name: values.double().tolist() for name, values in samples.items()}
    if plugin_metrics is not None and job.loaded.pictures:
        on_host = ImageBatch(images.float().cpu(), reference.images.float().cpu(), stored, storable(job, reference.tokens),
                             job.subset.labels, job.subset.seeds)
        measured |= plugin_metrics.images(on_host, job.batch, job.alive, paired)
    return JudgedImages(measured, hashed(stored), artifacts, facts)


def _applies(metric: ImageMetric, job: Job, image_batch: ImageBatch, paired: bool) -> bool:
    """Return whether a metric has values of these tokens and images."""
    fits = metric.tokens == ("vectors" if job.continuous else "indices") if metric.tokens else job.loaded.pictures
    return fits and (paired or not metric.paired) and (image_batch.forced is not None or not metric.forced)


def storable(job: Job, tokens: Tensor) -> Tensor:
    """Return tokens as they are stored and hashed: indices or fp32 vectors on the host."""
    return tokens.to(torch.float32 if job.continuous else job.loaded.token_dtype).cpu().contiguous()


def image_hash(images: Tensor) -> str:
    """Return the hash of the nearest bytes of images (N, 3, H, W) in [−1, 1], in the order of seeds."""
    total = hashlib.sha256()
    for image in images:
        total.update(nearest_bytes(image).cpu().numpy().tobytes())
    return total.hexdigest()


def divergence(job: Job, reference: FullCacheOutput, known: KnownTokens | None = None) -> Tensor:
    """Return the mean KL(full ‖ job) along the full cache's tokens, in nats per token, (samples,) fp64.

    Negative values are rounding errors, so they become 0."""
    def of_part(part: slice) -> Tensor:
        expected, along = reference.log_probs(part), list[tuple[int, int, Tensor]]()

        def see(first: int, logits: Tensor) -> None:
            count = logits.size(1)
            along.append((first, count, kl_divergence(expected[:, first : first + count], job.log_probs(logits)).flatten(1).sum(1)))

        tokens = job.generate(part, forced=reference.tokens[part], see=see)
        total, drawn = torch.zeros(2, len(tokens), dtype=torch.float64, device=tokens.device)
        for first, count, sums in along:
            made = tokens[:, first] >= 0  # −1: in a scale that was not generated for this image
            total += sums * made
            drawn += count * made
        return total.clamp_min(0.0) / drawn

    return _by_parts(job, of_part, known)


def drift(job: Job, reference: FullCacheOutput, known: KnownTokens | None = None) -> Tensor:
    """Return the RMS difference of tokens drawn along the full cache's with equal noise, (samples,) fp64.

    If the number of passes differs, tokens are compared at equal positions."""
    def of_part(part: slice) -> Tensor:
        own = reference.tokens[part]
        total = torch.zeros(len(own), dtype=torch.float64, device=own.device)

        def see(positions: Tensor, drawn: Tensor) -> None:
            total.add_((drawn.double() - take(own, positions).double()).square().flatten(1).sum(1))

        job.generate(part, forced=own, see=see)
        return (total / own[0].numel()).sqrt()

    return _by_parts(job, of_part, known)


def _by_parts(job: Job, of_part: Callable[[slice], Tensor], known: KnownTokens | None) -> Tensor:
    """Return the values of all samples, computed for those that are not ``known``."""
    values = ((part, known.along(part) if known else None) for part in job.chunks())
    return torch.cat([of_part(part) if stored is None else stored for part, stored in values])


def inexact(case: Case, job: Job, reference: FullCacheOutput, images: JudgedImages) -> str:
    """Return why an exact decoder in fp32 differs from sequential decoding; empty if it does not."""
    if job.decoder is None or job.decoder().keeps != TOKENS or case.dtype != "float32":
        return ""
    if (case.method, case.codec) == (FULL, "native"):
        own = reference.tokens
    else:
        own = replace(job, decoder=None, memory=Memory(job.device, job.memory.codec, job.memory.engine.another())).generate_all()
    expected = storable(job, own)
    if hashed(expected) == images.output_hash:
        return ""
    tokens = load(images.artifacts["tokens.safetensors"])["tokens"]
    return PARTED.format(share=float((tokens == expected).double().mean()))


def redrawn(job: Job, reference: FullCacheOutput) -> float:
    """Return the fraction of the full cache's tokens that are drawn again in the decoder's windows.

    The rest is due to the rounding of other kernels, since nothing else differs."""
    def draw_again(part: slice) -> Tensor:
        tokens = reference.tokens[part]
        drawn, key = torch.empty_like(tokens), seeds_tensor(job.subset.seeds[part], tokens.device)[:, None]

        def see(first: int, logits: Tensor) -> None:
            positions = torch.arange(first, first + logits.size(1), device=logits.device)
            drawn[:, positions] = draw(logits, job.sampling, key, positions)

        job.generate(part, forced=tokens, see=see)
        return drawn

    return float((torch.cat([draw_again(part) for part in job.chunks()]) == reference.tokens).double().mean())


def _sprite(above: Tensor, below: Tensor) -> bytes:
    """Return two rows of tiles as a PNG: (n, 3, H, W) in [−1, 1] each."""
    rows = [nearest_bytes(t).permute(2, 0, 3, 1).flatten(1, 2) for t in (above, below)]
    file = io.BytesIO()
    Image.fromarray(torch.cat(rows).cpu().contiguous().numpy()).save(file, "PNG", optimize=True)
    return file.getvalue()
