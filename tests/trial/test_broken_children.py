"""Worker processes: what crosses to them, and those that send half a message, no message, or nothing; each ends its own case only."""

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import pytest

import cachemark
from cachemark.core.errors import Infrastructure, Unsupported
from cachemark.core.facts import SetFacts
from cachemark.core.limits import Rates
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Case, Sampling
from cachemark.core.units import metric
from cachemark.machine.environment import KERNELS, environment
from cachemark.models.protocol import Request
from cachemark.plans import schema as plans
from cachemark.plans.planned import Prepared
from cachemark.plans.reuse import Earlier, KnownSeeds
from cachemark.store.db import Store
from cachemark.trial import supervisor
from cachemark.trial.identity import identify
from cachemark.trial.measurement import LONGEST, failed
from cachemark.trial.request import PARENT_ONLY, PROTOCOL, Task, TrialRequest
from cachemark.workflows.pairs import configs_of
from support import stages
from support.bad_plugins import MORE, PLUGINS, BadPlugin

CASE = Case("dot", "random:0", (4, 4), "10 classes, balanced", Sampling(), "streaming", budget="1/2")


def cases(count: int) -> list[Prepared]:
    return [Prepared(replace(CASE, batch=n + 1), Request("cpu")) for n in range(count)]


def interpreter(folder: Path, script: str) -> str:
    file = folder / "python"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def framed(message: object) -> bytes:
    """A message as multiprocessing frames it, of JSON or of other bytes."""
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack("!i", len(body)) + body


def saying(folder: Path, parts: Sequence[bytes], end: str) -> str:
    """A program that sends that its first case begins, then these bytes, and ends so."""
    file = folder / "said"
    file.write_bytes(b"".join((framed({"start": "key"}), *parts)))
    return interpreter(folder, f"cat '{file}'; {end}")


DONE = framed({"measurement": {}})


