"""Workers that send half a message, bytes that are no message, or nothing. Each ends its own case only."""

import json
import struct
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Case, Sampling
from cachemark.core.units import metric
from cachemark.models.protocol import Request
from cachemark.plans.planned import Prepared
from cachemark.store.db import Store
from cachemark.trial import supervisor
from cachemark.trial.measurement import LONGEST, failed
from cachemark.trial.request import TrialRequest
from cachemark.trial.supervisor import run_trials
from support import stages
from support.bad_plugins import MORE, PLUGINS, BadPlugin
from support.stages import Stage

CASE = Case("dot", "random:0", (4, 4), "10 classes, balanced", Sampling(), "streaming", budget="1/2")


def cases(count: int) -> list[Prepared]:
    return [Prepared(replace(CASE, batch=n + 1), Request("cpu")) for n in range(count)]


def interpreter(folder: Path, script: str) -> str:
    """A program that stands in for the child."""
    file = folder / "python"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def raw(body: bytes) -> bytes:
    """A message as multiprocessing frames it."""
    return struct.pack("!i", len(body)) + body


def framed(message: object) -> bytes:
    return raw(json.dumps(message).encode())


def saying(folder: Path, parts: Sequence[bytes], end: str) -> str:
    """A program that sends that its first case begins, then these bytes, and ends so."""
    file = folder / "said"
    file.write_bytes(b"".join((framed({"start": "key"}), *parts)))
    return interpreter(folder, f"cat '{file}'; {end}")


DONE = framed({"measurement": {}})


