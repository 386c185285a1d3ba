"""Devices, clocks and processors that are held while a run lasts, and let go however it ends."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pynvml
import pytest

from cachemark.cli.endings import Terminated, terminable
from cachemark.core.errors import Infrastructure
from cachemark.machine import gpu as device
from cachemark.machine.lease import folder, lease
from cachemark.trial.executors.local import local
from support.fake_nvml import Card, FakeNvml

HOLD = """
import time
from cachemark.machine.lease import lease
with lease('GPU-x') as other:
    print(repr(other), flush=True)
    time.sleep(600)
"""
pytestmark = pytest.mark.usefixtures("own_leases")


def test_two_harnesses_share_no_device_and_no_processors(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    with local("cuda", 1, nvml=nvml) as one, local("cuda", 1, nvml=nvml) as two:
        assert [places.gpu and places.gpu.uuid for places in (one, two)] == ["GPU-aaaa", "GPU-bbbb"]
        with pytest.raises(Infrastructure, match=rf"GPU-aaaa by .*{os.getpid()}"), local("cuda", 1, nvml=nvml):
            pass
    with local("cuda", 1, names=["all"], nvml=nvml) as both:
        assert len(both.places) == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    with local("cpu", 1) as one, local("cpu", 1) as two, local("cpu", 2) as crowded, local("cpu", 3) as whole:
        assert [p.places[0].cpus for p in (one, two, crowded, whole)] == [(0,), (1,), (0, 1, 2), (0, 1, 2)]


def test_jobs_with_different_folders_for_temporary_files_share_the_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CACHEMARK_LEASES")
    folders = set()
    for job in ("/tmp/job1", "/tmp/job2"):
        monkeypatch.setenv("TMPDIR", job)
        monkeypatch.setattr(tempfile, "tempdir", None)
        folders.add(folder())
    assert len(folders) == 1


@pytest.mark.parametrize("put", [lambda path, victim: path.symlink_to(victim), lambda path, victim: path.symlink_to("nowhere"), lambda path,
                                 victim: path.hardlink_to(victim), lambda path, victim: os.mkfifo(path), lambda path,
                                 victim: path.mkdir()], ids=["link", "dangling link", "hard link", "pipe", "folder"])
def test_a_lock_file_that_somebody_else_may_have_put_there_is_refused(put: Callable[[Path, Path], None], tmp_path: Path) -> None:
    victim = tmp_path / "victim.txt"
    victim.write_text("precious")
    put(folder() / "GPU-x.lock", victim)
    with pytest.raises(Infrastructure, match=r"GPU-x\.lock cannot be used.*CACHEMARK_LEASES"), lease("GPU-x"):
        pass
    assert victim.read_text() == "precious"


def test_a_lease_ends_with_its_process_and_only_its_owner_can_write_it() -> None:
    """Another user locks the file that it can only read, so that devices are exclusive among all users."""
    before = os.umask(0)
    try:
        with lease("GPU-x"):
            assert stat.S_IMODE((folder() / "GPU-x.lock").stat().st_mode) == 0o644
    finally:
        os.umask(before)
    child = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "''\n"
    with lease("GPU-x") as other:
        assert str(child.pid) in other
    child.kill()
    child.communicate()
    with lease("GPU-x") as other:
        assert other == ""


def test_clocks_are_locked_and_let_go_also_those_of_a_killed_run(nvml: FakeNvml, cards: list[Card]) -> None:
    with suppress(ZeroDivisionError), local("cuda", 1, clock=1410, nvml=nvml) as places:
        assert (cards[0].locked, cards[1].locked) == (1410, 0)
        assert places.places[0].watch.locked == 1410  # type: ignore[union-attr]
        raise ZeroDivisionError
    assert (cards[0].locked, list(folder().glob("*.locked"))) == (0, [])
    cards[0].locked = 1410
    (folder() / "GPU-aaaa.locked").touch()
    with device.locked(device.gpus(nvml), 0):
        assert cards[0].locked == 0
        assert "nvmlDeviceResetGpuLockedClocks" not in cards[1].asked
    assert not list(folder().glob("*.locked"))


def test_clocks_are_let_go_after_sigterm_and_a_second_signal_does_not_interrupt_that(nvml: FakeNvml, cards: list[Card]) -> None:
    clocks = []

    @contextmanager
    def held() -> Iterator[None]:
        try:
            with local("cuda", 1, clock=1410, nvml=nvml):
                clocks.append(cards[0].locked)
                yield
        finally:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            clocks.append(cards[0].locked)

    with pytest.raises(Terminated), terminable(own_process=False), held():
        os.kill(os.getpid(), signal.SIGTERM)
    assert clocks == [1410, 0]


def test_another_ctrl_c_while_a_command_ends_prints_nothing() -> None:
    """Python still has to end: a KeyboardInterrupt would print a traceback, and end with another code."""
    script = ("import os, signal\nfrom cachemark.cli.endings import terminable\nwith terminable(own_process=True):\n    pass\n"
              "os.kill(os.getpid(), signal.SIGINT)")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                          preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert (done.returncode, done.stderr) == (0, "")


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
    (pynvml.NVML_ERROR_NOT_SUPPORTED, "cannot be locked")])
def test_clocks_that_cannot_be_locked_are_refused_with_the_reason(error: int, words: str, nvml: FakeNvml, cards: list[Card]) -> None:
    cards[0].failing["nvmlDeviceSetGpuLockedClocks"] = error
    with pytest.raises(Infrastructure, match=words), local("cuda", 1, clock=1410, nvml=nvml):
        pass
    with lease("GPU-aaaa") as other:
        assert not other, "the device is free again"
