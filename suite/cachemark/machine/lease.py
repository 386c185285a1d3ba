"""Leases: exclusive use of a device among all processes of a machine."""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


def folder() -> Path:
    """Return the folder of lock files, shared by all users of a machine, or CACHEMARK_LEASES."""
    configured = os.environ.get("CACHEMARK_LEASES")
    path = Path(configured or "/tmp/cachemark-leases")  # not TMPDIR, which differs between the jobs of a machine
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):
            path.chmod(0o1777)
    return path


def lock(name: str) -> IO[str] | None:
    """Lock a name until the file is closed or the process ends; None if another process has it."""
    path = folder() / f"{name}.lock"
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o644))
    try:
        file = path.open("r+")
    except PermissionError:  # the file of another user, which can be locked but not written
        file = path.open()
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    if file.writable():
        file.truncate(0)
        file.write(f"process {os.getpid()} of {platform.node()}\n")
        file.flush()
    return file


@contextmanager
def lease(device: str) -> Iterator[str]:
    """Lock a device. Yields the other owner of the lock, or an empty text if it is ours."""
    file = lock(device)
    if file is None:
        taken_by = ""
        with suppress(OSError):
            taken_by = (folder() / f"{device}.lock").read_text().strip()
        yield taken_by or "somebody"
        return
    with file:
        yield ""
