"""Import of plug-ins by a run. A file may do anything when it is imported, so it is tried in a process of its own first, which must come to
its end in time; only then is it imported here, and what it changes here is put back.

Where this process cannot be copied, an interpreter is started.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from .. import decoders, methods
from ..core import plugins
from ..core.errors import BadPlugin, CachemarkError
from ..core.secrets import hidden
from ..machine import keeper
from ..machine.shared_state import undisturbed
from ..metrics import image_metric
from ..models import catalogue
from . import attempt
from .attempt import VARIABLE, Attempt

__all__ = ["VARIABLE", "catalogue", "decoders", "image_metric", "imported", "methods"]
# importing the rooms registers what a plug-in must not replace


@hidden()  # from what tries the file too, which may look at its parent
def imported(path: str | Path) -> list[str]:
    """Names of the methods of a plug-in, imported into this process if it has not been yet. BadPlugin where it does not come to its end in
    time, ends the process it is in, leaves processes behind, or is refused by :func:`cachemark.core.plugins.load`."""
    if plugins.loaded(path):
        return plugins.load(path)
    limit = attempt.limit()
    trying = attempt.copied(partial(_import, str(path))) if attempt.possible() else _interpreter(str(path))
    told, code = attempt.heard(trying, limit)
    if "refused" in told:
        raise BadPlugin(str(told["refused"]), remedy=str(told.get("remedy", "")))
    if code is None:
        raise BadPlugin(f"Plug-in {str(path)!r} does not come to its end within {limit:g} s when it is imported.",
                        remedy=f"Compute in its methods; where it only loads much, give {VARIABLE} more seconds.")
    if "methods" not in told:
        raise BadPlugin(f"Plug-in {str(path)!r} ends its process {attempt.ended(code)} when it is imported.",
                        remedy="Leave that out; cachemark imports it as ordinary Python.")
    with undisturbed():
        return plugins.load(path)


def main() -> None:
    """Entry of an interpreter that tries the file named by its first argument after the others, which have been imported where it was
    started, and answers through what was standard output."""
    answer = os.dup(1)
    os.dup2(2, 1)
    for earlier in sys.argv[2:]:
        plugins.load(earlier)
    keeper.keep(lambda: attempt.tell(partial(_import, sys.argv[1]), answer))


def _import(path: str) -> dict[str, Any]:
    """Import a plug-in and say how that went."""
    try:
        told: dict[str, Any] = {"methods": plugins.load(path)}
        if left := keeper.descendants():
            told = {"refused": f"Plug-in {path!r} leaves processes running when it is imported: {len(left)}.",
                    "remedy": "Start them in its method, where they end with the trial."}
    except CachemarkError as error:
        told = {"refused": error.message, "remedy": error.remedy}
    except BaseException as error:  # KeyboardInterrupt too: nobody can press Ctrl-C here
        told = {"refused": f"Plug-in {path!r} raises {type(error).__name__} when it is imported.", "remedy": "Fix the file."}
    return told


def _interpreter(path: str) -> Attempt:
    started = subprocess.Popen([sys.executable, "-P", "-m", "cachemark.plans.plugin_import", path, *plugins.files()],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    assert started.stdout is not None
    return Attempt(started.pid, os.dup(started.stdout.fileno()), started.wait)


if __name__ == "__main__":
    main()
