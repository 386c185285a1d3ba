"""Leases: exclusive use of a device among all processes and machines that see it."""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Protocol

from ..core.processes import BEAT, holder


class Register(Protocol):
    """A record of leases that other machines see, such as the store."""

    def take_device(self, device: str, holder: str) -> str:
        """Write ``holder`` for the device, or refresh it. Return the actual holder."""

    def give_device(self, device: str, holder: str) -> None:
        """Remove the holder."""


def folder() -> Path:
    """Return the folder of lock files, shared by all users of a machine, or CACHEMARK_LEASES."""
    configured = os.environ.get("CACHEMARK_LEASES")
    path = Path(configured) if configured else Path(tempfile.gettempdir()) / "cachemark-leases"
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):
            path.chmod(0o1777)
    return path


def lock(name: str) -> IO[str] | None:
    """Lock a name until the file is closed or the process ends; None if another process has it."""
    path = folder() / f"{name}.lock"
    try:  # without O_CREAT first: in a shared folder a system may refuse to create another user's file
        file = os.fdopen(os.open(path, os.O_RDWR), "r+")
    except FileNotFoundError:
        number = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        with suppress(OSError):
            os.fchmod(number, 0o666)
        file = os.fdopen(number, "r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    file.truncate(0)
    file.write(holder() + "\n")
    file.flush()
    return file


@contextmanager
def lease(device: str, register: Register | None = None, beat: float = BEAT) -> Iterator[str]:
    """Hold a device. Yields another holder, or an empty text if the device is ours."""
    file = lock(device)
    if file is None:
        taken_by = ""
        with suppress(OSError):
            taken_by = (folder() / f"{device}.lock").read_text().strip()
        yield taken_by or "somebody"
        return
    with file:
        if register is None:
            yield ""
            return
        us = holder()
        taken_by = register.take_device(device, us)
        if taken_by != us:
            yield taken_by
            return
        done = threading.Event()

        def refresh() -> None:
            while not done.wait(beat):
                with suppress(Exception):  # a full disk, say: the run itself will meet it and report it
                    register.take_device(device, us)

        pulse = threading.Thread(target=refresh, daemon=True)
        pulse.start()
        try:
            yield ""
        finally:
            done.set()
            pulse.join()
            with suppress(Exception):  # a store that is gone must not hide why the run ended; the lease lapses by itself
                register.give_device(device, us)

