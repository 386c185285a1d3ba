"""What crosses to the process of a trial, and what both sides say where they do not understand each other."""

import json
import os
import struct
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import cachemark
from cachemark.core.errors import Infrastructure, Unsupported
from cachemark.core.facts import SetFacts
from cachemark.core.limits import Rates
from cachemark.machine.environment import KERNELS, environment
from cachemark.plans import schema as plans
from cachemark.plans.planned import Prepared
from cachemark.plans.reuse import Earlier, KnownSeeds
from cachemark.trial.identity import identify
from cachemark.trial.request import PARENT_ONLY, PROTOCOL, Task, TrialRequest
from cachemark.workflows.pairs import configs_of


@pytest.fixture
def planned() -> Prepared:
    (only,) = configs_of(plans.load("bundled"), "cpu", ["tiny-llamagen window 1/2"]).values()
    return only


def sent(request: TrialRequest) -> dict[str, Any]:
    """As it arrives."""
    data: dict[str, Any] = json.loads(json.dumps(request.to_json()))
    return data


def test_every_field_that_concerns_the_child_arrives(planned: Prepared, tmp_path: Path) -> None:
    earlier = Earlier("source", "tokens", "images", {"psnr": [1.0]}, {"fid_scene_2k": [2.0]}, SetFacts(intervals={}))
    known = KnownSeeds("source", str(tmp_path / "tokens"), "tokens", 8, 4, [1.0])
    full = replace(planned, unsupported_reason="no", feature_cache=tmp_path, full_features=tmp_path / "full", rates=Rates(1.0, 2.0),
                   reusable=earlier, known=known, known_full=known, engine_reason="no device", needs=("0123456789ab",))
    request = TrialRequest(1.0, 2, ("p.py",), Task.FEATURES, (1, 3), (0, 1), True, 4096, "gpu", "python", "code", (full,),
                           (("model.safetensors", 7, 8, "cafe"),))
    here = {name: getattr(TrialRequest(), name) for name in PARENT_ONLY}
    assert TrialRequest.from_json(sent(request)) == replace(request, **here)
    default = TrialRequest()
    assert all(getattr(request, f.name) != getattr(default, f.name) for f in fields(default)), "nothing is left at its default"


def test_a_copy_of_the_code_without_a_field_understands_what_it_is_sent(planned: Prepared) -> None:
    data = sent(TrialRequest(cases=(planned,)))
    assert "clip" not in data["cases"][0]["request"], "a default is not sent"
    data["of_a_later_version"] = data["cases"][0]["request"]["of_a_later_version"] = "x"
    assert TrialRequest.from_json(data) == TrialRequest(cases=(planned,))
    del data["memory_cap"]
    assert TrialRequest.from_json(data).memory_cap == 0


def test_a_child_refuses_another_protocol_in_a_sentence() -> None:
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


def test_code_of_another_protocol_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    """Another copy of the code, whose introduction is of protocol 99."""
    trial = tmp_path / "cachemark" / "trial"
    trial.mkdir(parents=True)
    for package in (trial.parent, trial):
        (package / "__init__.py").touch()
    (trial / "identity.py").write_text("def introduction(*_):\n    return {'protocol': 99}\n")
    with pytest.raises(Unsupported, match=f"{tmp_path} speaks protocol 99 .*protocol {PROTOCOL}.*Compare commits that share a protocol"):
        identify(TrialRequest(60.0, 1, code=str(tmp_path)), "cpu")


def test_this_copy_introduces_itself() -> None:
    where, code = identify(TrialRequest(60.0, 2), "cpu")
    assert where == environment("cpu", 2)
    assert code["version"] == cachemark.__version__


def test_an_interpreter_that_does_not_start_says_why(tmp_path: Path) -> None:
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


def test_a_child_gets_the_interpreter_and_the_code_of_its_side() -> None:
    assert TrialRequest(1.0, 2).command == [sys.executable, "-P"]
    assert "PYTHONPATH" not in TrialRequest(1.0, 2).environment or TrialRequest(1.0, 2).environment["PYTHONPATH"]
    other = TrialRequest(1.0, 2, python="/py", code="/code")
    assert other.command == ["/py", "-P"]
    assert other.environment["PYTHONPATH"].split(os.pathsep)[0] == "/code"
    assert other.environment["OMP_NUM_THREADS"] == "2"


def test_a_trial_gets_the_variables_of_a_list_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("PATH", "HOME", "LC_ALL", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "HF_HOME", "CACHEMARK_CALIBRATIONS", *KERNELS)
    withheld = ("DB_PASS", "GH_PAT", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "CACHEMARK_STORE", "MY_PATH_TOKEN", "PGPASSWORD")
    for name in (*given, *withheld):
        monkeypatch.setenv(name, "canary")
    passed = TrialRequest().environment
    assert set(given) <= passed.keys()
    assert {name for name, value in passed.items() if value == "canary"} <= set(given)
