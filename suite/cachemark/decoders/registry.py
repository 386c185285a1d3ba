"""Decoders by name. A file of this folder holds the decoder that is called as the file is; it is imported when it is looked up."""

from __future__ import annotations

from ..contract.decoder import Decoder, Sequential
from ..core.registry import Registry
from ..core.spec import SEQUENTIAL

DECODERS: Registry[type[Decoder]] = Registry("decoder", Decoder, classes=True,
                                             built_in={name: f"{__package__}.{name}" for name in ("jacobi", "scd", "sjd")})
decoder = DECODERS.add
"""Decorator that gives the class of a decoder its name: ``@cm.decoder("mine")``."""
decoder(SEQUENTIAL)(Sequential)
