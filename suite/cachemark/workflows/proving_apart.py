"""Proofs that are made in a process of their own: what the code under test does ends there, and each check is heard as it is made.

The code could otherwise end the command with its own exit code, hang, or replace what prints the findings.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NoReturn

from ..core import errors, plugin_modules
from ..core.errors import BadPlugin, CachemarkError
from ..kit.findings import Checked, Flaw, KitProof
from ..machine import keeper
from ..plans import attempt
from ..plans.attempt import Attempt
from ..trial import frames

Told = Callable[[str, Checked | None], None]
Message = dict[str, Any] | str | None  # what a process says, why it cannot be understood, or its end
ENDING = 5.0  # seconds for what is left in the pipe
SILENCE = 600.0  # seconds without a check, after which none is expected
ENDS = "every check comes to its end"
ASKS = "No check ends the process that it is made in, or keeps it for good."


def speak(prove: Callable[[Told], None], answer: int) -> NoReturn:
    """Make proofs in this process, tell of each check through the descriptor ``answer``, and end the process. ``prove`` is given what it
    calls with the name of a thing and nothing as its proof begins, and with each check that was made."""
    def tell(message: Mapping[str, Any]) -> None:
        left = memoryview(frames.framed(message))
        while left:
            left = left[os.write(answer, left) :]

    def told(name: str, checked: Checked | None) -> None:
        tell({"begins": name} if checked is None else {"check": asdict(checked)})

    code = 1
    os.environ.update(keeper.COMPILES_ALONE)
    try:
        prove(told)
        tell({"done": True})
        code = 0
    except CachemarkError as error:
        tell(_refusal(error))
    except Exception as error:
        traceback.print_exc()
        if fault := plugin_modules.fault(error):
            tell(_refusal(fault))
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def heard(started: Attempt, kind: str, named: str, on_check: Callable[[Checked], None]) -> list[KitProof]:
    """The proofs of a process in which :func:`speak` makes them; with a finding where it did not come to its end. Raises what it was
    refused with, and BadPlugin where it ends before there is a check."""
    proofs, done, why = list[tuple[str, list[Checked]]](), False, ""
    told: queue.Queue[Message] = queue.Queue()
    listening = threading.Thread(target=_listen, args=(started.answer, told.put), daemon=True)
    listening.start()
    try:
        for message in _messages(told):
            if isinstance(message, str):
                why = message
            elif "refused" in message:
                raise _refused(message)
            elif "begins" in message:
                proofs.append((str(message["begins"]), []))
            elif "check" in message and proofs:
                try:
                    proofs[-1][1].append(made := _checked(message["check"]))
                except (TypeError, KeyError):
                    why = "it told of a check that is none"
                    break
                on_check(made)
            else:
                done = "done" in message
    finally:
        with suppress(ProcessLookupError):
            os.kill(started.pid, signal.SIGTERM)  # its keeper ends it with all that it has started
        code = started.wait()
        listening.join(ENDING)  # a process with threads cannot be copied again
    if not done:
        why = why or f"its process ended {attempt.ended(code)}"
        if not proofs:
            raise BadPlugin(f"Plug-in {named!r} could not be checked: {why}.",
                            remedy=f"Leave that out of the file and of what makes the {kind}.")
        checks = proofs[-1][1]
        expected = f"the end of the check behind {checks[-1].name!r}" if checks else "the end of the first check"
        checks.append(Checked(ENDS, ASKS, (Flaw(expected, why),), examples=1))
        on_check(checks[-1])
    return [KitProof(kind, name, tuple(found)) for name, found in proofs]


def _messages(told: queue.Queue[Message]) -> Iterator[dict[str, Any] | str]:
    """Messages of a process, until it ends; or last why it is not listened to any more."""
    while True:
        try:
            message = told.get(timeout=SILENCE)
        except queue.Empty:
            message = f"nothing within {SILENCE:g} s"
        if message is None:
            return
        yield message
        if isinstance(message, str) or "done" in message:
            return


def _listen(answer: int, put: Callable[[Message], None]) -> None:
    with os.fdopen(answer, "rb") as stream:
        message: Message = {}
        while isinstance(message, dict):
            try:
                message = frames.read(stream)
            except frames.NoMessage as error:
                message = f"it wrote where its answers go ({error})"
            put(message)


def _refusal(error: CachemarkError) -> dict[str, Any]:
    return {"refused": type(error).__name__, "message": error.message, "remedy": error.remedy}


def _refused(message: Mapping[str, Any]) -> CachemarkError:
    """The error that a process was refused with."""
    cls = vars(errors).get(str(message["refused"]))
    known = cls if isinstance(cls, type) and issubclass(cls, CachemarkError) else CachemarkError
    return known(str(message.get("message", "")), remedy=str(message.get("remedy", "")))


def _checked(told: Mapping[str, Any]) -> Checked:
    """A check as a process tells of it."""
    return Checked(**{**told, "findings": tuple(Flaw(**{**flaw, "seeds": tuple(flaw["seeds"])}) for flaw in told["findings"])})
