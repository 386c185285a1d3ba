"""The application as a library: each command is a function here, with typed arguments and a typed result.

Names are imported when they are asked for, so that reading and judging work without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .exporting import export
    from .pricing import price_list
    from .reporting import report, site
    from .running import explain, max_batch, run, share
    from .stored_run import open_run

_HOMES = {
    "explain": "running", "export": "exporting", "max_batch": "running", "open_run": "stored_run", "price_list": "pricing",
    "report": "reporting", "run": "running", "share": "running", "site": "reporting",
}
__all__ = ["explain", "export", "max_batch", "open_run", "price_list", "report", "run", "share", "site"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
