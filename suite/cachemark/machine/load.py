"""CPU time that other processes use while a case is timed."""

from __future__ import annotations

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
IDLE = (3, 4)  # columns of the first line: idle, and waiting for input and output
GUESTS = (8, 9)  # columns that repeat user and nice time


class OtherLoad:
    """Mean number of processors that other processes keep busy, from the construction on.

    Time that a hypervisor gives to other machines counts as well. The kernel counts in steps of 10 ms.
    """

    def __init__(self) -> None:
        self._busy, self._own, self._began = _busy(), time.process_time(), time.monotonic()

    def processors(self) -> float | None:
        """Return it, or None if the kernel does not show it."""
        busy, own, now = _busy(), time.process_time(), time.monotonic()
        if busy is None or self._busy is None or now <= self._began:
            return None
        return max(0.0, busy - self._busy - (own - self._own)) / (now - self._began)


def _busy() -> float | None:
    """Return the seconds that all processors have worked since the machine started."""
    try:
        _, *columns = STAT.read_text().split("\n", 1)[0].split()
        ticks = [int(column) for column in columns]
        return sum(count for place, count in enumerate(ticks) if place not in (*IDLE, *GUESTS)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None
