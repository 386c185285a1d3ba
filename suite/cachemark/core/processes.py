"""Unique process names, with which a lease detects that its process ended."""

from __future__ import annotations

import os
import platform
from pathlib import Path

BEAT = 30.0  # seconds between two signs of life of whoever holds a lease
LAPSE = 5 * BEAT  # without one, after which a lease on another machine no longer holds
BOOT = Path("/proc/sys/kernel/random/boot_id")
HIDDEN = "0"  # start time of a process that the system does not show


def holder() -> str:
    """Return the unique name of this process for leases: machine, boot, namespace, number and start time."""
    return f"{_place()} {os.getpid()} {_began(os.getpid())}"


def ended(theirs: str) -> bool | None:
    """Return whether the process of that name has ended, or None if unknown.

    It is unknown for processes on other machines, in other containers or hidden ones, and before the last boot."""
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
    start = _began(number)
    return None if start == HIDDEN else start != process[1]


def _place() -> str:
    """Return the machine with its boot id, and the process namespace."""
    try:
        boot = BOOT.read_text()[:8]
        space = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return platform.node()
    return f"{platform.node()} {boot}/{space}"


def _began(number: int) -> str:
    """Return the start time of a process in ticks since boot; empty for a zombie."""
    try:
        state, *fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return HIDDEN
    return "" if state in "ZX" else fields[18]
