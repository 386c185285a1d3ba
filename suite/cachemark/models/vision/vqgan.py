"""Chameleon's VQGAN (2024): images to codes of a plain codebook and back.

Names as in ``vqgan.ckpt``; attention is only in the middle of encoder and decoder.
"""

from __future__ import annotations

from .autoencoder import KLDecoder, KLEncoder
from .vq import AttnBlock, CodeTokenizer, VQConfig

UNUSED = ("loss.*",)  # the discriminator of its training, which some files contain
CHAMELEON = VQConfig(codebook_size=8192, codebook_dim=256, usage_window=0)


class VQGAN(CodeTokenizer):
    """The tokenizer, which runs in fp32."""

    def __init__(self, config: VQConfig = CHAMELEON) -> None:
        encoder, decoder = (kind(config, config.z_channels, AttnBlock, in_levels=False) for kind in (KLEncoder, KLDecoder))
        super().__init__(config, encoder, decoder, unit=False)
