"""Import of plug-ins by a run. A file may do anything when it is imported, so it is tried in a process of its own first, which must come to
its end in time; only then is it imported here, and what it changes here is put back.

The process is a copy of this one, which costs next to nothing. Where this one has threads or holds a CUDA device a copy is not the same,
and the system may not copy at all: there an interpreter is started.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch

from .. import methods
from ..core import plugins
from ..core.errors import BadPlugin, CachemarkError
from ..core.secrets import hidden
from ..machine import keeper
from ..machine.shared_state import undisturbed
from ..models import catalogue

__all__ = ["catalogue", "imported", "methods"]  # importing the two rooms registers what a plug-in must not replace

LIMIT, VARIABLE = 60.0, "CACHEMARK_IMPORT_LIMIT"  # seconds, and the environment variable that sets others
ANSWER = 1 << 16  # bytes


@hidden()  # from what tries the file too, which may look at its parent
def imported(path: str | Path) -> list[str]:
    """Names of the methods of a plug-in, imported into this process if it has not been yet. BadPlugin where it does not come to its end in
    time, ends the process it is in, leaves processes behind, or is refused by :func:`cachemark.core.plugins.load`."""
    if plugins.loaded(path):
        return plugins.load(path)
    limit = _limit()
    told, code = _heard(_copy(str(path)) if _alone() else _interpreter(str(path)), limit)
    if "refused" in told:
        raise BadPlugin(str(told["refused"]), remedy=str(told.get("remedy", "")))
    if code is None:
        raise BadPlugin(f"Plug-in {str(path)!r} does not come to its end within {limit:g} s when it is imported.",
                        remedy=f"Compute in its methods; where it only loads much, give {VARIABLE} more seconds.")
    if "methods" not in told:
        how = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
        raise BadPlugin(f"Plug-in {str(path)!r} ends its process {how} when it is imported.",
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
    keeper.keep(lambda: _try(sys.argv[1], answer))


def _try(path: str, answer: int) -> NoReturn:
    """Import a plug-in, say how that went, and end this process."""
    try:
        told: dict[str, Any] = {"methods": plugins.load(path)}
        if left := keeper.descendants():
            told = {"refused": f"Plug-in {path!r} leaves processes running when it is imported: {len(left)}.",
                    "remedy": "Start them in its method, where they end with the trial."}
    except CachemarkError as error:
        told = {"refused": error.message, "remedy": error.remedy}
    except BaseException as error:  # KeyboardInterrupt too: nobody can press Ctrl-C here
        told = {"refused": f"Plug-in {path!r} raises {type(error).__name__} when it is imported.", "remedy": "Fix the file."}
    os.write(answer, json.dumps(told).encode()[:ANSWER])
    os._exit(0)


class _Attempt(NamedTuple):
    """A process that tries a plug-in: its number, where it answers, and how its exit code is had."""

    pid: int
    answer: int
    wait: Callable[[], int]


def _alone() -> bool:
    """True where a copy of this process is as good as a new one: it has no other threads of Python, and no device."""
    return keeper.KEEPS and threading.active_count() == 1 and not torch.cuda.is_initialized()


def _copy(path: str) -> _Attempt:
    there, here = os.pipe()
    if pid := os.fork():
        os.close(here)
        return _Attempt(pid, there, lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    try:
        os.setsid()  # Ctrl-C is for our parent alone
        os.close(there)
        nothing = os.open(os.devnull, os.O_RDWR)
        for own in range(3):
            os.dup2(nothing, own)
        torch.set_num_threads(1)  # those that our parent may have started are not in its copy
        keeper.keep(lambda: _try(path, here))
    finally:
        os._exit(1)


def _interpreter(path: str) -> _Attempt:
    started = subprocess.Popen([sys.executable, "-P", "-m", "cachemark.plans.plugin_import", path, *plugins.files()],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    assert started.stdout is not None
    return _Attempt(started.pid, os.dup(started.stdout.fileno()), started.wait)


def _heard(attempt: _Attempt, limit: float) -> tuple[dict[str, Any], int | None]:
    """The answer of a process, and its exit code, or None where its time was up. Its keeper ends it with all that it has started."""
    end, text, late = time.monotonic() + limit, b"", False
    try:
        while len(text) < ANSWER and not late:
            late = not select.select([attempt.answer], [], [], max(0.0, end - time.monotonic()))[0]
            if not late:
                if not (part := os.read(attempt.answer, ANSWER)):
                    break
                text += part
    finally:
        with suppress(ProcessLookupError):
            os.kill(attempt.pid, signal.SIGTERM)
        code = attempt.wait()
        os.close(attempt.answer)
    with suppress(ValueError):
        told = json.loads(text)
        if isinstance(told, dict):
            return told, code
    return {}, None if late else code


def _limit() -> float:
    """Seconds that an import may take."""
    given = os.environ.get(VARIABLE, "")
    try:
        seconds = float(given or LIMIT)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 86400:
        raise CachemarkError(f"{VARIABLE} is {given[:40]!r}, not a number of seconds.", remedy="Give more than 0 and at most 86400.")
    return seconds


if __name__ == "__main__":
    main()
