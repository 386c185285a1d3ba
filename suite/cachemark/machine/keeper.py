"""Ends all descendants of a process together with it, wherever they moved.

A process group does not contain processes that leave it (``setsid``, daemons). On Linux the work therefore runs in a copy of the process
below a subreaper (``PR_SET_CHILD_SUBREAPER``): everything that the copy starts stays its descendant, is found there, and is killed. On
other systems the work runs in the process itself, and processes that leave its group survive.
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
    """Run ``work`` in a copy of this process, then end all its descendants and exit like it.

    Returns in the copy only, after ``work``. SIGTERM ends the copy and all descendants at once."""
    if not KEEPS:
        work()
        return
    _prctl(SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, WAITED)
    copy = os.fork()
    if copy:
        status, terminated = _wait(copy)
        end_family()
        _exit(-signal.SIGTERM if terminated else os.waitstatus_to_exitcode(status))
    _prctl(DEATH_SIGNAL, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WAITED)
    work()


def end_family() -> None:
    """Kill all descendants of this process, as long as any exist and can be killed."""
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
    """Return children and adopted orphans that were not waited for; empty if the system hides them."""
    pids = set[int]()
    for task in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            pids.update(map(int, task.read_text().split()))
    return frozenset(pids)


def _wait(copy: int) -> tuple[int, bool]:
    """Return the exit status of the copy, and whether this process received SIGTERM."""
    terminated = False
    while True:
        if signal.sigwait(WAITED) == signal.SIGTERM:
            terminated = True
            os.kill(copy, signal.SIGKILL)  # it has not been waited for, so the number is its own
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == copy:
                return ended[1], terminated


def _exit(code: int) -> None:
    """Exit with a code, or by a signal if it is negative."""
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(code)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
