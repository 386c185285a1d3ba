"""Leases: while one harness measures on a device, no other does, on this machine or on another that sees the same device."""

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
    """A record of leases that other machines see. The store is one."""

    def take_device(self, device: str, holder: str) -> str:
        """Write ``holder`` down for the device, or again as a sign of life. Returns who holds it then: the caller, or somebody else."""

    def give_device(self, device: str, holder: str) -> None:
        """Strike the holder out."""


def folder() -> Path:
    """The folder of the lock files: one place for all users of a machine, or what CACHEMARK_LEASES names."""
    configured = os.environ.get("CACHEMARK_LEASES")
    path = Path(configured) if configured else Path(tempfile.gettempdir()) / "cachemark-leases"
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):
            path.chmod(0o1777)
    return path


def lock(name: str) -> IO[str] | None:
    """A lock of that name, kept until the file is closed or the process ends, however it ends; None where another process has it."""
    file = _opened(folder() / f"{name}.lock")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    file.truncate(0)
    file.write(holder() + "\n")
    file.flush()
    return file


def _opened(path: Path) -> IO[str]:
    """The file, for every user to lock. One that is there is opened as it is: in a folder for all users a system may refuse to create
    what somebody else has created."""
    with suppress(FileNotFoundError):
        return os.fdopen(os.open(path, os.O_RDWR), "r+")
    number = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    with suppress(OSError):
        os.fchmod(number, 0o666)
    return os.fdopen(number, "r+")


def held_by(name: str) -> str:
    """The holder that wrote itself into the lock of that name, for people."""
    try:
        return (folder() / f"{name}.lock").read_text().strip() or "somebody"
    except OSError:
        return "somebody"


@contextmanager
def lease(device: str, register: Register | None = None, beat: float = BEAT) -> Iterator[str]:
    """Hold a device. Yields who holds it instead, or nothing where it is ours."""
    file = lock(device)
    if file is None:
        yield held_by(device)
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
        pulse = threading.Thread(target=_beat, args=(register, device, us, beat, done), daemon=True)
        pulse.start()
        try:
            yield ""
        finally:
            done.set()
            pulse.join()
            with suppress(Exception):  # a store that is gone must not hide why the run ended; the lease lapses by itself
                register.give_device(device, us)


def _beat(register: Register, device: str, us: str, beat: float, done: threading.Event) -> None:
    while not done.wait(beat):
        with suppress(Exception):  # a full disk, say: the run itself will meet it and say so
            register.take_device(device, us)
