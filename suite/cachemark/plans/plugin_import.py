"""Import of plug-ins by a command, after everything built in that a plug-in must not replace has been registered."""

from __future__ import annotations

from pathlib import Path

from ..plugins import loading as plugins


def imported(path: str | Path) -> list[str]:
    """Names of the methods of a plug-in, imported into this process if it has not been yet. Raises BadPlugin."""
    return plugins.load(path)
