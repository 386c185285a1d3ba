"""Registry of decoders. Each file of this folder defines the decoder of its name."""

from __future__ import annotations

from ..contract.decoder import Decoder, Sequential
from ..core.registry import Registry
from ..core.spec import SEQUENTIAL

DECODERS: Registry[type[Decoder]] = Registry("decoder", Decoder, classes=True,
                                             built_in={name: f"{__package__}.{name}" for name in ("jacobi", "scd", "sjd", "zipar")})
decoder = DECODERS.add
"""Decorator that registers a decoder class by name: ``@cm.decoder("mine")``."""
decoder(SEQUENTIAL)(Sequential)
