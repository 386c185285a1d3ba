"""The table of codecs by name. A plug-in adds its own: ``CODECS["mine"] = Codec("mine", …)``."""

from __future__ import annotations

from ..core.errors import unknown
from .codec import E4M3, INT4, INT8, KIVI4, NATIVE, Codec
from .rotated import ROT4, TURBO

CODECS = {codec.name: codec for codec in (NATIVE, INT8, E4M3, INT4, KIVI4, *TURBO, ROT4)}


def codec(name: str) -> Codec:
    """Return the codec of a name; raise UnknownName with the nearest one."""
    if name not in CODECS:
        raise unknown("codec", name, CODECS)
    return CODECS[name]
