"""Training of the embedded multi-scale tokenizer: as :mod:`~cachemark.tools.train.tokenizers`, with one codebook for all scales.

Each scale quantises what the coarser ones have left. The encoder learns straight through; the convolutions φ learn to bring the
restored map near the encoder's; the codebook follows what all scales ask of it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...models.tiny import tiny_msvq
from .tokenizers import COMMITMENT, CodebookTask, difference

BATCH = 16
DEAD = 0.002  # share of the mean use: a code that serves the coarsest scales alone is used by one token in hundreds, and is not dead


class ScaleCodesTask(CodebookTask):
    """Trains a :class:`~cachemark.models.tiny.tiny_msvq.TinyMSVQ`."""

    name = tiny_msvq.NAME
    steps = 1000
    stored = tiny_msvq.files
    size, dead = BATCH, DEAD

    def loss(self, step: int, generator: torch.Generator) -> Tensor:
        """Loss of one batch of fresh scenes; moves the codebook on the way."""
        images = self.images(step)
        z = self.model.encoder(images).float()
        f_hat = self._restored(z.detach(), generator)
        shown = self.model.decoder(f_hat + z - z.detach()).float()  # the decoder sees f_hat; its gradient reaches both
        return difference(shown, images) + COMMITMENT * F.mse_loss(z, f_hat.detach()) + F.mse_loss(f_hat, z.detach())

    def _restored(self, z: Tensor, generator: torch.Generator) -> Tensor:
        """The restored map of latents (B, channels, P, P), differentiable in φ alone."""
        quantizer, table = self.model.quantizer, self.model.quantizer.embedding.weight
        f_hat, asked, chosen = quantizer.empty(len(z)), [], []
        for scale in range(len(quantizer.sides)):
            rest = quantizer.shrunk((z - f_hat).detach(), scale)
            self.codebook.start(table, z.movedim(1, -1).flatten(0, -2), generator)
            codes = quantizer.nearest(rest)
            asked.append(rest.flatten(0, 1))
            chosen.append(codes.flatten())
            f_hat = quantizer.add(f_hat, codes, scale)
        self.codebook.move(table, torch.cat(asked), torch.cat(chosen), generator)
        return f_hat
