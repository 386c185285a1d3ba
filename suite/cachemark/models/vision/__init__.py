"""Image tokenizers: codes to pixels and back."""

from .vq import VQ, VQ8, VQ16, VQConfig, resize, to_uint8

__all__ = ["VQ", "VQ8", "VQ16", "VQConfig", "resize", "to_uint8"]
