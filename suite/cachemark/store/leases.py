"""The end of a device lease that is entered in the store."""

from __future__ import annotations

import os
import time

LAPSE = 150.0
"""Seconds without a sign of life after which a lease no longer holds: five of the holder's beats."""


def lapsed(holder: str, beat: float, us: str) -> bool:
    """Return whether the lease of ``holder`` ("machine … number of the process") has ended without being deleted.

    On the machine of ``us`` the process itself tells. On another one the clocks of both are trusted to a minute or two: a beat from the
    future counts as one equally far in the past.
    """
    theirs, _, number = holder.rpartition(" ")
    if theirs == us.rpartition(" ")[0] and number.isdecimal():
        return not _runs(int(number))
    return abs(time.time() - beat) > LAPSE


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is another user's
        pass
    return True
