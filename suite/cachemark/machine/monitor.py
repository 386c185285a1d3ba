"""Monitoring of a device while cases run: its clocks, and anything that invalidates the measurement."""

from __future__ import annotations

import math
import os
import random
import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..core.facts import DeviceReadings, UnreadReadings
from ..core.result import Status
from .energy import Energy, Span, energy_of
from .gpu import HW_SLOWDOWN, HW_THERMAL, POWER_BRAKE, REASONS, SW_THERMAL, Gpu, Lost, Reading

SPOILING = HW_SLOWDOWN | SW_THERMAL | HW_THERMAL | POWER_BRAKE
"""Reasons that spoil a measurement. The power cap is none: under load a device is expected to meet it."""
LEAST_CLOCK = 0.95  # smallest median clock under load, relative to the locked clock, of a valid measurement
BUSY = 50  # percent; slower clocks of an idle device mean nothing
PERIOD = 0.2  # mean seconds between two readings: a handful within the shortest timing, and about 0.1 % of one processor


@dataclass(frozen=True)
class Disturbance:
    """Reason why a measurement is invalid: ``throttled``, ``contended``, or ``error`` for a lost device."""

    status: Status
    reason: str


@dataclass
class Watch:
    """Readings of one device, for one case at a time.

    ``locked`` is the locked clock in MHz, or 0; ``child`` is the process started on the device, and ``own`` are its descendants so far."""

    gpu: Gpu
    locked: int = 0
    period: float = PERIOD
    child: int = 0
    own: frozenset[int] = frozenset()
    _readings: list[Reading] = field(default_factory=list)
    _lost: str = ""
    _unread: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)  # a reading collects its errors
    _thread: threading.Thread | None = None

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def begin(self) -> None:
        """Start a case and discard earlier readings."""
        self._readings, self._unread = [], []
        self.read()

    def read(self, prompted: bool = False) -> None:
        """Read the device once.

        ``prompted``: at a time that the load chooses, such as the end of a generation.
        """
        with self._one_at_a_time:
            reading = self._query(self.gpu.reading)
        if reading is None:
            return
        reading = replace(reading, prompted=prompted)
        self._unread += reading.errors
        if self.child and (reading.processes or frozenset()) - self.own:
            self.own |= family(self.child)
        self._readings.append(reading)

    def end(self) -> tuple[DeviceReadings, Disturbance | None]:
        """Return the readings since :meth:`begin`, and a disturbance, if any."""
        self.read()
        readings, unread = self._readings, list(self._unread)
        energy = [r.joules for r in readings if r.joules is not None]
        return DeviceReadings(
            uuid=self.gpu.uuid, readings=len(readings), sm_mhz=_spread(_clocks(readings)),
            celsius=_spread([r.celsius for r in readings if r.celsius is not None]),
            watts=_spread([r.watts for r in readings if r.watts is not None]),
            joules=energy[-1] - energy[0] if len(energy) > 1 else None,
            slowed_by=_reasons(readings, sum(REASONS)), locked_mhz=self.locked or None,
            unread=UnreadReadings(times=len(unread), errors=sorted(set(unread))) if unread else None, unseen=unseen(readings) or None,
        ), self._invalidated(readings)

    def energy(self, spans: Sequence[Span]) -> Energy:
        """Return the energy of the generations in these spans since :meth:`begin`."""
        return Energy(absent=self.gpu.no_energy) if self.gpu.no_energy else energy_of(self._readings, spans)

    def intruders(self) -> frozenset[int]:
        """Return foreign processes on the device, before anything of ours runs."""
        return strangers(self._query(self.gpu.processes) or frozenset(), self.own)

    def _query(self, ask: Callable[[], Any]) -> Any:
        """Return the driver's answer. Unexpected errors are noted and give None: they must not end the run."""
        try:
            return ask()
        except Lost as error:
            self._lost = str(error)
        except Exception as error:
            self._unread.append(f"{type(error).__name__}: {error}")
        return None

    def _invalidated(self, readings: list[Reading]) -> Disturbance | None:
        if self._lost:
            return Disturbance(Status.ERROR, f"The device was lost: {self._lost}.")
        foreign = sorted({pid for r in readings for pid in strangers(r.processes or frozenset(), self.own)})
        if foreign:
            return Disturbance(Status.CONTENDED, f"Other processes computed on the device: {', '.join(map(str, foreign))}.")
        if slowed_by := _slowed_under_load(readings):
            return Disturbance(Status.THROTTLED, f"The device slowed itself down: {', '.join(slowed_by)}.")
        under_load = _clocks(readings)
        if self.locked and under_load and (middle := statistics.median(under_load)) < LEAST_CLOCK * self.locked:
            reason = f"Its median clock was {middle:g} MHz, below {LEAST_CLOCK:.0%} of the locked {self.locked}."
            return Disturbance(Status.THROTTLED, reason)
        return None

    def _follow(self) -> None:
        while not self._stop.wait(self.period * random.uniform(0.5, 1.5)):  # a load may be in step with equal intervals
            self.read()


def unseen(readings: Sequence[Reading]) -> list[str]:
    """Return the disturbances that no reading shows, because the driver is too old or hides them."""
    readable_by_name = {"other processes": any(r.processes is not None for r in readings),
             "clock reductions": any(r.reasons is not None for r in readings)}
    return [name for name, readable in readable_by_name.items() if not readable]


def strangers(running: frozenset[int], own: frozenset[int], alive: Callable[[int], bool] | None = None) -> frozenset[int]:
    """Return the processes on a device that are not ours.

    In a container the driver may use the host's numbering: then none of ours is found, and one unknown number is assumed to be the trial.
    """
    alive = alive or (lambda pid: Path(f"/proc/{pid}").exists())
    foreign = running - own
    if own and not running & own:
        elsewhere = sorted(pid for pid in foreign if not alive(pid))
        return foreign - frozenset(elsewhere[:1])
    return foreign


def family(pid: int) -> frozenset[int]:
    """Return a process and its descendants, or the process alone if the system hides them."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue  # it ended while we looked
    pids, grown = {pid}, True
    while grown:
        more = {child for child, parent in parents.items() if parent in pids} - pids
        pids, grown = pids | more, bool(more)
    return frozenset(pids - {os.getpid()})


def _loaded(readings: list[Reading]) -> list[Reading]:
    """Return the readings under load, or all without any load."""
    return [r for r in readings if (r.busy or 0) >= BUSY] or readings


def _clocks(readings: list[Reading]) -> list[int]:
    """Return the known clocks under load."""
    readings = [r for r in readings if r.sm_mhz is not None]
    return [r.sm_mhz for r in _loaded(readings) if r.sm_mhz is not None]


def _slowed_under_load(readings: list[Reading]) -> list[str]:
    """Return the reasons that slowed a loaded device.

    NVML also sets the general bit of a hardware slowdown while the clock or the P-state changes, so it counts from two readings in a row.
    """
    loaded = _loaded(readings)
    lasting = any((first.reasons or 0) & (second.reasons or 0) & HW_SLOWDOWN for first, second in pairwise(loaded))
    return _reasons(loaded, SPOILING if lasting else SPOILING & ~HW_SLOWDOWN)


def _spread(values: list[Any]) -> list[float]:
    """Return minimum, median and maximum of the finite values, or an empty list."""
    values = [value for value in values if math.isfinite(value)]
    return [min(values), statistics.median(values), max(values)] if values else []


def _reasons(readings: list[Reading], bits: int) -> list[str]:
    return [word for bit, word in REASONS.items() if bits & bit and any((reading.reasons or 0) & bit for reading in readings)]
