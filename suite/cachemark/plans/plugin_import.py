"""Import of plug-ins by a command, after everything built in that a plug-in must not replace has been registered."""

from __future__ import annotations

from pathlib import Path

from .. import decoders, methods
from ..core import plugins
from ..metrics import image_metric
from ..models import catalogue

__all__ = ["catalogue", "decoders", "image_metric", "imported", "methods"]  # importing these rooms registers what is built in


def imported(path: str | Path) -> list[str]:
    """Names of the methods of a plug-in, imported into this process if it has not been yet. Raises BadPlugin."""
    return plugins.load(path)
