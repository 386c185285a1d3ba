"""The nightly scripts: which commands run in which order, and the exit codes."""

import importlib
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from test_docs import resolve

ROOT = Path(__file__).parents[1]
WORKFLOWS = ROOT / ".github" / "workflows"
STUB = """#!/usr/bin/env bash
echo "$*" >>"$CALLS"
verb=$1
[ "$*" = "baseline commit" ] && echo "${HELD:-}"
for rule in $ENDS; do [ "${rule%%=*}" = "$verb" ] && exit "${rule##*=}"; done
exit 0
"""
SRUN = """#!/usr/bin/env bash
echo "$*" >"$CALLS.srun"
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
RUN = "run curves --device cuda --threads 4 --fresh --reuse-quality"


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a script with a stub of cachemark that logs its calls; ``ends``: exit code of each command."""
    (tmp_path / "bin").mkdir()
    for name, text in {"cachemark": STUB, "srun": SRUN}.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)

    def run(script: str, *arguments: str, **ends: int) -> tuple[int, list[str]]:
        calls = tmp_path / "calls"
        calls.unlink(missing_ok=True)
        environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "CALLS": str(calls),
                       "ENDS": " ".join(f"{verb}={code}" for verb, code in ends.items()), "CACHEMARK_OUT": str(tmp_path / "out"),
                       "SLURM_SUBMIT_DIR": str(ROOT), "VIRTUAL_ENV": str(tmp_path)}
        done = subprocess.run([str(ROOT / "ci" / script), *arguments], env=environment, capture_output=True, text=True, cwd=tmp_path)
        return done.returncode, calls.read_text().splitlines() if calls.exists() else []

    return run


@pytest.mark.parametrize("script", ["nightly.sh", "nightly.slurm"])
def test_a_night_looks_measures_judges_and_writes(night: Any, script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "6")
    code, calls = night(script, "curves", "--threads", "4")
    assert (code, calls[0].split()[0]) == (0, "doctor")
    assert calls[1:4] == [RUN, "test gate --device cuda --threads 4", "baseline commit"]
    assert re.fullmatch(r"check --incidents baselines/incidents\.json --propose \S+/out/proposed", calls[4])
    assert [call.split()[:2] for call in calls[7:]] == [["export", "github"], ["export", "csv"], ["export", "junit"]]
    assert [call.split()[0] for call in calls[5:7]] == ["report", "report"]
    assert "test" not in [call.split()[0] for call in night(script, "curves", "--no-self-test")[1]]
    if script.endswith("slurm"):  # from Slurm 22.05 on, srun does not inherit --cpus-per-task
        assert (tmp_path / "calls.srun").read_text().split()[:2] == ["--ntasks=1", "--cpus-per-task=6"]


