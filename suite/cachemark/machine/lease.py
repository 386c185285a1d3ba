"""Leases: exclusive use of a device among all processes of a machine."""

from __future__ import annotations

import fcntl
import os
import platform
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ..core.errors import Infrastructure

LONGEST = 200  # characters of a lock file to show


def folder() -> Path:
    """Return the folder of lock files, shared by all users of a machine, or CACHEMARK_LEASES."""
    configured = os.environ.get("CACHEMARK_LEASES")
    path = Path(configured or "/tmp/cachemark-leases")  # not TMPDIR, which differs between the jobs of a machine
    if not configured and path.is_symlink():
        raise _unusable(path, "it is a link")
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):
            path.chmod(0o1777)
    return path


def lock(name: str) -> IO[str] | None:
    """Lock a name until the file is closed or the process ends; None if another process has it."""
    file = _opened(folder() / f"{name}.lock")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    if file.writable() and os.fstat(file.fileno()).st_uid == os.geteuid():
        file.truncate(0)
        file.write(f"process {os.getpid()} of {platform.node()}\n")
        file.flush()
    return file


def _opened(path: Path) -> IO[str]:
    """Open a lock file, for writing if it is ours. Raises Infrastructure for anything else of that name.

    Everybody may put a link or a pipe into the folder, so links are not followed and only ordinary files of one name are used."""
    careful = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        try:
            handle, access = os.open(path, os.O_RDWR | os.O_CREAT | careful, 0o644), "r+"
        except PermissionError:  # the file of another user, which can be locked but not written
            handle, access = os.open(path, os.O_RDONLY | careful), "r"
    except OSError as error:
        raise _unusable(path, error.strerror or "it cannot be opened") from error
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(handle)
        raise _unusable(path, "it is a link, a pipe or a device")
    return open(handle, access, encoding="utf-8")  # the caller closes it


def _unusable(path: Path, reason: str) -> Infrastructure:
    return Infrastructure(f"{path} cannot be used to lock a device: {reason}.",
                          remedy="Delete it, or set CACHEMARK_LEASES to a folder that all users of this machine share.")


@contextmanager
def lease(device: str) -> Iterator[str]:
    """Lock a device. Yields the other owner of the lock, or an empty text if it is ours."""
    file = lock(device)
    if file is None:
        taken_by = ""
        with suppress(OSError, Infrastructure), _opened(folder() / f"{device}.lock") as other:
            taken_by = other.read(LONGEST).strip()
        yield taken_by or "somebody"
        return
    with file:
        yield ""
