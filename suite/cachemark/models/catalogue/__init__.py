"""The models that can be named in a plan. Importing this package registers them."""

from ..weights import packaged
from . import bitwise_models, captioned, captioned_llamagen, lumina_models, masked_models, next_scale, next_token, text_to_image

__all__ = [
    "bitwise_models", "captioned", "captioned_llamagen", "lumina_models", "masked_models", "next_scale", "next_token", "packaged",
    "text_to_image",
]