@pytest.mark.parametrize(("settings", "expected"), [
    ({"HELD": "abc123", "CACHEMARK_PAIRS": "--plugin 'my method.py'"},
     "compare curves --commits abc123 HEAD --device cuda --minutes 60 --plugin my method.py"),
    ({"HELD": "abc123", "CACHEMARK_CANARY": "none"}, ""),
    ({"CACHEMARK_CANARY": "v1", "CACHEMARK_MACHINE": "--gpu 1 --lock-clocks 1410", "CACHEMARK_INCIDENTS": "kept/incidents.json"},
     "compare curves --commits v1 HEAD --device cuda --gpu 1 --lock-clocks 1410 --minutes 60"),
])
def test_pairs_are_measured_with_the_commit_of_the_baseline_unless_another_or_none_is_named(
    settings: dict[str, str], expected: str, night: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    calls = night("nightly.sh", "curves")[1]
    assert [call for call in calls if call.startswith("compare")] == ([expected] if expected else [])
    assert any(call.startswith(f"check --incidents {settings.get('CACHEMARK_INCIDENTS', 'baselines/incidents.json')} ") for call in calls)
    for call in calls:
        if "my method" not in call:
            resolve(importlib.import_module("cachemark.cli").main, shlex.split(call))


@pytest.mark.parametrize(("ends", "canary", "code"), [
    ({"check": 3}, "", 3), ({"check": 2}, "", 2), ({"run": 4}, "", 4),
    ({"run": 4, "check": 1}, "", 1),  # it ran out of time, and is judged by what it measured
    ({"report": 5}, "", 5), ({"report": 5, "check": 1}, "", 1),  # stops nothing and is no pass
    ({"compare": 1}, "v1", 0), ({"compare": 2}, "v1", 2),  # without pairs, times would not be tested
    ({"compare": 5, "check": 1}, "v1", 1), ({"test": 1}, "", 5), ({"run": 1}, "", 1),  # a run that failed is not judged
])  # fmt: skip
def test_a_night_ends_as_its_worst_step_and_still_writes_the_report(
    ends: dict[str, int], canary: str, code: int, night: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CACHEMARK_CANARY", canary)
    ended, calls = night("nightly.sh", "curves", **ends)
    assert ended == code
    if ends.get("run", 4) != 4:
        assert len(calls) == 2
        return
    assert sum(call.startswith("report") for call in calls) == 2
    judged = ends.get("check", 0) not in (2, 4)
    assert any(call.startswith("export junit") for call in calls) == judged, "without something to compare with there is no JUnit"


def workflow(name: str = "nightly-gpu") -> dict[Any, Any]:
    return dict(yaml.safe_load((WORKFLOWS / f"{name}.yml").read_text(encoding="utf-8")))


def test_its_measuring_job_can_only_read_and_the_other_runs_nothing_of_the_checkout() -> None:
    config = workflow()
    assert set(config[True]) == {"schedule", "workflow_dispatch"}  # YAML 1.1 reads `on` as true
    assert config["permissions"] == {"contents": "read"}
    measure, publish = config["jobs"]["measure"], config["jobs"]["publish"]
    assert "permissions" not in measure
    assert (publish["runs-on"], publish["permissions"]) == ("ubuntu-latest", {"actions": "read", "pull-requests": "write"})
    assert not [step for step in publish["steps"] if "checkout" in step.get("uses", "")]
    (checkout,) = [step for step in measure["steps"] if "checkout" in step.get("uses", "")]
    assert checkout["with"] == {"persist-credentials": False, "fetch-depth": 0}
    assert "--constraint constraints.txt" in " ".join(step.get("run", "") for step in measure["steps"])
    used = set(re.findall(r"\$\{(CACHEMARK_\w+)", (ROOT / "ci" / "nightly.sh").read_text()))
    passed = set().union(*(step.get("env", {}) for step in measure["steps"]))
    assert used - passed == {"CACHEMARK_DEVICE"}, "a runner of this workflow has a GPU"
    notify = config["jobs"]["notify"]
    assert (notify["if"], notify["permissions"]) == ("failure() && github.event_name == 'schedule'", {"issues": "write"})


@pytest.mark.parametrize("name", sorted(file.stem for file in WORKFLOWS.glob("*.yml")))
def test_its_actions_are_pinned_and_no_text_of_others_is_put_into_a_script(name: str) -> None:
    for step in (step for job in workflow(name)["jobs"].values() for step in job["steps"]):
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step.get("uses", f"x/y@{'0' * 40}"))
        assert "${{" not in step.get("run", "")


def test_what_ci_and_the_images_install_has_hashes() -> None:
    locked, image = ((ROOT / "ci" / f"{name}.txt").read_text().splitlines() for name in ("locked", "locked-image"))
    assert all(re.fullmatch(r"[\w.-]+==[\w.+]+( --hash=sha256:[0-9a-f]{64})+", line) for line in (*locked, *image))
    pins = [line.lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    assert [line.split()[0] for line in locked] == sorted(pins, key=lambda pin: pin.partition("==")[0])
    assert set(image) <= set(locked)
    made = [step["run"] for name in ("ci", "nightly") for job in workflow(name)["jobs"].values() for step in job["steps"]
            if step.get("run", "").startswith("make ")]
    assert len(made) == 4
    assert all(command.endswith(" LOCKED=1") for command in made)
    installs = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if "pip install" in line]
    assert [line for line in installs if "--index-url" not in line and "--require-hashes" not in line] == [
        "RUN /opt/cachemark/bin/pip install --no-deps --no-build-isolation '.[quality]'"]


def test_the_image_is_pinned_runs_without_root_and_is_built_every_night() -> None:
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    (base,) = [line for line in lines if line.startswith("ARG PYTHON=")]
    assert re.fullmatch(r"ARG PYTHON=python:3\.11\.\d+-slim-\w+@sha256:[0-9a-f]{64}", base)
    assert [line for line in lines if line.startswith("FROM")] == ["FROM ${PYTHON} AS build", "FROM ${PYTHON}"]
    assert [line for line in lines if line.startswith("USER")][-1] == "USER 1000"
    allowed = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {name for line in lines if line.startswith("COPY") and "--from" not in line for name in line.split()[1:-1]}
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)
    image = workflow("nightly")["jobs"]["image"]
    assert (image["strategy"]["matrix"], image["env"]) == ({"device": ["cpu", "cuda"]}, {"DEVICE": "${{ matrix.device }}"})
    build, *runs = [line for step in image["steps"] for line in step.get("run", "").splitlines()]
    assert build == 'docker build --build-arg "DEVICE=$DEVICE" --tag "cachemark:$DEVICE" .'
    for command in runs:
        before, _, call = command.partition('"cachemark:$DEVICE" ')
        assert before == "docker run --rm "
        resolve(importlib.import_module("cachemark.cli").main, shlex.split(call))


def test_the_smoke_list_names_tests_that_are_there_and_has_every_room() -> None:
    lines = (ROOT / "tests" / "smoke.txt").read_text().splitlines()
    for line in lines:
        file, _, test = line.partition("::")
        assert f"def {test.partition('[')[0] or 'test_'}" in (ROOT / file).read_text(), line
    rooms = {path.name for path in (ROOT / "suite" / "cachemark").iterdir() if (path / "__init__.py").exists()} - {"data"}
    text = "\n".join((ROOT / line.partition("::")[0]).read_text() for line in lines)
    assert [room for room in sorted(rooms) if f"cachemark.{room}" not in text] == []
