"""Keeps a process together with all that it starts: when it ends, so does what is left of its family, wherever that has gone.

A process group does not hold what leaves it (``setsid``, a daemon). On Linux the process is therefore run as a copy below one that takes in
orphans (``PR_SET_CHILD_SUBREAPER``): whatever the copy has started stays a descendant of that one, is found there, and is killed. Other
systems have no such thing; there the work is done in the process itself, and what leaves its group survives it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SUBREAPER, DEATH_SIGNAL = 36, 1  # PR_SET_CHILD_SUBREAPER and PR_SET_PDEATHSIG of <linux/prctl.h>
WAITED = {signal.SIGCHLD, signal.SIGTERM}
GRACE = 5.0  # seconds for what is killed to be gone; what a driver holds may never go
COMPILES_ALONE = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # environment in which torch's compiler starts no threads and processes
KEEPS = sys.platform == "linux"  # on this system


def keep(work: Callable[[], None]) -> None:
    """Do ``work`` in a copy of this process and leave as it leaves, once nothing is left of what it has started. Returns in the copy alone,
    when the work is done. SIGTERM ends the copy and all else at once."""
    if not KEEPS:
        work()
        return
    _prctl(SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, WAITED)
    copy = os.fork()
    if copy:
        status, terminated = _waited(copy)
        end_family()
        _leave(-signal.SIGTERM if terminated else os.waitstatus_to_exitcode(status))
    _prctl(DEATH_SIGNAL, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WAITED)
    work()


def end_family() -> None:
    """Kill every descendant of this process, as long as there is any and it can be killed."""
    end = time.monotonic() + GRACE
    while time.monotonic() < end:
        for pid in children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # none is left; their children, whom we have inherited, are among those
            return
        time.sleep(0.002)


def children() -> frozenset[int]:
    """Return the processes that this one has started or inherited and not waited for; empty where the system does not tell."""
    pids = set[int]()
    for task in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            pids.update(map(int, task.read_text().split()))
    return frozenset(pids)


def _waited(copy: int) -> tuple[int, bool]:
    """The status with which the copy has ended, and whether it was we who were asked to end."""
    terminated = False
    while True:
        if signal.sigwait(WAITED) == signal.SIGTERM:
            terminated = True
            os.kill(copy, signal.SIGKILL)  # it has not been waited for, so the number is its own
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == copy:
                return ended[1], terminated


def _leave(code: int) -> None:
    """End this process with an exit code, or by a signal where that is negative."""
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core of this process tells nothing
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(code)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
