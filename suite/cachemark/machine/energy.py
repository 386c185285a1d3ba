"""Energy of timed generations, from a counter of joules or from samples of power."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..core.facts import EnergyFacts
from .gpu import Reading

MOST_ERROR = 0.25  # relative error above which no energy is reported
SENSOR_PERIOD = 0.1  # seconds between two updates of a GPU's energy counter or power sensor
RAPL_PERIOD = 0.001  # seconds between two updates of the energy counter of a CPU package
RAPL = Path("/sys/class/powercap")

Floats = npt.NDArray[np.float64]
Span = tuple[float, float]  # start and end of a generation, in seconds of ``time.monotonic``, which processes of a machine share


@dataclass(frozen=True)
class Energy:
    """Energy and mean power of each generation, in J and W, or the reason why they are ``absent``.

    ``error`` is the relative error of the sum of joules; ``source`` names the sensor."""

    joules: tuple[float, ...] = ()
    watts: tuple[float, ...] = ()
    error: float = 0.0
    source: str = ""
    absent: str = ""

    @property
    def facts(self) -> EnergyFacts:
        """Source and error, or the reason for no energy."""
        return EnergyFacts(absent=self.absent) if self.absent else EnergyFacts(source=self.source, error=self.error)


def energy_of(readings: Sequence[Reading], spans: Sequence[Span]) -> Energy:
    """Return the energy that a GPU used in each of the spans.

    Joules are the difference of the driver's energy counter between the ends of a span, or without a counter the integral of the sampled
    power by the trapezoidal rule. Between readings the counter and the power are interpolated. The error is a bound: interpolation,
    for powers up to the highest one read, plus one update period of the sensor per span."""
    readings = sorted(readings, key=lambda reading: reading.at)
    for name, values in (("a power", [r.watts for r in readings]), ("an energy", [r.joules for r in readings])):
        if wrong := next((value for value in values if value is not None and not 0 <= value < math.inf), None):
            return Energy(absent=f"The driver returned {name} of {wrong:g}. Update the driver, or check nvidia-smi --query-gpu=power.draw.")
    counted = [(r.at, r.joules) for r in readings if r.joules is not None]
    sampled = [(r.at, r.watts) for r in readings if r.watts is not None]
    if any(now < then for (_, then), (_, now) in pairwise(counted)):
        return Energy(absent="The energy counter was reset while the case ran. Measure the case again with --fresh.")
    points = counted if len(counted) > 1 else sampled
    if len(points) < 2:
        return Energy(absent="The device has neither an energy counter nor a power sensor. Measure on a whole GPU, not on a slice.")
    at, totals = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    if any(begin < at[0] or end > at[-1] for begin, end in spans):
        return Energy(absent="The device was not read during every timed generation. See the fact device of the case.")
    peak = _peak(at, totals, [watts for _, watts in sampled])
    estimates = [_counter(at, totals, span, peak) if points is counted else _integral(at, totals, span) for span in spans]
    return _checked([joules for joules, _ in estimates], [error for _, error in estimates], spans, SENSOR_PERIOD,
                    "energy counter" if points is counted else "power samples")


def _peak(at: Floats, joules: Floats, watts: Sequence[float]) -> float:
    """Return the highest power in the samples, and in the counter between readings far enough apart."""
    steps = [(now - then, after - before) for (then, now), (before, after) in zip(pairwise(at), pairwise(joules), strict=True)]
    slopes = [used / seconds for seconds, used in (*steps, (at[-1] - at[0], joules[-1] - joules[0])) if seconds >= SENSOR_PERIOD > 0]
    return max([*watts, *slopes], default=0.0)


def _counter(at: Floats, joules: Floats, span: Span, peak: float) -> tuple[float, float]:
    """Return the difference of a counter over a span, and an error bound for powers from 0 to ``peak``."""
    ends, error = np.interp(span, at, joules), 0.0
    for moment, value in zip(span, ends, strict=True):
        after = max(1, int(np.searchsorted(at, moment)))
        least = max(joules[after - 1], joules[after] - peak * (at[after] - moment))
        most = min(joules[after], joules[after - 1] + peak * (moment - at[after - 1]))
        error += max(value - least, most - value, 0.0)
    return float(ends[1] - ends[0]), float(error)


def _integral(at: Floats, watts: Floats, span: Span) -> tuple[float, float]:
    """Return the integral of sampled power over a span, and its error for monotonic power."""
    moments = np.array([span[0], *at[(at > span[0]) & (at < span[1])], span[1]])
    power = np.interp(moments, at, watts)
    width = np.diff(moments)
    return float(np.sum(width * (power[1:] + power[:-1]) / 2)), float(np.sum(width * np.abs(np.diff(power))) / 2)


def _checked(joules: Sequence[float], errors: Sequence[float], spans: Sequence[Span], period: float, source: str) -> Energy:
    """Return the energy of the spans, or why it is not known well enough.

    ``period``: largest delay of the sensor in seconds.
    """
    seconds = [end - begin for begin, end in spans]
    total = sum(joules)
    if total <= 0 or min(seconds) <= 0:
        return Energy(absent=f"The {source} showed no energy. Generate more images per batch.")
    late = sum(period * used / span for used, span in zip(joules, seconds, strict=True))
    error = (sum(errors) + late) / total
    if error > MOST_ERROR:
        return Energy(absent=f"The timed generations are too short for the {source}: the error is {error:.0%}, above {MOST_ERROR:.0%}. "
                             "Increase the batch size.")
    watts = tuple(used / span for used, span in zip(joules, seconds, strict=True))
    return Energy(tuple(joules), watts, error, source)


class PackageEnergy:
    """Energy counters of all CPU packages (RAPL), read around each generation.

    They count the whole package, so other processes are included. ``absent``: why they cannot be read."""

    def __init__(self, folder: Path | None = None) -> None:
        self._domains = sorted(path for path in (folder or RAPL).glob("intel-rapl:*") if path.name.count(":") == 1)
        self._readings: list[tuple[Span, tuple[int, ...]]] = []
        self._began: tuple[float, tuple[int, ...]] | None = None
        self.absent = "" if self._domains else "This machine shows no energy counter of its CPU (RAPL)."
        self._ranges = self._values("max_energy_range_uj")

    def start(self, now: float) -> None:
        """Read the counters at the beginning of a generation."""
        self._began = now, self._values("energy_uj")

    def stop(self, now: float) -> None:
        """Read the counters at the end of a generation."""
        assert self._began is not None
        (began, before), after = self._began, self._values("energy_uj")
        used = tuple((now_ - then) % (most + 1) for then, now_, most in zip(before, after, self._ranges, strict=False))
        self._readings.append(((began, now), used))

    def of_last(self, count: int) -> Energy:
        """Return the energy of the last ``count`` generations."""
        if self.absent:
            return Energy(absent=self.absent)
        spans, used = zip(*self._readings[-count:], strict=True)
        return _checked([sum(each) / 1e6 for each in used], [], spans, RAPL_PERIOD, "CPU package counter")

    def _values(self, name: str) -> tuple[int, ...]:
        """Return a number of each package, none if one cannot be read."""
        if self.absent:
            return ()
        try:
            values = tuple(int((domain / name).read_text()) for domain in self._domains)
        except PermissionError:
            self.absent = f"The energy counter of the CPU needs a permission. Run: sudo chmod a+r {RAPL}/intel-rapl:*/energy_uj"
            return ()
        except (OSError, ValueError) as error:
            self.absent = f"The energy counter of the CPU cannot be read: {error}."
            return ()
        if min(values) < 0:
            self.absent = f"The energy counter of the CPU is negative: {min(values)}."
        return values
