"""The embedded next-scale model: a VAR of 2 M parameters on the tokens of :mod:`~cachemark.models.tiny.tiny_msvq`."""

from __future__ import annotations

from ..var import VARConfig
from .tiny_msvq import TinyMSVQConfig

NAME = "tiny-var"
_MAPS = TinyMSVQConfig()
TINY_VAR = VARConfig(depth=6, heads=4, dim=128, sides=_MAPS.sides, vocab=_MAPS.codes, classes=10, width=_MAPS.channels)
