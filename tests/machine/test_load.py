"""CPU time of other processes while a case is timed."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cachemark.machine import load
from cachemark.machine.memory import TensorPeak

TICKS = 100  # a second


def clocks(monkeypatch: pytest.MonkeyPatch, path: Path) -> dict[str, float]:
    """Let the module read these: the moment, the own time, and the kernel's columns from a file."""
    now = {"own": 0.0, "moment": 0.0}
    monkeypatch.setattr(load, "STAT", path)
    monkeypatch.setattr(load.os, "sysconf", lambda name: TICKS)
    monkeypatch.setattr(load.time, "process_time", lambda: now["own"])
    monkeypatch.setattr(load.time, "monotonic", lambda: now["moment"])
    return now


def write(path: Path, **seconds: float) -> None:
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")
    path.write_text("cpu  " + " ".join(str(int(TICKS * seconds.get(name, 0.0))) for name in names) + "\ncpu0 1 1 1\n")


@pytest.mark.parametrize(("columns", "own", "expected"), [
    ({"user": 10.0}, 10.0, 0.0), ({"user": 10.0}, 5.0, 0.5), ({"user": 9.0, "nice": 2.0, "system": 4.0}, 5.0, 1.0),
    ({"idle": 90.0, "iowait": 20.0, "user": 10.0}, 10.0, 0.0), ({"steal": 4.0, "irq": 1.0, "softirq": 1.0}, 0.0, 0.6),
    ({"user": 10.0, "guest": 10.0, "nice": 3.0, "guest_nice": 3.0}, 10.0, 0.3), ({"user": 9.9}, 10.0, 0.0),
])
def test_only_work_of_others_counts(
    columns: dict[str, float], own: float, expected: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = clocks(monkeypatch, tmp_path / "stat")
    write(tmp_path / "stat")
    measured = load.OtherLoad()
    write(tmp_path / "stat", **columns)
    now |= {"own": own, "moment": 10.0}
    assert measured.processors() == pytest.approx(expected)


@pytest.mark.parametrize("content", [None, "", "cpu a b\n"])
def test_a_kernel_that_does_not_show_it(content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if content is not None:
        (tmp_path / "stat").write_text(content)
    monkeypatch.setattr(load, "STAT", tmp_path / "stat")
    measured = load.OtherLoad()
    time.sleep(0.01)
    assert measured.processors() is None


@pytest.mark.skipif(not load.STAT.exists(), reason="this kernel has no /proc/stat")
def test_a_busy_process_counts() -> None:
    """The kernel counts in steps of 10 ms; other tests that run meanwhile only add to it."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        measured = load.OtherLoad()
        time.sleep(1.0)
        processors = measured.processors()
        busy.kill()
    assert processors is not None
    assert processors > 0.5


KIB = 1024


def block(kib: int) -> Tensor:
    return torch.empty(kib * KIB, dtype=torch.uint8)


def test_the_peak_is_the_largest_sum_alive_at_once() -> None:
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


def test_views_cost_nothing() -> None:
    with TensorPeak() as watch:
        a = block(64)
        views = [a[:KIB], a.view(8, -1), a.view(8, -1).T, a.expand(4, -1), a.detach()]
        a.add_(1)
        views[0].zero_()
    assert watch.peak == 64 * KIB


def test_a_view_keeps_the_whole_storage_alive() -> None:
    with TensorPeak() as watch:
        a = block(64)
        part = a[:1]
        del a
        b = block(10)
    assert watch.peak == 74 * KIB
    del part, b
