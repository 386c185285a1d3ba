"""Chameleon's VQGAN (2024): images to codes of a plain codebook and back.

Names are those of ``vqgan.ckpt``; attention is only in the middle of encoder and decoder.
"""

from __future__ import annotations

from dataclasses import dataclass

from .autoencoder import KLDecoder, KLEncoder
from .vq import AttnBlock, Codebook, CodeTokenizer, Pyramid, conv

UNUSED = ("loss.*",)  # the discriminator of its training, where a file still holds it


@dataclass(frozen=True)
class VQGANConfig(Pyramid):
    """Shape of a tokenizer. ``z``: channels of latents, ``width``: of code vectors."""

    z: int = 256
    codes: int = 8192
    width: int = 256


class VQGAN(CodeTokenizer):
    """A tokenizer: images (B, 3, f·h, f·w) to raster-ordered codes (B, h·w) and back; runs in fp32."""

    def __init__(self, config: VQGANConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or VQGANConfig()
        self.encoder = KLEncoder(c, c.z, AttnBlock, in_levels=False)
        self.decoder = KLDecoder(c, c.z, AttnBlock, in_levels=False)
        self.quantize = Codebook(c.codes, c.width, unit=False)
        self.quant_conv, self.post_quant_conv = conv(c.z, c.width, 1), conv(c.width, c.z, 1)
