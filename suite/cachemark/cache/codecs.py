"""The table of codecs by name. A plug-in adds its own: ``CODECS["mine"] = Codec("mine", …)``."""

from __future__ import annotations

from ..core.errors import unknown
from .codec import CODECS, NATIVE, Codec
from .rotated import ROT4, TURBO

__all__ = ["CODECS", "NATIVE", "Codec", "codec"]

CODECS.update((codec.name, codec) for codec in (*TURBO, ROT4))


def codec(name: str) -> Codec:
    """Return the codec of a name; raise UnknownName with the nearest one."""
    if name not in CODECS:
        raise unknown("codec", name, CODECS)
    return CODECS[name]
