"""The decoders, one per file: importing the room registers them all."""

from . import jacobi, scd, sjd

__all__ = ["jacobi", "scd", "sjd"]
