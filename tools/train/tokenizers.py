"""Training of the bundled tokenizers of codes, with a codebook by moving averages.

The codebook is initialized from the first batch, follows the latents with decay 0.97, and codes below 5 % of the mean use (multi-scale:
0.2 %) are reset to random latents. The loss is L1 + 2 MSE + 0.25 commitment, without an adversary. A second stage trains only the plain
tokenizer's decoder.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cachemark.models.tiny.stored import BundledWeights
from cachemark.models.tiny.tokenizers import MSVQ_WEIGHTS, VQ_WEIGHTS

from .loops import TrainingTask
from .scene import scenes, stream

RATE = 2e-3
BATCH = 32
COMMITMENT = 0.25
HELD_OUT = 128
FOLLOW = 0.02  # how fast the statistics of what an encoder makes follow those of a batch


class MovingCodebook(nn.Module):
    """Moving averages of the use of each of ``codes``, and of the vectors (``width``) that chose it."""

    counts: Tensor
    sums: Tensor
    ready: Tensor

    def __init__(self, codes: int, width: int, *, decay: float = 0.97, dead: float = 0.05) -> None:
        super().__init__()
        self.decay, self.dead = decay, dead
        self.register_buffer("counts", torch.zeros(codes))
        self.register_buffer("sums", torch.zeros(codes, width))
        self.register_buffer("ready", torch.tensor(False))

    @torch.no_grad()
    def start(self, table: Tensor, vectors: Tensor, generator: torch.Generator) -> None:
        """Initialize ``table`` (codes, width) with random ones of ``vectors`` (n, width)."""
        if self.ready:
            return
        table.copy_(self._pick(vectors, generator))
        self.sums.copy_(table)
        self.counts.fill_(1.0)
        self.ready.fill_(True)

    @torch.no_grad()
    def move(self, table: Tensor, vectors: Tensor, codes: Tensor, generator: torch.Generator) -> None:
        """Move ``table`` towards the ``vectors`` (n, width) that chose its ``codes`` (n,)."""
        used = torch.bincount(codes, minlength=len(table)).float()
        self.counts.lerp_(used, 1 - self.decay)
        self.sums.lerp_(torch.zeros_like(self.sums).index_add_(0, codes, vectors), 1 - self.decay)
        self._revive(vectors, generator)
        table.copy_(self.sums / self.counts.unsqueeze(1))

    def _revive(self, vectors: Tensor, generator: torch.Generator) -> None:
        """Reset unused codes to random vectors of this batch and the mean count."""
        mean = self.counts.mean()
        gone = (self.counts < self.dead * mean).unsqueeze(1)
        fresh = self._pick(vectors, generator)
        self.sums.copy_(torch.where(gone, fresh * mean, self.sums))
        self.counts.copy_(torch.where(gone[:, 0], mean, self.counts))

    def _pick(self, vectors: Tensor, generator: torch.Generator) -> Tensor:
        return vectors[torch.randint(len(vectors), (len(self.counts),), generator=generator).to(vectors.device)]


class ReconstructionTask(TrainingTask):
    """Training of ``weights`` of a tokenizer to reconstruct scenes of the stream ``scene_stream``."""

    stored: ClassVar[BundledWeights[Any]]
    warmup = 20
    scene_stream = "tokenizer"

    def __init__(self, model: nn.Module, weights: Iterable[nn.Parameter], rate: float, seed: int, device: str, batch: int) -> None:
        self.seed, self.device, self.batch = seed, device, batch
        self.model = model
        self.optimiser = torch.optim.AdamW([{"params": list(weights), "peak": rate}], lr=rate, betas=(0.9, 0.99), weight_decay=0.0)
        self.parts = {"model": model, "optimiser": self.optimiser}

    def metadata(self) -> dict[str, str]:
        return self.stored.metadata(self.model.config)

    def images(self, step: int) -> Tensor:
        """Return the scenes of a step, (batch, 3, 64, 64)."""
        return scenes(self.batch, stream(self.seed, self.scene_stream, step), device=self.device).images

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Return PSNR in dB of held-out scenes (peak 2, images clamped), and the number of used codes.

        ``psnr`` is the mean over images, ``psnr_pooled`` the PSNR of the mean error.
        """
        images = scenes(HELD_OUT, stream(self.seed, "held out"), device=self.device).images
        tokens = self.model.encode(images)
        error = (self.model.decode(tokens).clamp(-1, 1) - images).square().mean((1, 2, 3))
        values = {
            "psnr": round(float((10 * torch.log10(4 / error)).mean()), 3),
            "psnr_pooled": round(float(10 * torch.log10(4 / error.mean())), 3),
        }
        return values if tokens.is_floating_point() else {**values, "codes_used": float(tokens.unique().numel())}


