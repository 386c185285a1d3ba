"""The decoder of Chameleon's VQGAN (2024): codes of a plain codebook to images.

Names as in ``vqgan.ckpt``; attention is only in the middle.
"""

from __future__ import annotations

from .autoencoder import KLDecoder
from .vq import ENCODER, AttnBlock, CodeDecoder, VQConfig

UNUSED = (*ENCODER, "loss.*")  # the latter: the discriminator of its training, which some files contain
CHAMELEON = VQConfig(codebook_size=8192, codebook_dim=256)


class VQGAN(CodeDecoder):
    """The tokenizer, which runs in fp32."""

    def __init__(self, config: VQConfig = CHAMELEON) -> None:
        super().__init__(config, KLDecoder(config, config.z_channels, AttnBlock, in_levels=False), unit=False)