def test_messages_that_are_cut_short_or_none_end_their_case_alone(tmp_path: Path) -> None:
    for end, word, length in (
        ("kill -9 $$", "SIGKILL", 1), ("exit 7", "exit code 7", 11), ("exit 0", "exit code 0", len(DONE) // 2),
        ("kill -11 $$", "signal SIGSEGV", len(DONE) - 1),
    ):
        python = saying(tmp_path, [DONE[:length]], end)
        listed = list(supervisor.run_trials(cases(2), TrialRequest(60.0, 1, python=python), lambda planned: None))
        assert [f.outcome.status for f in listed] == [Status.ERROR, Status.ERROR]
        assert all(word in f.outcome.log for f in listed)
        assert listed[0].process != listed[1].process
    for content in (b"{'start': 1}\n", struct.pack("!i", LONGEST + 1)):
        python = saying(tmp_path, [content, DONE], "exit 3")
        (finished,) = supervisor.run_trials(cases(1), TrialRequest(60.0, 1, python=python), lambda planned: None)
        assert finished.outcome.status is Status.ERROR
        assert "exit code 3" in finished.outcome.log


FAILED = failed(Status.ERROR, "of itself").to_json()
NONSENSE = {
    "a list": framed(b"[1]"), "no JSON": framed(b"\xff"),
    "deep": framed(b"[" * 100_000), "no measurement": DONE, **{name: framed({"measurement": {**FAILED, **changes}}) for name, changes in {
        "no log": {"log": ""}, "an unknown metric": {"status": "ok", "samples": {"speed": [1.0]}},
        "an artifact elsewhere": {"artifacts": {"../a": ""}}}.items()},
}  # fmt: skip


@pytest.mark.parametrize("name", NONSENSE)
def test_what_is_no_message_ends_its_case_alone_and_says_so(name: str, tmp_path: Path) -> None:
    python = saying(tmp_path, [NONSENSE[name]], "exec sleep 1000")
    listed = list(supervisor.run_trials(cases(2), TrialRequest(60.0, 1, python=python), lambda planned: None))
    assert [f.outcome.status for f in listed] == [Status.ERROR, Status.ERROR]
    assert all("It sent a malformed message" in f.outcome.log for f in listed)
    assert [f.outcome.case.batch for f in listed] == [1, 2]


@pytest.mark.timeout(60)
def test_a_process_left_behind_and_a_child_that_does_not_read_delay_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the pipe of a worker that has died, outside its group."""
    monkeypatch.setattr(supervisor, "ENDING", 0.5)
    python = saying(tmp_path, [], f"setsid sleep 300 & echo $! > {tmp_path}/pid; exit 3")
    (finished,) = supervisor.run_trials(cases(1), TrialRequest(600.0, 1, python=python), lambda planned: None)
    left = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    for _ in range(500):  # the kernel ends it after the signal; nobody may have waited for it yet
        if ended := not left.exists() or left.read_text().rpartition(")")[2].split()[0] in "ZX":
            break
        time.sleep(0.01)
    assert ended
    assert finished.outcome.status is Status.ERROR
    assert "exit code 3" in finished.outcome.log
    monkeypatch.setattr(supervisor, "STARTUP", 0.5)
    python = interpreter(tmp_path, "exec sleep 1000")
    many = [replace(planned, unsupported_reason="x" * 100_000) for planned in cases(2)]
    finished = next(iter(supervisor.run_trials(many, TrialRequest(0.5, 1, python=python), lambda planned: None)))
    assert finished.outcome.status is Status.TIMEOUT


TIMED = ("slope", "limit", "cpus", "footnotes", "full_beside", "other_load")  # facts that differ from run to run
CALM = ["full", "full (other seeds)", "full (other batch)", "streaming 1/2", "calm 1/2"]


def run(folder: Path, bad: dict[str, BadPlugin]) -> stages.Stage:
    """A run of the plan of ``measured``, with the misbehaving methods before the well-behaved ones."""
    made = stages.stage(folder, ", ".join(f'"{name}"' for name in (*bad, "streaming")))
    result = made.run(*(option for name, plugin in bad.items() for option in ("--plugin", plugin.write(folder, name))))
    assert result.exit_code == 0, result.output
    return made


def lasting(outcome: Outcome) -> dict[str, object]:
    """Everything in an outcome but times, and the process and processors of its case."""
    data = outcome.to_json()
    samples = {name: [] if metric(name).kind == "speed" else values for name, values in data["samples"].items()}
    return {**data, "samples": samples, "facts": {name: data["facts"][name] for name in data["facts"].keys() - {*TIMED}}, "seconds": 0.0}


def check(alone: stages.Stage, beside: stages.Stage, bad: dict[str, BadPlugin]) -> None:
    expected, outcomes = alone.outcomes(), beside.outcomes()
    assert list(expected) == CALM
    assert [label for label in outcomes if label in CALM] == CALM
    for label in CALM:
        assert lasting(outcomes[label]) == lasting(expected[label])
    for name, plugin in bad.items():
        outcome = outcomes[f"{name} 1/2"]
        assert (outcome.status, plugin.words in outcome.log) == (plugin.status, True), outcome.log
        assert len(outcome.log) < 25_000


def test_each_ends_its_own_case_only_and_the_next_one_gives_the_same_tokens(measured: stages.Stage, tmp_path: Path) -> None:
    beside = run(tmp_path / "stage", PLUGINS)
    check(measured, beside, PLUGINS)
    assert beside.states() == ["finished"]
    assert beside.whole()
    with Store.open(beside.store, create=False, read_only=True) as store:
        trials = store.trials(1)
    assert len(set(trials.values())) == len(trials) == len(CALM) + len(PLUGINS), "a process for each, since the model is a plug-in's"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_other_misbehavior_ends_its_own_case_only(measured: stages.Stage, tmp_path: Path) -> None:
    check(measured, run(tmp_path / "stage", MORE), MORE)


def test_every_field_that_concerns_the_child_arrives_and_one_that_is_not_known_is_passed_over(tmp_path: Path) -> None:
    one = plans.Plan.model_validate({"name": "one", "cells": [{"model": "tiny-llamagen", "methods": ["window"]}]})
    planned = configs_of(one, "cpu")["tiny-llamagen window 1/2"]
    earlier = Earlier("source", "tokens", "images", {"psnr": [1.0]}, {"fid_scene_2k": [2.0]}, SetFacts(intervals={}))
    known = KnownSeeds("source", str(tmp_path / "tokens"), "tokens", 8, 4, [1.0])
    full = replace(planned, unsupported_reason="no", feature_cache=tmp_path, full_features=tmp_path / "full", rates=Rates(1.0, 2.0),
                   reusable=earlier, known=known, known_full=known, engine_reason="no device", needs=("0123456789ab",))
    request = TrialRequest(1.0, 2, ("p.py",), Task.FEATURES, (1, 3), (0, 1), True, 4096, "gpu", "python", "code", (full,),
                           (("model.safetensors", 7, 8, "cafe"),))
    here = {name: getattr(TrialRequest(), name) for name in PARENT_ONLY}
    assert TrialRequest.from_json(json.loads(json.dumps(request.to_json()))) == replace(request, **here)
    default = TrialRequest()
    assert all(getattr(request, f.name) != getattr(default, f.name) for f in fields(default)), "nothing is left at its default"
    data = json.loads(json.dumps(TrialRequest(cases=(planned,)).to_json()))
    assert "clip" not in data["cases"][0]["request"], "a default is not sent"
    data["of_a_later_version"] = data["cases"][0]["request"]["of_a_later_version"] = "x"
    assert TrialRequest.from_json(data) == TrialRequest(cases=(planned,))
    del data["memory_cap"]
    assert TrialRequest.from_json(data).memory_cap == 0


def test_another_protocol_is_refused_on_either_side(tmp_path: Path) -> None:
    body = json.dumps({"cases": [], "plugins": [], "protocol": PROTOCOL + 1}).encode()
    command = [*TrialRequest().command, "-m", "cachemark.trial.child.main"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
        child.stdin.write(struct.pack("!i", len(body)) + body)
        child.stdin.flush()
        text = child.stderr.read().decode()
    assert child.returncode == 1
    assert f"speaks protocol {PROTOCOL}" in text
    assert "Compare commits that share a protocol" in text
    assert "Traceback" not in text
    trial = tmp_path / "cachemark" / "trial"
    trial.mkdir(parents=True)
    for package in (trial.parent, trial):
        (package / "__init__.py").touch()
    (trial / "identity.py").write_text("def introduction(*_):\n    return {'protocol': 99}\n")
    with pytest.raises(Unsupported, match=f"{tmp_path} speaks protocol 99 .*protocol {PROTOCOL}.*Compare commits that share a protocol"):
        identify(TrialRequest(60.0, 1, code=str(tmp_path)), "cpu")


def test_this_copy_introduces_itself_and_an_interpreter_that_does_not_start_says_why(tmp_path: Path) -> None:
    where, code = identify(TrialRequest(60.0, 2), "cpu")
    assert (where, code["version"]) == (environment("cpu", 2), cachemark.__version__)
    introduction = {"protocol": PROTOCOL, "environment": environment("cpu", 2).to_json(), "code": {"commit": "abc"}}
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho noise\nprintf '%s' '{json.dumps(introduction)}'\n")
    python.chmod(0o755)
    assert identify(TrialRequest(python=str(python)), "cpu") == (environment("cpu", 2), {"commit": "abc"})
    python.write_text("#!/bin/sh\necho 'ModuleNotFoundError: no torch' >&2\nexit 1\n")
    with pytest.raises(Infrastructure, match=r"does not start under .*no torch"):
        identify(TrialRequest(python=str(python)), "cpu")
    with pytest.raises(Infrastructure, match="does not start"):
        identify(TrialRequest(python=str(tmp_path / "none")), "cpu")


def test_a_child_gets_interpreter_code_and_the_variables_of_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TrialRequest(1.0, 2).command == [sys.executable, "-P"]
    assert "PYTHONPATH" not in TrialRequest(1.0, 2).environment or TrialRequest(1.0, 2).environment["PYTHONPATH"]
    other = TrialRequest(1.0, 2, python="/py", code="/code")
    assert other.command == ["/py", "-P"]
    assert other.environment["PYTHONPATH"].split(os.pathsep)[0] == "/code"
    assert other.environment["OMP_NUM_THREADS"] == "2"
    given = ("PATH", "HOME", "LC_ALL", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "HF_HOME", "CACHEMARK_CALIBRATIONS", *KERNELS)
    withheld = ("DB_PASS", "GH_PAT", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "CACHEMARK_STORE", "MY_PATH_TOKEN", "PGPASSWORD")
    for name in (*given, *withheld):
        monkeypatch.setenv(name, "canary")
    passed = TrialRequest().environment
    assert set(given) <= passed.keys()
    assert {name for name, value in passed.items() if value == "canary"} <= set(given)
