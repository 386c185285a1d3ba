"""Training of the bundled tokenizers of codes: reconstruction with a codebook that follows by moving averages.

The codebook is initialised from the first batch, follows the latents with decay 0.97, and codes that fall below 5 % of the
mean use (of the multi-scale tokenizer 0.2 %) are set to random latents of the batch. The loss is L1 + 2 MSE + 0.25 commitment; there is
no adversary. A second stage of the plain one goes on with the decoder alone, while the codes keep their meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cachemark.models.tiny import tiny_msvq, tiny_vq
from cachemark.models.tiny.stored import BundledWeights

from .loops import TrainingTask
from .scene import scenes, stream

RATE = 2e-3
BATCH = 32
COMMITMENT = 0.25
HELD_OUT = 128
FOLLOW = 0.02  # how fast the statistics of what an encoder makes follow those of a batch


class MovingCodebook(nn.Module):
    """Moving averages of how often each of ``codes`` is used and of the vectors (``width``) that chose it."""

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
        """Before the first step: set ``table`` (codes, width) to random ones of ``vectors`` (n, width)."""
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
        """Give codes that nobody uses a random vector of this batch and the mean count."""
        mean = self.counts.mean()
        gone = (self.counts < self.dead * mean).unsqueeze(1)
        fresh = self._pick(vectors, generator)
        self.sums.copy_(torch.where(gone, fresh * mean, self.sums))
        self.counts.copy_(torch.where(gone[:, 0], mean, self.counts))

    def _pick(self, vectors: Tensor, generator: torch.Generator) -> Tensor:
        return vectors[torch.randint(len(vectors), (len(self.counts),), generator=generator).to(vectors.device)]


class ReconstructionTask(TrainingTask):
    """Trains ``weights`` of a tokenizer to reconstruct fresh scenes. ``scene_stream`` names the random stream that these come from."""

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
        """The scenes of a step, (batch, 3, 64, 64)."""
        return scenes(self.batch, stream(self.seed, self.scene_stream, step), device=self.device).images

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Mean PSNR in dB of held-out scenes (peak 2, images clamped to [-1, 1]), and how many codes they use, where there are codes.

        ``psnr`` is the mean over images, ``psnr_pooled`` that of the mean error.
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
    """Trains all of a bundled network, from random weights; by default of the sizes and with the batches of the packaged ones."""

    size = BATCH

    def __init__(self, seed: int = 0, *, device: str = "cpu", config: Any = None, batch: int | None = None) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream(seed, "initial weights"))
            model = self.stored.model(config).to(device)
        super().__init__(model, (p for p in model.parameters() if p.requires_grad), RATE, seed, device, batch or self.size)

    @torch.no_grad()
    def follow(self, vectors: Tensor, dims: tuple[int, ...]) -> None:
        """Move the model's ``centre`` and ``deviation`` towards those of a batch, taken over ``dims``."""
        self.model.centre.lerp_(vectors.mean(dims), FOLLOW)
        self.model.deviation.lerp_(vectors.std(dims), FOLLOW)


class CodebookTask(WholeTask):
    """A tokenizer whose codebook follows by moving averages, which the loss moves on its way."""

    dead = 0.05

    def __init__(self, seed: int = 0, *, device: str = "cpu", config: Any = None, batch: int | None = None) -> None:
        super().__init__(seed, device=device, config=config, batch=batch)
        c = self.model.config
        self.codebook = MovingCodebook(c.codes, c.channels, dead=self.dead).to(device)
        self.parts["codebook"] = self.codebook


class CodesTask(CodebookTask):
    """First stage of a :class:`~cachemark.models.tiny.tiny_vq.TinyVQ`: all of it is trained. It fixes what the codes mean."""

    name = "tiny-vq-codes"
    steps = 800
    stored = tiny_vq.files

    def loss(self, step: int, generator: torch.Generator) -> Tensor:
        images = self.images(step)
        z = self.model.encoder(images).float()
        vectors = z.detach().movedim(1, -1).flatten(0, -2)
        self.codebook.start(self.model.codebook, vectors, generator)
        codes = self.model.quantise(z.detach())
        # The table moves before it is read, so the decoder sees what the next step will see.
        self.codebook.move(self.model.codebook, vectors, codes.flatten(), generator)
        chosen = F.embedding(codes, self.model.codebook).transpose(1, 2).reshape(z.shape)
        restored = self.model.decoder(z + (chosen - z).detach()).float()
        return difference(restored, images) + COMMITMENT * F.mse_loss(z, chosen)


class ScaleCodesTask(CodebookTask):
    """Trains a :class:`~cachemark.models.tiny.tiny_msvq.TinyMSVQ`, with one codebook for all scales.

    Each scale quantises what the coarser ones have left. The encoder learns straight through; the convolutions φ learn to bring the
    restored map near the encoder's; the codebook follows what all scales ask of it.
    """

    name = tiny_msvq.NAME
    steps = 1000
    stored = tiny_msvq.files
    size = 16
    dead = 0.002  # a code that serves the coarsest scales alone is used by one token in hundreds, and is not dead

    def loss(self, step: int, generator: torch.Generator) -> Tensor:
        images = self.images(step)
        z = self.model.encoder(images).float()
        f_hat = self._restored(z.detach(), generator)
        restored = self.model.decoder(f_hat + z - z.detach()).float()  # the decoder sees f_hat; its gradient reaches both
        return difference(restored, images) + COMMITMENT * F.mse_loss(z, f_hat.detach()) + F.mse_loss(f_hat, z.detach())

    def _restored(self, z: Tensor, generator: torch.Generator) -> Tensor:
        """The restored map of latents (B, channels, P, P), differentiable in φ alone."""
        quantizer, table = self.model.quantizer, self.model.quantizer.embedding.weight
        f_hat, residuals, chosen = quantizer.empty(len(z)), [], []
        for scale in range(len(quantizer.sides)):
            residual = quantizer.shrunk((z - f_hat).detach(), scale)
            self.codebook.start(table, z.movedim(1, -1).flatten(0, -2), generator)
            codes = quantizer.nearest(residual)
            residuals.append(residual.flatten(0, 1))
            chosen.append(codes.flatten())
            f_hat = quantizer.add(f_hat, codes, scale)
        self.codebook.move(table, torch.cat(residuals), torch.cat(chosen), generator)
        return f_hat


class DecoderTask(ReconstructionTask):
    """Second stage: trains the decoder alone, on other scenes than the first stage, for codes that stay as they are.

    It starts from the weights at ``start``, costs half as much a step, and a model of the codes can be trained beside it.
    """

    name = tiny_vq.NAME
    steps = 400
    stored = tiny_vq.files
    scene_stream = "decoder"

    def __init__(self, start: Path, seed: int = 0, *, device: str = "cpu", batch: int = BATCH) -> None:
        model = tiny_vq.load(start, device=device).train()
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
    """L1 + 2 MSE of two batches of images."""
    return F.l1_loss(restored, images) + 2 * F.mse_loss(restored, images)
