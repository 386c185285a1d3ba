"""The two ways in which tests start a trial: as for a user, and by fork. What holds of the one holds of the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cachemark.core.result import FULL_BESIDE, Outcome
from cachemark.plans import schema as plans
from cachemark.plans.expand import expand
from cachemark.plugins import loading as plugins
from cachemark.trial.request import TrialRequest
from cachemark.trial.supervisor import run_trials
from support import examples, fork_server
from support.stages import forgetting

TRIAL = [*TrialRequest().command, "-m", "cachemark.trial.child.start"]


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(fork_server, "enabled", request.param == "forked")
    return str(request.param)


@pytest.mark.slow
def test_a_trial_says_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[bool, list[Outcome]] = {}
    with forgetting():
        plugins.load(folder / "dot.py")
        (folder / "plan.toml").write_text(examples.plan_text('"streaming"', weights=folder / "dot.safetensors"))
        cases = [p for p in expand(plans.load(str(folder / "plan.toml"))) if p.case.role in ("other_seeds", "candidate")]
        for forked in (True, False):
            monkeypatch.setattr(fork_server, "enabled", forked)
            request = TrialRequest(60.0, 2, plugins=(str(folder / "dot.py"),))
            found[forked] = [finished.outcome for finished in run_trials(cases, request, lambda planned: None)]
    timed = {"slope": 0, FULL_BESIDE: []}
    for one, other in zip(found[True], found[False], strict=True):
        assert one.ok, one.log
        assert one.output_hash == other.output_hash
        assert one.samples.keys() == other.samples.keys()
        assert all(one.samples[name] == other.samples[name] for name in ("psnr", "kl", "peak_memory") if name in one.samples)
        assert {**one.facts, **timed} == {**other.facts, **timed}


@pytest.mark.parametrize("way", ["forked", "as for a user"], indirect=True)
def test_a_process_that_is_killed_tells_its_parent(way: str) -> None:
    with subprocess.Popen(TRIAL, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert os.getpgid(process.pid) == os.getsid(process.pid) == process.pid
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(timeout=60) == -signal.SIGTERM
        assert process.stdout is not None
        assert process.stdout.read() == b""


def test_a_copy_has_the_surroundings_that_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, sys; print(os.getcwd(), dict(os.environ), sys.argv); sys.exit(7)"
    monkeypatch.setattr(fork_server, "CODE", {code})
    monkeypatch.setattr(fork_server, "enabled", True)
    given = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    command = [sys.executable, "-c", code, "x"]
    done = subprocess.run(command, cwd=tmp_path, env={**given, "A": "b"}, capture_output=True, text=True, check=False)
    assert done.returncode == 7
    assert done.stdout == f"{tmp_path} {({**given, 'A': 'b'})} {['-c', 'x']}\n"
