"""A process by a name that no other one ever has, so that leases can tell one that has ended from one that runs elsewhere."""

from __future__ import annotations

import os
import platform
from pathlib import Path

BEAT = 30.0  # seconds between two signs of life of whoever holds a lease
LAPSE = 5 * BEAT  # without one, after which a lease on another machine no longer holds
UNTOLD = "0"
BOOT = Path("/proc/sys/kernel/random/boot_id")


def holder() -> str:
    """This process, as leases name it: machine, its boot and its namespace of process numbers, the number, and when it began.

    Numbers are used again and machines are cloned with their names: only boot and beginning make it the name of one process.
    """
    return f"{_place()} {os.getpid()} {_began(os.getpid())}"


def ended(theirs: str) -> bool | None:
    """Return whether the process of that name has ended; None where it cannot be known here, because it ran on another machine, in another
    container, before this machine was started, or because the system hides it."""
    place, *process = theirs.rsplit(" ", 2)
    if place != _place() or len(process) != 2 or not process[0].isdecimal():
        return None
    number = int(process[0])
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # it runs as another user's, or never could
        pass
    found = _began(number)
    return None if found == UNTOLD else found != process[1]


def _place() -> str:
    """The machine since it was started, and the namespace in which a process has its number."""
    try:
        boot = BOOT.read_text()[:8]
        space = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return platform.node()
    return f"{platform.node()} {boot}/{space}"


def _began(number: int) -> str:
    """Ticks after the machine's start at which a process began, :data:`UNTOLD` where the system does not tell; nothing of one that has
    ended and only waits to be collected."""
    try:
        state, *rest = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return UNTOLD
    return "" if state in "ZX" else rest[18]
