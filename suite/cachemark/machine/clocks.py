"""Clocks held at one value while a run lasts, and let go however it ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from .gpu import Gpu, Lost
from .lease import folder


@contextmanager
def locked(devices: Sequence[Gpu], mhz: int) -> Iterator[None]:
    """Hold the SM clocks of the devices at ``mhz``; 0 leaves them alone. They are let go at the end, after an error and after SIGTERM.

    A kill that leaves no time for it leaves a mark in the folder of leases, and the next run on the device lets them go. Infrastructure
    where a device refuses.
    """
    with _orderly_end():
        try:
            for gpu in devices:
                mark = folder() / f"{gpu.uuid}.locked"
                if mark.exists():
                    gpu.free_clocks()
                    mark.unlink(missing_ok=True)
                if mhz:
                    mark.touch()
                    gpu.lock_clocks(mhz)
            yield
        finally:
            for gpu in devices if mhz else ():
                with suppress(Lost):
                    gpu.free_clocks()
                (folder() / f"{gpu.uuid}.locked").unlink(missing_ok=True)


@contextmanager
def _orderly_end() -> Iterator[None]:
    """SIGTERM raises SystemExit inside, so that what must be put back is. Outside of the main thread signals are not ours."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