@pytest.mark.parametrize(("end", "word", "length"), [
    ("kill -9 $$", "SIGKILL", 1), ("exit 7", "exit code 7", 11), ("exit 0", "exit code 0", len(DONE) // 2),
    ("kill -11 $$", "signal SIGSEGV", len(DONE) - 1),
])  # fmt: skip
def test_a_message_that_was_cut_short_ends_the_case_alone(end: str, word: str, length: int, tmp_path: Path) -> None:
    python = saying(tmp_path, [DONE[:length]], end)
    listed = list(run_trials(cases(2), TrialRequest(60.0, 1, python=python), lambda planned: None))
    assert [f.outcome.status for f in listed] == [Status.ERROR, Status.ERROR]
    assert all(word in f.outcome.log for f in listed)
    assert listed[0].process != listed[1].process


@pytest.mark.parametrize("content", [b"{'start': 1}\n", struct.pack("!i", LONGEST + 1)])
def test_bytes_that_are_no_message_are_not_read(content: bytes, tmp_path: Path) -> None:
    python = saying(tmp_path, [content, DONE], "exit 3")
    (finished,) = run_trials(cases(1), TrialRequest(60.0, 1, python=python), lambda planned: None)
    assert finished.outcome.status is Status.ERROR
    assert "exit code 3" in finished.outcome.log


def ended(measurement: Any) -> bytes:
    return framed({"measurement": measurement})


FAILED = failed(Status.ERROR, "of itself").to_json()
NONSENSE = {
    "a list": raw(b"[1]"), "no JSON": raw(b"\xff"),
    "deep": raw(b"[" * 100_000), "no measurement": DONE, "no log": ended({**FAILED, "log": ""}),
    "an unknown metric": ended({**FAILED, "status": "ok", "samples": {"speed": [1.0]}}),
    "an artifact elsewhere": ended({**FAILED, "artifacts": {"../a": ""}}),
}  # fmt: skip


@pytest.mark.parametrize("name", NONSENSE)
def test_what_is_no_message_ends_its_case_alone_and_says_so(name: str, tmp_path: Path) -> None:
    python = saying(tmp_path, [NONSENSE[name]], "exec sleep 1000")
    listed = list(run_trials(cases(2), TrialRequest(60.0, 1, python=python), lambda planned: None))
    assert [f.outcome.status for f in listed] == [Status.ERROR, Status.ERROR]
    assert all("It sent a malformed message" in f.outcome.log for f in listed)
    assert [f.outcome.case.batch for f in listed] == [1, 2]


@pytest.mark.timeout(60)
def test_a_process_left_behind_ends_and_does_not_delay_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the pipe of a worker that has died, outside its group."""
    monkeypatch.setattr(supervisor, "ENDING", 0.5)
    python = saying(tmp_path, [], f"setsid sleep 300 & echo $! > {tmp_path}/pid; exit 3")
    (finished,) = run_trials(cases(1), TrialRequest(600.0, 1, python=python), lambda planned: None)
    left = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    for _ in range(500):  # the kernel ends it after the signal; nobody may have waited for it yet
        if ended := not left.exists() or left.read_text().rpartition(")")[2].split()[0] in "ZX":
            break
        time.sleep(0.01)
    assert ended
    assert finished.outcome.status is Status.ERROR
    assert "exit code 3" in finished.outcome.log


@pytest.mark.timeout(60)
def test_a_child_that_does_not_read_has_the_time_of_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is longer than a pipe holds."""
    monkeypatch.setattr(supervisor, "STARTUP", 0.5)
    python = interpreter(tmp_path, "exec sleep 1000")
    many = [replace(planned, unsupported_reason="x" * 100_000) for planned in cases(2)]
    finished = next(iter(run_trials(many, TrialRequest(0.5, 1, python=python), lambda planned: None)))
    assert finished.outcome.status is Status.TIMEOUT


TIMED = ("slope", "limit", "cpus", "footnotes", "full_beside", "other_load")  # facts that differ from run to run
CALM = ["full", "full (other seeds)", "full (other batch)", "streaming 1/2", "calm 1/2"]


def run(folder: Path, bad: dict[str, BadPlugin]) -> Stage:
    """A run of the plan of ``measured``, with the misbehaving methods before the well-behaved ones."""
    made = stages.stage(folder, ", ".join(f'"{name}"' for name in (*bad, "streaming")))
    result = made.run(*(option for name, plugin in bad.items() for option in ("--plugin", plugin.write(folder, name))))
    assert result.exit_code == 0, result.output
    return made


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return run(tmp_path_factory.mktemp("beside") / "stage", PLUGINS)


def lasting(outcome: Outcome) -> dict[str, object]:
    """Everything in an outcome but times, and the process and processors of its case."""
    data = outcome.to_json()
    samples = {name: values for name, values in data["samples"].items() if metric(name).kind != "speed"}
    facts = {name: fact for name, fact in data["facts"].items() if name not in TIMED}
    return {**data, "samples": samples, "facts": facts, "seconds": 0.0}


def check(alone: Stage, beside: Stage, bad: dict[str, BadPlugin]) -> None:
    expected, outcomes = alone.outcomes(), beside.outcomes()
    assert list(expected) == CALM
    assert [label for label in outcomes if label in CALM] == CALM
    for label in CALM:
        assert lasting(outcomes[label]) == lasting(expected[label])
        assert outcomes[label].samples.keys() == expected[label].samples.keys()
    for name, plugin in bad.items():
        outcome = outcomes[f"{name} 1/2"]
        assert (outcome.status, plugin.words in outcome.log) == (plugin.status, True), outcome.log
        assert len(outcome.log) < 25_000


def test_each_ends_its_own_case_only_and_the_next_one_gives_the_same_tokens(measured: Stage, beside: Stage) -> None:
    check(measured, beside, PLUGINS)
    assert beside.states() == ["finished"]
    assert beside.whole()
    with Store.open(beside.store, create=False, read_only=True) as store:
        trials = store.trials(1)
    assert len(set(trials.values())) == len(trials) == len(CALM) + len(PLUGINS), "a process for each, since the model is a plug-in's"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_other_misbehavior_ends_its_own_case_only(measured: Stage, tmp_path: Path) -> None:
    check(measured, run(tmp_path / "stage", MORE), MORE)
