"""cachemark: honest speed-ups for cache methods in autoregressive image generation."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .export.frames import frame, samples_frame

__version__ = "0.1.0"
__all__ = ["__version__", "frame", "samples_frame"]


def __getattr__(name: str) -> object:
    """``frame`` and ``samples_frame``, with pandas behind them, are imported when they are asked for."""
    if name in ("frame", "samples_frame"):
        from .export import frames

        return getattr(frames, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
