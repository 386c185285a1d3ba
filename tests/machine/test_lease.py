"""Devices, clocks and processors that are held while a run lasts, and let go however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from cachemark.core.errors import Infrastructure
from cachemark.core.processes import holder
from cachemark.machine import gpu as device
from cachemark.machine.gpu import locked
from cachemark.machine.lease import folder, lease
from cachemark.store.db import Store
from cachemark.trial.executors.local import local
from support.fake_nvml import Card, FakeNvml

HOLD = """
import sys, time
from cachemark.machine.lease import lease
with lease('GPU-x') as other:
    print(repr(other), flush=True)
    time.sleep(600)
"""


pytestmark = pytest.mark.usefixtures("own_leases")


def test_two_harnesses_never_share_a_device(nvml: FakeNvml) -> None:
    with local("cuda", 1, nvml=nvml) as one, local("cuda", 1, nvml=nvml) as two:
        assert [places.gpu and places.gpu.uuid for places in (one, two)] == ["GPU-aaaa", "GPU-bbbb"]
        with pytest.raises(Infrastructure, match=rf"GPU-aaaa by .*{os.getpid()}"), local("cuda", 1, nvml=nvml):
            pass
    with local("cuda", 1, names=["all"], nvml=nvml) as both:
        assert len(both.places) == 2


def test_a_named_device_that_is_held_is_refused(nvml: FakeNvml) -> None:
    with lease("GPU-bbbb"), pytest.raises(Infrastructure, match="GPU-bbbb by"), local("cuda", 1, names=["1"], nvml=nvml):
        pass


def test_devices_of_two_models_are_no_place_for_one_run(nvml: FakeNvml, cards: list[Card]) -> None:
    cards[1].name = "Fake A100"
    with pytest.raises(Infrastructure, match="not on Fake A100 and Fake H100"), local("cuda", 1, names=["all"], nvml=nvml):
        pass


def test_a_lease_ends_with_its_process_however_it_ends() -> None:
    child = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "''\n"
    with lease("GPU-x") as other:
        assert str(child.pid) in other
    child.kill()
    child.communicate()
    with lease("GPU-x") as other:
        assert other == ""


def test_clocks_are_locked_and_let_go(nvml: FakeNvml, cards: list[Card]) -> None:
    with local("cuda", 1, clock=1410, nvml=nvml) as places:
        assert (cards[0].locked, cards[1].locked) == (1410, 0)
        assert places.places[0].watch.locked == 1410  # type: ignore[union-attr]
    assert cards[0].locked == 0
    with pytest.raises(ZeroDivisionError), local("cuda", 1, clock=1410, nvml=nvml):
        raise ZeroDivisionError
    assert cards[0].locked == 0
    assert not list(folder().glob("*.locked"))


def test_clocks_are_let_go_after_sigterm(nvml: FakeNvml, cards: list[Card]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    held = []

    def terminated() -> None:
        with local("cuda", 1, clock=1410, nvml=nvml):
            held.append(cards[0].locked)
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as caught:
        terminated()
    assert held == [1410]
    assert (caught.value.code, cards[0].locked) == (143, 0)
    assert signal.getsignal(signal.SIGTERM) is before


def test_clocks_left_by_a_killed_run_are_let_go_by_the_next(nvml: FakeNvml, cards: list[Card]) -> None:
    cards[0].locked = 1410
    (folder() / "GPU-aaaa.locked").touch()
    with locked(device.gpus(nvml), 0):
        assert cards[0].locked == 0
        assert "nvmlDeviceResetGpuLockedClocks" not in cards[1].asked
    assert not list(folder().glob("*.locked"))


@pytest.mark.parametrize("clock", [0, 1410])
def test_clocks_that_root_left_locked_stop_the_run_of_another_user(clock: int, nvml: FakeNvml, cards: list[Card]) -> None:
    cards[0].locked = 1410
    cards[0].failing["nvmlDeviceResetGpuLockedClocks"] = pynvml.NVML_ERROR_NO_PERMISSION
    mark = folder() / "GPU-aaaa.locked"
    mark.touch()
    words = f"left the clocks of Fake H100 locked.*nvidia-smi -i GPU-aaaa --reset-gpu-clocks && rm {mark}"
    with pytest.raises(Infrastructure, match=words), local("cuda", 1, clock=clock, nvml=nvml):
        pass
    assert mark.exists()


@pytest.mark.parametrize(("error", "words"), [
    (pynvml.NVML_ERROR_NO_PERMISSION, "may be locked by an administrator only.*without --lock-clocks"),
    (pynvml.NVML_ERROR_NOT_SUPPORTED, "cannot be locked"),
])  # fmt: skip
def test_clocks_that_cannot_be_locked_are_refused_with_the_reason(error: int, words: str, nvml: FakeNvml, cards: list[Card]) -> None:
    cards[0].failing["nvmlDeviceSetGpuLockedClocks"] = error
    with pytest.raises(Infrastructure, match=words), local("cuda", 1, clock=1410, nvml=nvml):
        pass
    with lease("GPU-aaaa") as other:
        assert not other, "the device is free again"


def test_a_clock_that_the_device_does_not_have_is_refused(nvml: FakeNvml) -> None:
    words = r"no SM clock of 1400 MHz.*nearest is 1410; it has 345 … 1980"
    with pytest.raises(Infrastructure, match=words), local("cuda", 1, clock=1400, nvml=nvml):
        pass
    with pytest.raises(Infrastructure, match="CPU"), local("cpu", 1, clock=1410):
        pass


def test_processors_are_pinned_and_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    with local("cpu", 1) as one, local("cpu", 1) as two, local("cpu", 2) as crowded, local("cpu", 3) as whole:
        assert [p.places[0].cpus for p in (one, two, crowded, whole)] == [(0,), (1,), (0, 1, 2), (0, 1, 2)]


# ------------------------------------------------------------------------------------------------ written down for other machines

def test_a_lease_is_written_down_and_struck_out(nvml: FakeNvml, tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.sqlite") as store:
        with local("cuda", 1, nvml=nvml, register=store):
            assert store.counts()["lease"] == 1
        assert store.counts()["lease"] == 0


def test_a_device_that_another_machine_holds_is_passed_over(nvml: FakeNvml, tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.sqlite") as store:
        assert store.take_device("GPU-aaaa", "elsewhere 1") == "elsewhere 1"
        with local("cuda", 1, nvml=nvml, register=store) as places:
            assert places.gpu is not None
            assert places.gpu.uuid == "GPU-bbbb"
        with pytest.raises(Infrastructure, match="GPU-aaaa by elsewhere 1"), local("cuda", 1, names=["0"], nvml=nvml, register=store):
            pass
        assert store.take_device("GPU-aaaa", "elsewhere 1") == "elsewhere 1", "it is still there"


def test_a_lease_without_a_sign_of_life_lapses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1e9]
    monkeypatch.setattr("time.time", lambda: now[0])
    with Store.open(tmp_path / "s.sqlite") as store:
        assert store.take_device("GPU-x", "there 1") == "there 1"
        now[0] += 140
        assert store.take_device("GPU-x", "here 2") == "there 1"
        assert store.take_device("GPU-x", "there 1") == "there 1"  # a beat
        now[0] += 140
        assert store.take_device("GPU-x", "here 2") == "there 1"
        now[0] += 20
        assert store.take_device("GPU-x", "here 2") == "here 2"
        now[0] -= 10**6
        assert store.take_device("GPU-x", "there 1") == "there 1", "a beat from a far future is no sign of life"


def test_the_lease_of_a_process_that_ended_on_this_machine_is_free_at_once(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "from cachemark.core.processes import holder; print(holder())"],
                             stdout=subprocess.PIPE, text=True)
    theirs = child.communicate()[0].strip()
    with Store.open(tmp_path / "s.sqlite") as store:
        assert store.take_device("GPU-x", theirs) == theirs
        assert store.take_device("GPU-x", holder()) == holder()
        assert store.take_device("GPU-x", theirs) == holder(), "this process lives"
        store.give_device("GPU-x", "somebody else 3")
        assert store.counts()["lease"] == 1


def test_the_beat_goes_on_while_the_lease_lasts(tmp_path: Path) -> None:
    class Register:
        def __init__(self) -> None:
            self.told: list[str] = []

        def take_device(self, device: str, holder: str) -> str:
            self.told.append(device)
            if len(self.told) == 3:
                raise OSError("the disk is full")  # the run itself will meet it
            return holder

        def give_device(self, device: str, holder: str) -> None:
            self.told.append("given")

    register = Register()
    with lease("GPU-x", register, beat=0.001):
        while len(register.told) < 6:
            pass
    assert register.told[-1] == "given"
