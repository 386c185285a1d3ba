"""The application as a library: each command is a function here, with typed arguments and a typed result.

Names are imported when they are asked for, so that reading and judging work without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .advising import Wishes, advise
    from .bisecting import bisect
    from .calibrating import calibrate
    from .comparing import Terms, compare
    from .converting import convert, verify
    from .deciding_seeds import until_decided
    from .exporting import export
    from .fetching import fetch, weights_list
    from .judging import check
    from .pricing import price_list
    from .proving import newest_device, self_test
    from .reporting import report, site
    from .running import explain, max_batch, run, share
    from .stored_run import open_run

_HOMES = {
    "Terms": "comparing", "Wishes": "advising", "advise": "advising", "bisect": "bisecting", "calibrate": "calibrating",
    "check": "judging", "compare": "comparing", "convert": "converting", "explain": "running", "export": "exporting",
    "fetch": "fetching", "max_batch": "running", "newest_device": "proving", "open_run": "stored_run", "price_list": "pricing",
    "report": "reporting", "run": "running", "self_test": "proving", "share": "running", "site": "reporting",
    "until_decided": "deciding_seeds", "verify": "converting", "weights_list": "fetching",
}
__all__ = [
    "Terms", "Wishes", "advise", "bisect", "calibrate", "check", "compare", "convert", "explain", "export", "fetch", "max_batch",
    "newest_device", "open_run", "price_list", "report", "run", "self_test", "share", "site", "until_decided", "verify", "weights_list",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