class WholeTask(ReconstructionTask):
    """Training of a whole bundled network from random weights."""

    size = BATCH

    def __init__(self, seed: int = 0, *, device: str = "cpu", config: Any = None, batch: int | None = None) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream(seed, "initial weights"))
            model = self.stored.model(config).to(device)
        super().__init__(model, (p for p in model.parameters() if p.requires_grad), RATE, seed, device, batch or self.size)

    @torch.no_grad()
    def follow(self, vectors: Tensor, dims: tuple[int, ...]) -> None:
        """Move the model's ``centre`` and ``deviation`` towards the batch's, taken over ``dims``."""
        self.model.centre.lerp_(vectors.mean(dims), FOLLOW)
        self.model.deviation.lerp_(vectors.std(dims), FOLLOW)


class CodebookTask(WholeTask):
    """A tokenizer whose loss also updates its codebook by moving averages."""

    dead = 0.05

    def __init__(self, seed: int = 0, *, device: str = "cpu", config: Any = None, batch: int | None = None) -> None:
        super().__init__(seed, device=device, config=config, batch=batch)
        c = self.model.config
        self.codebook = MovingCodebook(c.codes, c.channels, dead=self.dead).to(device)
        self.parts["codebook"] = self.codebook


class CodesTask(CodebookTask):
    """First stage of a :class:`~cachemark.models.tiny.tokenizers.TinyVQ`, which fixes the codes' meaning."""

    name = "tiny-vq-codes"
    steps = 800
    stored = VQ_WEIGHTS

    def loss(self, step: int, generator: torch.Generator) -> Tensor:
        images = self.images(step)
        z = self.model.encoder(images).float()
        vectors = z.detach().movedim(1, -1).flatten(0, -2)
        self.codebook.start(self.model.codebook, vectors, generator)
        codes = self.model.quantise(z.detach())
        # The table moves before it is read, so the decoder sees the codes of the next step.
        self.codebook.move(self.model.codebook, vectors, codes.flatten(), generator)
        chosen = F.embedding(codes, self.model.codebook).transpose(1, 2).reshape(z.shape)
        restored = self.model.decoder(z + (chosen - z).detach()).float()
        return difference(restored, images) + COMMITMENT * F.mse_loss(z, chosen)


class ScaleCodesTask(CodebookTask):
    """A :class:`~cachemark.models.tiny.tokenizers.TinyMSVQ` with one codebook for all scales.

    Each scale quantizes the residual of the coarser ones. The encoder learns straight through; the convolutions φ learn to match the
    encoder's map.
    """

    name = MSVQ_WEIGHTS.name
    steps = 1000
    stored = MSVQ_WEIGHTS
    size = 16
    dead = 0.002  # a code that serves the coarsest scales alone is used by one token in hundreds, and is not dead

    def loss(self, step: int, generator: torch.Generator) -> Tensor:
        images = self.images(step)
        z = self.model.encoder(images).float()
        f_hat = self._restored(z.detach(), generator)
        restored = self.model.decoder(f_hat + z - z.detach()).float()  # the decoder sees f_hat; its gradient reaches both
        return difference(restored, images) + COMMITMENT * F.mse_loss(z, f_hat.detach()) + F.mse_loss(f_hat, z.detach())

    def _restored(self, z: Tensor, generator: torch.Generator) -> Tensor:
        """Return the restored map of latents (B, channels, P, P), differentiable only in φ."""
        quantizer, table = self.model.quantizer, self.model.quantizer.embedding.weight
        f_hat, residuals, chosen = quantizer.empty(len(z)), [], []
        for scale in range(len(quantizer.sides)):
            residual = quantizer.next_map((z - f_hat).detach(), scale)
            self.codebook.start(table, z.movedim(1, -1).flatten(0, -2), generator)
            codes = quantizer.nearest(residual)
            residuals.append(residual.flatten(0, 1))
            chosen.append(codes.flatten())
            f_hat = quantizer.add(f_hat, codes, scale)
        self.codebook.move(table, torch.cat(residuals), torch.cat(chosen), generator)
        return f_hat


class DecoderTask(ReconstructionTask):
    """Second stage: trains only the decoder, on other scenes, for fixed codes.

    It starts from the weights at ``start`` and costs half as much per step.
    """

    name = VQ_WEIGHTS.name
    steps = 400
    stored = VQ_WEIGHTS
    scene_stream = "decoder"

    def __init__(self, start: Path, seed: int = 0, *, device: str = "cpu", batch: int = BATCH) -> None:
        model = VQ_WEIGHTS.load(start, device=device).train()
        model.decoder.requires_grad_(True)
        super().__init__(model, model.decoder.parameters(), RATE / 2, seed, device, batch)

    def metadata(self) -> dict[str, str]:
        return {**super().metadata(), "language": self.model.language}

    def loss(self, step: int, generator: torch.Generator) -> Tensor:
        images = self.images(step)
        with torch.no_grad():
            codes = self.model.encode(images)
        return difference(self.model.decode(codes).float(), images)


def difference(restored: Tensor, images: Tensor) -> Tensor:
    """Return L1 + 2 MSE of two batches of images."""
    return F.l1_loss(restored, images) + 2 * F.mse_loss(restored, images)
