"""cachemark: honest speed-ups for cache methods in autoregressive image generation."""

__version__ = "0.1.0"
