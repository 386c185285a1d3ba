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
AVERAGED = 1.0  # seconds over which power sensors of Ampere and newer average (NVML, nvmlDeviceGetPowerUsage)
LEAST_SAMPLES, LEAST_JITTER = 8, 0.15  # power samples in the generations, and standard deviation of their intervals / the mean
DEVIATIONS, RARE = 3.0, 3.0  # of a mean; and of n samples none meets a state that lasts for 3/n of the time with probability 5 %
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

    Joules are the difference of the driver's energy counter between the ends of a span, where it moves. Its error is a bound:
    interpolation, for powers up to the highest one read, plus one update of the counter per span.

    Else joules are the integral of the sampled power, by the trapezoidal rule. Samples show power only at their times, so these have to be
    irregular, and the error adds the scatter of the samples, powers too rare to be met by one of them, and a sensor that lags or averages
    over the last second. It assumes that the load is not in step with the sensor's own cycle, which nothing shows."""
    readings = sorted(readings, key=lambda reading: reading.at)
    for name, values in (("a power", [r.watts for r in readings]), ("an energy", [r.joules for r in readings])):
        if wrong := next((value for value in values if value is not None and not 0 <= value < math.inf), None):
            return Energy(absent=f"The driver returned {name} of {wrong:g}. Update the driver, or check nvidia-smi --query-gpu=power.draw.")
    counted = [(r.at, r.joules) for r in readings if r.joules is not None]
    sampled = [(r.at, r.watts) for r in readings if r.watts is not None and not r.prompted]
    if any(now < then for (_, then), (_, now) in pairwise(counted)):
        return Energy(absent="The energy counter was reset while the case ran. Measure the case again with --fresh.")
    stuck = len(counted) > 1 and counted[0][1] == counted[-1][1]
    points = counted if len(counted) > 1 and not stuck else sampled
    if len(points) < 2:
        why = "'s energy counter stands still" if stuck else " has neither an energy counter nor a power sensor"
        return Energy(absent=f"The device{why}. Measure on a whole GPU, not on a slice or a virtual one.")
    at, levels = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    if any(begin < at[0] or end > at[-1] for begin, end in spans):
        return Energy(absent="The device was not read during every timed generation. See the fact device of the case.")
    if points is sampled:
        still = "The energy counter stands still. " if stuck else ""
        return _from_samples(at, levels, sorted(spans), still)
    period = max([SENSOR_PERIOD, *(_plateau(at, levels, span) for span in spans)])
    peak = _peak(at, levels, [watts for _, watts in sampled], period)
    estimates = [_counter(at, levels, span, peak) for span in spans]
    late = len(spans) * peak * period
    return _checked([joules for joules, _ in estimates], sum(error for _, error in estimates) + late, spans, "energy counter")


def _plateau(at: Floats, joules: Floats, span: Span) -> float:
    """Return the longest time without a change of the counter, a lower bound of its update period."""
    inside = (at >= span[0]) & (at <= span[1])
    times = [at[inside & (joules == value)] for value in np.unique(joules[inside])]
    return max((float(np.ptp(each)) for each in times), default=0.0)


def _from_samples(at: Floats, watts: Floats, spans: Sequence[Span], note: str) -> Energy:
    """Return the energy from samples of power in spans, which are in order."""
    inside = np.logical_or.reduce([(at >= begin) & (at <= end) for begin, end in spans])
    number, steps = int(inside.sum()), np.diff(at)
    if number < LEAST_SAMPLES:
        return Energy(absent=f"{note}Only {number} samples of power fall into the timed generations; {LEAST_SAMPLES} are needed. "
                             "Increase the batch size or the repeats.")
    if np.std(steps) < LEAST_JITTER * np.mean(steps):
        return Energy(absent=f"{note}The power was read at equal intervals, which do not show a load in step with them.")
    seconds = sum(end - begin for begin, end in spans)
    within = np.diff(watts)[inside[1:] & inside[:-1]]
    scatter = math.sqrt(float(np.mean(within**2)) / 2) if len(within) else 0.0
    width = float(np.ptp(watts))
    gaps = [math.inf, *(max(0.0, then - now) for (_, now), (then, _) in pairwise(spans))]
    shifted = sum(min(AVERAGED + SENSOR_PERIOD, gap, end - begin) for gap, (begin, end) in zip(gaps, spans, strict=True))
    error = width * shifted + seconds * (DEVIATIONS * scatter / math.sqrt(number) + RARE * width / number)
    return _checked([_integral(at, watts, span) for span in spans], error, spans, "power samples", note)


def _peak(at: Floats, joules: Floats, watts: Sequence[float], period: float) -> float:
    """Return the highest power of the samples, and of the counter over at least a ``period``."""
    steps = [(now - then, after - before) for (then, now), (before, after) in zip(pairwise(at), pairwise(joules), strict=True)]
    slopes = [used / seconds for seconds, used in (*steps, (at[-1] - at[0], joules[-1] - joules[0])) if seconds >= period]
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


def _integral(at: Floats, watts: Floats, span: Span) -> float:
    """Return the integral of sampled power over a span, by the trapezoidal rule."""
    moments = np.array([span[0], *at[(at > span[0]) & (at < span[1])], span[1]])
    power = np.interp(moments, at, watts)
    return float(np.sum(np.diff(moments) * (power[1:] + power[:-1]) / 2))


def _checked(joules: Sequence[float], error: float, spans: Sequence[Span], source: str, note: str = "") -> Energy:
    """Return the energy of the spans, or why it is not known well enough.

    ``error``: of the sum of ``joules``.
    """
    seconds = [end - begin for begin, end in spans]
    total = sum(joules)
    if total <= 0 or min(seconds) <= 0:
        return Energy(absent=f"{note}The {source} showed no energy. Generate more images per batch.")
    if error > MOST_ERROR * total:
        return Energy(absent=f"{note}The timed generations are too short for the {source}: the error is {error / total:.0%}, "
                             f"above {MOST_ERROR:.0%}. Increase the batch size.")
    watts = tuple(used / span for used, span in zip(joules, seconds, strict=True))
    return Energy(tuple(joules), watts, error / total, source)


def _is_package(domain: Path) -> bool:
    """Return whether a domain of RAPL is a package; ``psys`` contains some, others are parts."""
    try:
        return domain.name.count(":") == 1 and (domain / "name").read_text().startswith("package-")
    except OSError as error:
        return isinstance(error, PermissionError)  # its counter is not readable either, which is reported


class PackageEnergy:
    """Energy counters of all CPU packages (RAPL), read around each generation.

    They count the whole package, so other processes are included. ``absent``: why they cannot be read."""

    def __init__(self, folder: Path | None = None) -> None:
        self._domains = sorted(path for path in (folder or RAPL).glob("intel-rapl:*") if _is_package(path))
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
        joules = [sum(each) / 1e6 for each in used]
        late = sum(RAPL_PERIOD * each / (end - begin) for each, (begin, end) in zip(joules, spans, strict=True) if end > begin)
        return _checked(joules, late, spans, "CPU package counter")

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
