"""The passes of a case under a decoder: how many there were and what they rejected, and whether its tokens are those that it promises."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from safetensors.torch import load
from torch import Tensor

from ...cache.arena import Memory
from ...cache.layout import Layout, Step, window_step
from ...cache.random_streams import seeds_tensor
from ...core.spec import FULL, TOKENS, Case
from ...models.sampling import draw
from .judge import FullCacheOutput, Job, JudgedImages, hashed, storable

PARTED = "It is not exact here: {share:.4%} of the tokens are those of sequential decoding, and in fp32 all have to be."


class Ran(NamedTuple):
    """One generation: its images, the tokens that each pass drew, and those of them that stayed."""

    images: int
    fed: tuple[int, ...]
    kept: tuple[int, ...]

    def steps(self, layout: Layout) -> list[Step]:
        """Its passes, each with the edges of what stayed of it."""
        behind = [sum(self.kept[:i]) for i in range(1, len(self.kept))]
        ran = zip(behind, self.fed[1:], self.kept[1:], strict=True)
        return [Step(0, layout.visual), *(window_step(layout, accepted - 1, fed, fed - correct) for accepted, fed, correct in ran)]


def noting(job: Job, ran: list[Ran]) -> Job:
    """The job, which writes its generations to ``ran`` from now on; those of forced tokens, which reject nothing, are left out."""
    return replace(job, noted=lambda images, decoder: ran.append(Ran(images, tuple(decoder.fed), tuple(decoder.kept))))


def pass_values(ran: Sequence[Ran]) -> dict[str, list[float]]:
    """Passes and rejected drafts of each image; those of a batch are the same for all of it, since it advances together."""
    each = [batch for batch in ran for _ in range(batch.images)]
    return {"passes": [float(len(batch.kept)) for batch in each], "rejected": [float(sum(batch.fed) - sum(batch.kept)) for batch in each]}


def tokens_per_pass(ran: Sequence[Ran], tokens: int) -> dict[str, float]:
    """Tokens a pass over the generations: the mean, its spread, and the ends."""
    rates = [tokens / len(batch.kept) for batch in ran]
    return {"mean": statistics.fmean(rates), "spread": statistics.pstdev(rates), "least": min(rates), "most": max(rates)}


def in_words(rate: Mapping[str, float]) -> str:
    """The footnote that says what :func:`tokens_per_pass` has found."""
    return f"It draws {rate['mean']:.2f} tokens a pass, {rate['least']:.2f} to {rate['most']:.2f} over the batches that were timed."


def inexact(case: Case, job: Job, reference: FullCacheOutput, images: JudgedImages) -> str:
    """The reason why an exact decoder is not what it promises, or nothing: in fp32 its tokens have to be those of sequential decoding
    under the same method and codec."""
    if job.decoder is None or job.decoder().keeps != TOKENS or case.dtype != "float32":
        return ""
    if (case.method, case.codec) == (FULL, "native"):
        own = reference.tokens
    else:
        alone = replace(job, decoder=None, memory=Memory(job.device, job.memory.codec, job.memory.engine.another()))
        own = torch.cat([alone.generate(part) for part in alone.chunks()])
    expected = storable(job, own)
    if hashed(expected) == images.output_hash:
        return ""
    tokens = load(images.artifacts["tokens.safetensors"])["tokens"]
    return PARTED.format(share=float((tokens == expected).double().mean()))


def redrawn(job: Job, reference: FullCacheOutput) -> float:
    """The share of the full cache's own tokens that are drawn again where they are fed in the windows of the job's decoder: what is
    missing is the rounding of other kernels, since nothing else differs."""
    parts = [_drawn(job, part, reference.tokens[part]) for part in job.chunks()]
    return float((torch.cat(parts) == reference.tokens).double().mean())


def _drawn(job: Job, part: slice, tokens: Tensor) -> Tensor:
    drawn = torch.empty_like(tokens)
    key = seeds_tensor(job.subset.seeds[part], tokens.device)[:, None]

    def see(first: int, logits: Tensor) -> None:
        places = torch.arange(first, first + logits.size(1), device=logits.device)
        drawn[:, places] = draw(logits, job.sampling, key, places)

    job.generate(part, forced=tokens, see=see)
    return drawn
