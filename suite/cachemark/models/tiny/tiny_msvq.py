"""The multi-scale counterpart of tiny-vq: 64×64 images to token maps of 1×1 … 16×16 and back."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..vision.msvq import MultiScaleQuantizer
from . import tiny_vq as vq
from .stored import BundledWeights, Tokenizer

NAME = "tiny-msvq"


@dataclass(frozen=True)
class TinyMSVQConfig(vq.TinyVQConfig):
    """Sizes of a :class:`TinyMSVQ`. ``sides``: of the maps; the last is the encoder's grid."""

    channels: int = 16
    sides: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16)


class TinyMSVQ(Tokenizer):
    """Encoder, multi-scale quantizer and decoder. Images are RGB in [−1, 1]."""

    def __init__(self, config: TinyMSVQConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or TinyMSVQConfig()
        self.encoder, self.decoder = vq.encoder(c), vq.decoder(c)
        self.quantizer = MultiScaleQuantizer(c.sides, c.codes, c.channels)
        self.quantizer.embedding.weight.requires_grad_(False)

    def encode(self, images: Tensor) -> Tensor:
        """Encode images (B, 3, H, W) of side ``patch`` times the last side to tokens (B, N) int64."""
        return self.quantizer.quantise(self.encoder(images))

    def decode(self, tokens: Tensor) -> Tensor:
        """Decode tokens (B, N) to images (B, 3, H, W), not clamped."""
        return self.decoder(self.quantizer.restore(tokens))


files = BundledWeights(NAME, TinyMSVQ, lambda sides, **sizes: TinyMSVQConfig(sides=tuple(sides), **sizes))
load, metadata = files.load, files.metadata
