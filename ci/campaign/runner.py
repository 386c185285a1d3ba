"""Runs the stages of a campaign, each in a process of its own, within a budget of seconds."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .folder import STORE, Folder, small

MOST = 480.0  # seconds of one stage in one call
RESERVE = 20.0  # seconds at the end of a call that no stage gets: to end the last one, and to write everything down
GRACE = 5.0  # of them, those after which a stage that should have ended by itself is told to, and as many later killed
LEAST = 60.0  # seconds that a stage which can be continued is begun with: most of them go into starting it
CUT = 4  # exit code of a stage that ended in time and has more to do


@dataclass(frozen=True)
class Stage:
    """One question to the device. ``command(seconds, work)`` is its process, which finds the store in the folder ``work`` and should end
    within ``seconds``; ``price`` is seconds that it takes in all, as far as is known. One that is ``continued`` gains something from any
    time; another one begins only if all of it has time."""

    name: str
    what: str
    command: Callable[[float, Path], Sequence[str]]
    price: float
    continued: bool = False


def call(stages: Sequence[Stage], folder: Folder, budget: float, *, clock: Callable[[], float] = time.monotonic) -> list[str]:
    """Run what is left of the stages, in their order, failed ones last, until ``budget`` seconds are spent. Returns a line for each stage
    that was not done before."""
    end, told = clock() + budget - RESERVE, []
    with tempfile.TemporaryDirectory(prefix="campaign-") as made, small(folder):
        work = Path(made)
        folder.unpack(work)
        waiting = [stage for stage in stages if folder.of(stage.name).state != "done"]
        for stage in sorted(waiting, key=lambda stage: folder.of(stage.name).state == "failed"):
            told.append(f"{stage.name}: {_turn(stage, stages, folder, work, end - clock(), clock)}")
            folder.save()
    return told


def price(stage: Stage, stages: Sequence[Stage], folder: Folder) -> float:
    """Seconds that a stage will take: what is stated, times what statements have come to so far, and more than has not sufficed."""
    done = [(other, folder.of(other.name)) for other in stages if folder.of(other.name).state == "done"]
    ratios = [record.seconds / other.price for other, record in done if other.price]
    expected = stage.price * max(1.0, statistics.median(ratios)) if ratios else stage.price
    record = folder.of(stage.name)
    return max(expected, 1.5 * record.last) if record.state == "cut" and not stage.continued else expected


def _turn(stage: Stage, stages: Sequence[Stage], folder: Folder, work: Path, left: float, clock: Callable[[], float]) -> str:
    """Run a stage if it has time, and say what became of it."""
    record, expected = folder.of(stage.name), price(stage, stages, folder)
    needed = min(LEAST, expected) if stage.continued else min(expected, MOST)
    if left < needed:
        return f"{record.state}: it needs {needed:.0f} s, and {max(left, 0):.0f} s are left"
    began = clock()
    code, printed = _ended(stage.command(min(MOST, left), work), min(MOST, left) + GRACE)
    record.last = clock() - began
    record.seconds += record.last
    record.state = "done" if code == 0 else "cut" if code in (CUT, None) else "failed"
    lines = printed.decode(errors="replace").strip().splitlines()
    record.said = lines[-1][:400] if lines else ""
    folder.log(stage.name, printed)
    folder.collect(work / STORE)
    return f"{record.state} after {record.last:.0f} s ({expected:.0f} s expected): {record.said}"


def _ended(command: Sequence[str], seconds: float) -> tuple[int | None, bytes]:
    """Exit code of a process, None where it had to be stopped after so many seconds, and what it printed. It is asked first, since it
    has trials in sessions of their own, which it ends."""
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT, start_new_session=True)
        code = _waited(process, seconds)
        if code is None:
            process.terminate()
            _waited(process, GRACE)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        printed.seek(0)
        return code, printed.read()


def _waited(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
