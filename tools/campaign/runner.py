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

MOST = 240.0  # seconds of one stage in one call
RESERVE = 20.0  # seconds at the end of a call for stopping the last stage and storing everything
GRACE = 5.0  # after so many of them a stage that has not ended is terminated, and after as many more it is killed
LEAST = 60.0  # fewest seconds to start a stage that can be continued; most of them are its start-up
CUT = 4  # exit code of a stage that ended in time and has more to do


@dataclass(frozen=True)
class Stage:
    """A measurement of a campaign.

    ``command(seconds, work)``: its process, which uses the store in ``work`` and should end within ``seconds``. ``price``: estimated
    seconds in all. A ``continued`` stage runs with any time left; others start only if they can finish.
    """

    name: str
    what: str
    command: Callable[[float, Path], Sequence[str]]
    price: float
    continued: bool = False


def call(
    stages: Sequence[Stage], folder: Folder, budget: float, *, most: float = MOST, clock: Callable[[], float] = time.monotonic,
) -> list[str]:
    """Run the remaining stages in order, failed ones last, within ``budget`` seconds, each within ``most``; return a line for each."""
    end, lines = clock() + budget - RESERVE, []
    with tempfile.TemporaryDirectory(prefix="campaign-") as made, small(folder):
        work = Path(made)
        folder.unpack(work)
        waiting = [stage for stage in stages if folder.of(stage.name).state != "done"]
        for stage in sorted(waiting, key=lambda stage: folder.of(stage.name).state == "failed"):
            lines.append(f"{stage.name}: {_turn(stage, stages, folder, work, end - clock(), most, clock)}")
            folder.save()
    return lines


def price(stage: Stage, stages: Sequence[Stage], folder: Folder) -> float:
    """Return the estimated seconds of a stage, corrected by the stages so far and above what did not suffice."""
    done = [(other, folder.of(other.name)) for other in stages if folder.of(other.name).state == "done"]
    ratios = [record.seconds / other.price for other, record in done if other.price]
    expected = stage.price * max(1.0, statistics.median(ratios)) if ratios else stage.price
    record = folder.of(stage.name)
    return max(expected, 1.5 * record.last) if record.state == "cut" and not stage.continued else expected


def _turn(
    stage: Stage, stages: Sequence[Stage], folder: Folder, work: Path, seconds_left: float, most: float, clock: Callable[[], float],
) -> str:
    """Run a stage if it has time, and return its result as a line."""
    record, expected = folder.of(stage.name), price(stage, stages, folder)
    needed = min(LEAST, expected) if stage.continued else min(expected, most)
    if seconds_left < needed:
        return f"{record.state}: it needs {needed:.0f} s, and {max(seconds_left, 0):.0f} s are left"
    began = clock()
    limit = min(most, seconds_left)
    code, printed = _ended(stage.command(limit, work), limit + GRACE)
    record.last = clock() - began
    record.seconds += record.last
    record.state = "done" if code == 0 else "cut" if code in (CUT, None) else "failed"
    lines = printed.decode(errors="replace").strip().splitlines()
    record.said = lines[-1][:400] if lines else ""
    folder.log(stage.name, printed)
    folder.collect(work / STORE)
    return f"{record.state} after {record.last:.0f} s ({expected:.0f} s expected): {record.said}"


def _ended(command: Sequence[str], seconds: float) -> tuple[int | None, bytes]:
    """Return the exit code of a process, None if it was stopped at its time limit, and its output.

    It gets SIGTERM first, to end worker processes in their own sessions.
    """
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
