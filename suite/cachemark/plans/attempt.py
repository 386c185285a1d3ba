"""Attempts at what a plug-in may spoil, in a copy of this process: it must come to its end in time, whatever the plug-in does.

The copy costs next to nothing. Where this process has threads or holds a CUDA device a copy is not the same, and a system may not copy at
all: see :func:`possible`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

import torch

from ..core.errors import CachemarkError
from ..machine import keeper

LIMIT, VARIABLE = 60.0, "CACHEMARK_IMPORT_LIMIT"  # seconds, and the environment variable that sets others
ANSWER = 1 << 16  # bytes


class Attempt(NamedTuple):
    """A process that tries something: its number, where it answers, and how its exit code is had."""

    pid: int
    answer: int
    wait: Callable[[], int]


def possible() -> bool:
    """True where a copy of this process is as good as a new one: it has no other threads of Python, and no device."""
    return keeper.KEEPS and threading.active_count() == 1 and not torch.cuda.is_initialized()


def copied(work: Callable[[], dict[str, Any]]) -> Attempt:
    """A copy of this process that does the work and answers with what it returns."""
    return speaking(lambda answer: tell(work, answer))


def speaking(speak: Callable[[int], NoReturn], *, aloud: bool = False) -> Attempt:
    """A copy of this process that answers through the descriptor which it is given. Where it works ``aloud`` what it prints goes where our
    errors go, else nowhere."""
    there, here = os.pipe()
    if pid := os.fork():
        os.close(here)
        return Attempt(pid, there, lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    try:
        os.setsid()  # Ctrl-C is for our parent alone
        os.close(there)
        nothing = os.open(os.devnull, os.O_RDWR)
        for own in range(3):
            os.dup2(2 if aloud and own else nothing, own)
        torch.set_num_threads(1)  # those that our parent may have started are not in its copy
        keeper.keep(lambda: speak(here))
    finally:
        os._exit(1)


def tell(work: Callable[[], dict[str, Any]], answer: int) -> NoReturn:
    """Do the work, write what it returns to the descriptor ``answer``, and end this process."""
    os.write(answer, json.dumps(work()).encode()[:ANSWER])
    os._exit(0)


def heard(attempt: Attempt, limit: float) -> tuple[dict[str, Any], int | None]:
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


def limit() -> float:
    """Seconds that an attempt may take."""
    given = os.environ.get(VARIABLE, "")
    try:
        seconds = float(given or LIMIT)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 86400:
        raise CachemarkError(f"{VARIABLE} is {given[:40]!r}, not a number of seconds.", remedy="Give more than 0 and at most 86400.")
    return seconds


def ended(code: int) -> str:
    """The end of a process with that exit code, in words."""
    return f"with exit code {code}" if code >= 0 else f"by signal {-code}"
