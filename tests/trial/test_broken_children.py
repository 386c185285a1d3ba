"""Children that break the talk with their parent: cut short, with bytes that are no message, or deaf. Each ends its case and nothing
else."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachemark.core.result import Status
from cachemark.core.spec import Case, Sampling
from cachemark.models.protocol import Request
from cachemark.plans.expand import Planned
from cachemark.trial import measurement as frames
from cachemark.trial import supervisor
from cachemark.trial.measurement import Measurement, failed
from cachemark.trial.request import TrialRequest
from cachemark.trial.supervisor import run_trials

CASE = Case("dot", "random:0", (4, 4), "10 classes, balanced", Sampling(), "streaming", budget="1/2")


def cases(count: int) -> list[Planned]:
    return [Planned(replace(CASE, batch=n + 1), Request("cpu")) for n in range(count)]


def interpreter(folder: Path, script: str) -> str:
    """A program that stands in for the child."""
    file = folder / "python"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def saying(folder: Path, parts: Sequence[bytes], end: str) -> str:
    """A program that reads its request, says that its first case begins, then these bytes, and ends so."""
    file = folder / "said"
    file.write_bytes(b"".join((frames.framed({"start": 0}), *parts)))
    return interpreter(folder, f"read line; cat '{file}'; {end}")


DONE = frames.framed({"done": 0, "measurement": {}, "clock": 0.25})


@pytest.mark.parametrize(("end", "word", "length"), [
    ("kill -9 $$", "SIGKILL", 1), ("exit 7", "exit code 7", 11), ("exit 0", "exit code 0", len(DONE) // 2),
    ("kill -11 $$", "signal SIGSEGV", len(DONE) - 1),
])  # fmt: skip
def test_a_message_that_was_cut_short_ends_the_case_alone(end: str, word: str, length: int, tmp_path: Path) -> None:
    python = saying(tmp_path, [DONE[:length]], end)
    found = list(run_trials(cases(2), TrialRequest(60.0, 1, python=python), lambda planned: None))
    assert [f.outcome.status for f in found] == [Status.ERROR, Status.ERROR]
    assert all(word in f.outcome.log for f in found)
    assert found[0].process != found[1].process


@pytest.mark.timeout(60)
def test_half_a_message_and_then_silence_is_a_timeout(tmp_path: Path) -> None:
    python = saying(tmp_path, [DONE[:-1]], "exec sleep 1000")
    (found,) = run_trials(cases(1), TrialRequest(0.5, 1, python=python), lambda planned: None)
    assert found.outcome.status is Status.TIMEOUT


def tampered(message: bytes, at: int) -> bytes:
    return message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :]


def raw(body: bytes) -> bytes:
    return frames.HEAD.pack(frames.MARK, len(body), zlib.crc32(body)) + body


def ended(measurement: Any, clock: Any = 0.0) -> bytes:
    return frames.framed({"done": 0, "measurement": measurement, "clock": clock})


FAILED = failed(Status.ERROR, "of itself").to_json()
NONSENSE = {
    "a line": b"{'start': 1}\n", "a wrong byte": tampered(DONE, 40), "an endless length": frames.HEAD.pack(frames.MARK, 2**32 - 1, 0),
    "a framed list": raw(b"[]"), "NaN": raw(b'{"done": NaN}'), "deep": raw(b"[" * 100_000), "no measurement": DONE,
    "no log": ended({**FAILED, "log": ""}), "an unknown metric": ended({**FAILED, "status": "ok", "samples": {"speed": [1.0]}}),
    "an artifact elsewhere": ended({**FAILED, "artifacts": {"../a": ""}}), "no clock": ended(FAILED, clock=None),
    "the next case first": frames.framed({"done": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", NONSENSE)
def test_what_is_no_message_ends_its_case_alone_and_says_so(name: str, tmp_path: Path) -> None:
    python = saying(tmp_path, [NONSENSE[name]], "exec sleep 1000")
    found = list(run_trials(cases(2), TrialRequest(60.0, 1, python=python), lambda planned: None))
    assert [f.outcome.status for f in found] == [Status.ERROR, Status.ERROR]
    assert all("It wrote into the pipe through which its outcome goes" in f.outcome.log for f in found)
    assert [f.outcome.case.batch for f in found] == [1, 2]


def test_a_proper_message_is_believed(tmp_path: Path) -> None:
    measured = Measurement(Status.OK, {"latency": [0.1]}, "times alone", log="of itself", artifacts={"a.txt": b"x"})
    python = saying(tmp_path, [ended(measured.to_json())], "exit 0")
    (found,) = run_trials(cases(1), TrialRequest(60.0, 1, python=python), lambda planned: None)
    assert (found.outcome.case, found.outcome.log, found.artifacts) == (cases(1)[0].case, "of itself", {"a.txt": b"x"})


def test_a_clock_that_goes_otherwise_than_ours_is_found_from_outside(tmp_path: Path) -> None:
    """The child says that its case took an hour."""
    measured = Measurement(Status.OK, {"latency": [1.0]}, "times alone", facts={"kernel": "k"}).to_json()
    python = saying(tmp_path, [ended(measured, clock=3600.0)], "exit 0")
    (found,) = run_trials(cases(1), TrialRequest(60.0, 1, python=python), lambda planned: None)
    assert found.outcome.status is Status.ERROR
    assert found.outcome.log.startswith("The clock of the process went 3.6e+03 s while it took ")
    assert found.outcome.facts["kernel"] == "k"


@pytest.mark.timeout(60)
def test_a_child_that_does_not_read_has_the_time_of_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is longer than a pipe holds."""
    monkeypatch.setattr(supervisor, "STARTUP", 0.5)
    python = interpreter(tmp_path, "exec sleep 1000")
    many = [replace(planned, unsupported_reason="x" * 100_000) for planned in cases(2)]
    found = next(iter(run_trials(many, TrialRequest(0.5, 1, python=python), lambda planned: None)))
    assert found.outcome.status is Status.TIMEOUT
