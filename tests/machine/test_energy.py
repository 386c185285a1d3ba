"""Energy of a GPU and a CPU with its error, CPU time of other processes, and peaks of memory."""

import math
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from cachemark.core.facts import EnergyFacts
from cachemark.machine import load
from cachemark.machine.energy import MOST_ERROR, Energy, PackageEnergy, energy_of
from cachemark.machine.gpu import Reading
from cachemark.machine.memory import TensorPeak


def readings(power: Callable[[float], float], joules: Callable[[float], float] | None, first: float = 0.0, last: float = 20.0,
             step: float = 0.2, regular: bool = False) -> list[Reading]:
    jitter = random.Random(3)  # samples of power count at irregular times only
    moments = [first + step * k for k in range(round((last - first) / step) + 1)]
    if not regular:
        moments[1:-1] = [moment + step * jitter.uniform(-0.25, 0.25) for moment in moments[1:-1]]
    return [Reading(None, None, power(t), joules(t) if joules else None, None, 0, frozenset(), t) for t in moments]


def test_what_is_known_of_readings_after_between_and_during_short_generations() -> None:
    """Between two readings 1 s apart the device worked half of the time; a reading at the end tells which half."""
    def joules(t: float) -> float:
        return 400 * min(max(t - 1, 0.0), 2.5)

    apart = readings(lambda t: 400.0, joules, last=6, step=1.0, regular=True)
    blurred = energy_of(apart, [(1.0, 3.5)])
    (at_end,) = readings(lambda t: 400.0, joules, first=3.501, last=3.501)
    known = energy_of([*apart, at_end], [(1.0, 3.5)])
    assert known.error < 0.5 * blurred.error
    assert known.joules[0] == pytest.approx(1000, rel=0.01)
    rare = energy_of(readings(lambda t: 300.0, lambda t: 300 * (t // 2 * 2)), [(3.1, 18.9)])
    assert abs(sum(rare.joules) / (15.8 * 300) - 1) <= rare.error
    assert rare.error > 1.5 / 15.8
    series = readings(lambda t: 300.0, lambda t: 300 * t)
    assert "too short" in energy_of(series, [(1.0, 1.0 + 0.09 / MOST_ERROR)]).absent
    assert energy_of(series, [(1.0, 1.0 + 0.11 / MOST_ERROR)]).joules
    assert "not read during" in energy_of(series, [(19.0, 21.0)]).absent
    assert "neither an energy counter nor a power sensor" in energy_of(readings(lambda t: None, None), [(1.0, 2.0)]).absent  # type: ignore[arg-type, return-value]
    assert "no energy" in energy_of(readings(lambda t: 0.0, None), [(1.0, 9.0)]).absent


@pytest.mark.parametrize(("change", "reason"), [
    (lambda r: r | {"watts": math.nan}, "a power of nan"), (lambda r: r | {"watts": -5.0}, "a power of -5"),
    (lambda r: r | {"joules": math.nan}, "an energy of nan"), (lambda r: r | {"joules": -1.0}, "an energy of -1"),
    (lambda r: r | {"joules": 1.0}, "reset"), (lambda r: r | {"watts": math.inf}, "a power of inf")])
def test_a_wrong_reading_leaves_no_energy(change: Callable[[dict[str, object]], dict[str, object]], reason: str) -> None:
    series = readings(lambda t: 300.0, lambda t: 300 * t + 7)
    series[40] = Reading(**change(vars(series[40])))  # type: ignore[arg-type]
    energy = energy_of(series, [(1.0, 5.0)])
    assert (energy.joules, energy.watts) == ((), ())
    assert reason in energy.absent
    assert energy.facts == EnergyFacts(absent=energy.absent)


def simulated(stream: random.Random, sensor: str, cycle: float = 0.0) -> tuple[Energy, float]:
    """Energy of generations whose power alternates, and their true joules. ``cycle``: of the load in seconds, by default any."""
    step, idle, high = 0.002, stream.uniform(40, 100), stream.uniform(200, 700)
    low, share, spans, now = stream.uniform(idle, high), stream.uniform(0.1, 1), list[tuple[float, float]](), 2.5
    cycle = cycle or math.exp(stream.uniform(math.log(0.01), math.log(5)))
    for _ in range(stream.randint(3, 10)):
        spans.append((now, now + stream.uniform(1, 6)))
        now = spans[-1][1] + stream.choice([0.0, 0.005, stream.uniform(0, 0.5)])
    times = np.arange(0, now + 3, step)
    power = np.full(len(times), idle)
    for begin, end in spans:
        inside = (times >= begin) & (times < end)
        power[inside] = np.where(times[inside] % cycle < share * cycle, high, low)
    joules = np.concatenate([[0.0], np.cumsum(power) * step])
    phase = stream.uniform(0, 0.1)

    def used(begin: float, end: float) -> float:
        return float(np.subtract(*np.interp([end, begin], np.append(times, times[-1] + step), joules)))

    def reading(at: float) -> Reading:
        updated = (at - phase) // 0.1 * 0.1 + phase
        width = {"instant": step, "average": 1.0, "quarter": 0.025, "counter": step}[sensor]
        shown = used(at - step, at) if sensor == "instant" else used(updated - width, updated)
        return Reading(None, None, shown / width, used(0, updated) if sensor == "counter" else None, 100, 0, frozenset(), at)

    moments, now = [1.2], 1.2
    while now < times[-1] - 0.4:
        now += stream.uniform(0.1, 0.3)
        moments.append(now)
    return energy_of([reading(at) for at in moments], spans), sum(used(*span) for span in spans)


@pytest.mark.parametrize(("sensor", "cycle"), [("instant", 0.0), ("average", 0.0), ("quarter", 0.0), ("counter", 0.0), ("instant", 0.2),
                                               ("average", 0.2), ("quarter", 0.2 * math.sqrt(2)), ("counter", 0.2)])
def test_the_stated_error_covers_the_truth_for_each_kind_of_sensor(sensor: str, cycle: float) -> None:
    """Instantaneous power, its average over 1 s, 25 ms of each 100 ms, and a counter that is updated every 100 ms."""
    stream = random.Random(f"{sensor} {cycle}")
    cases = [simulated(stream, sensor, cycle) for _ in range(100)]
    covered = [abs(sum(energy.joules) - true) <= energy.error * sum(energy.joules) for energy, true in cases if not energy.absent]
    assert len(covered) >= 60, "most cases have an energy"
    assert sum(covered) >= 0.95 * len(covered)


def test_power_that_is_read_in_step_with_the_load_is_no_energy_and_a_counter_that_stands_still_is_recognized() -> None:
    for cycle in (0.2, 0.1, 0.4):
        powers = [(t, 600.0 if t % cycle < cycle / 4 else 60.0) for t in np.arange(0, 20, 0.2)]
        series = [Reading(None, None, watts, None, 100, 0, frozenset(), t) for t, watts in powers]
        assert "equal intervals" in energy_of(series, [(2.0, 8.0), (8.0, 14.0)]).absent
    energy, absent = (energy_of(readings(power, lambda t: 5000.0), [(3.0, 9.0), (9.0, 15.0)])  # type: ignore[arg-type]
                      for power in (lambda t: 300.0, lambda t: None))
    assert (energy.source, sum(energy.joules)) == ("power samples", pytest.approx(3600))
    assert "stands still" in absent.absent


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Two CPU packages, one of them with a part that counts within it."""
    for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text("core\n" if name.count(":") > 1 else f"package-{name[-1]}\n")
        (tmp_path / name / "max_energy_range_uj").write_text("262143328850\n")
        (tmp_path / name / "energy_uj").write_text("262143000000\n")
    return tmp_path


def test_packages_are_added_may_wrap_and_a_forbidden_one_says_how_to_allow_it(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, domain in (("intel-rapl:2", "psys"), ("intel-rapl:3", "dram")):
        shutil.copytree(packages / "intel-rapl:0", packages / name)
        (packages / name / "name").write_text(f"{domain}\n")
    counter = PackageEnergy(packages)
    counter.start(10.0)
    (packages / "intel-rapl:0" / "energy_uj").write_text(f"{30_000_000 - 328_851}\n")
    (packages / "intel-rapl:1" / "energy_uj").write_text("262143328850\n")
    counter.stop(10.5)
    energy = counter.of_last(1)
    assert (energy.joules, energy.watts) == (pytest.approx((30.328850,)), pytest.approx((60.6577,)))
    assert (energy.source, energy.error) == ("CPU package counter", pytest.approx(0.002))

    monkeypatch.setattr(Path, "read_text", Mock(side_effect=PermissionError))
    assert "sudo chmod a+r" in PackageEnergy(packages).absent


@pytest.mark.parametrize(("content", "reason"), [
    ("", "cannot be read"), ("nan", "cannot be read"), ("-4", "negative: -4"), (None, "cannot be read")])
def test_a_counter_that_fails_later_leaves_no_energy(content: str | None, reason: str, packages: Path) -> None:
    counter, file = PackageEnergy(packages), packages / "intel-rapl:1" / "energy_uj"
    counter.start(0.0)
    counter.stop(0.5)
    counter.start(1.0)
    file.unlink() if content is None else file.write_text(content)
    counter.stop(1.5)
    assert reason in counter.of_last(2).absent


@pytest.mark.parametrize(("columns", "own", "expected"), [
    ({"user": 10.0}, 10.0, 0.0), ({"user": 10.0}, 5.0, 0.5), ({"user": 9.0, "nice": 2.0, "system": 4.0}, 5.0, 1.0),
    ({"idle": 90.0, "iowait": 20.0, "user": 10.0}, 10.0, 0.0), ({"steal": 4.0, "irq": 1.0, "softirq": 1.0}, 0.0, 0.6),
    ({"user": 10.0, "guest": 10.0, "nice": 3.0, "guest_nice": 3.0}, 10.0, 0.3), ({"user": 9.9}, 10.0, 0.0)])
def test_only_others_count(columns: dict[str, float], own: float, expected: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")
    monkeypatch.setattr(load, "STAT", tmp_path / "stat")
    monkeypatch.setattr(load.os, "sysconf", lambda name: 100)  # ticks a second

    def at(moment: float, own: float, columns: dict[str, float]) -> None:
        (tmp_path / "stat").write_text(f"cpu  {' '.join(str(int(100 * columns.get(name, 0.0))) for name in names)}\ncpu0 1 1 1\n")
        monkeypatch.setattr(load.time, "process_time", lambda: own)
        monkeypatch.setattr(load.time, "monotonic", lambda: moment)

    at(0.0, 0.0, {})
    measured = load.OtherLoad()
    at(10.0, own, columns)
    assert measured.processors() == pytest.approx(expected)


@pytest.mark.parametrize("content", [None, "", "cpu a b\n"])
def test_a_kernel_that_does_not_show_it(content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if content is not None:
        (tmp_path / "stat").write_text(content)
    monkeypatch.setattr(load, "STAT", tmp_path / "stat")
    measured = load.OtherLoad()
    time.sleep(0.01)
    assert measured.processors() is None


KIB = 1024


def block(kib: int) -> torch.Tensor:
    return torch.empty(kib * KIB, dtype=torch.uint8)


def test_the_peak_is_the_largest_sum_alive_at_once_and_views_cost_nothing() -> None:
    with TensorPeak() as watch:
        a, b = block(100), block(50)
        del a
        c = block(70)  # 50 + 70 stand beside each other, less than 150
    assert watch.peak == 150 * KIB
    with watch:
        d = block(31)  # 50 + 70 + 31
    assert watch.peak == 151 * KIB
    del b, c, d
    with TensorPeak() as watch, torch.inference_mode():
        for _ in range(20):
            total = block(3) + block(3)  # freed ones do not count
            del total
    assert watch.peak == 9 * KIB
    x = torch.arange(512.0)
    with TensorPeak() as watch:
        values, indices = x.sort()
    assert watch.peak == values.nbytes + indices.nbytes == 512 * (4 + 8)
    with TensorPeak() as watch:
        a = block(64)
        views = [a[:KIB], a.view(8, -1), a.view(8, -1).T, a.expand(4, -1), a.detach()]
        a.add_(1)
        views[0].zero_()
        part = a[:1]
        del a, views
        b = block(10)
    assert watch.peak == 74 * KIB
    del part, b
