"""Stored cases are not measured again, and an interrupted run keeps complete cases."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from cachemark.core.result import Outcome, Status
from cachemark.plans import schema as plans
from cachemark.store.db import Store
from cachemark.trial.executors import local
from cachemark.trial.executors.local import Executor, Local
from cachemark.trial.measurement import Measurement, outcome_of
from cachemark.trial.request import TrialRequest
from cachemark.trial.supervisor import Finished
from cachemark.workflows.price import explain
from cachemark.workflows.run import PlanRunner, share
from cachemark.workflows.run import run as measure
from cachemark.workflows.session import Machine
from support import examples, stages, stub
from support.stages import Stage

LABELS = ["full", "full (other seeds)", "full (other batch)", "streaming 1/2", "calm 1/2"]
DONE = "done: same case, code, metric definitions and numerics"


@pytest.fixture
def stage(measured: Stage, tmp_path: Path) -> Stage:
    """A run that can be gone on with."""
    return measured.copy(tmp_path / "copy")


def explained(stage: Stage, *more: str) -> dict[str, tuple[str, str]]:
    """What ``explain`` prints: action and reason by label."""
    result = stage.call("explain", "--json", *more)
    assert result.exit_code == 0, result.output
    return {row["label"]: (row["action"], row["reason"]) for row in json.loads(result.stdout)}


MORE = """
from dataclasses import dataclass
from typing import ClassVar
import cachemark as cm
from cachemark.methods.registry import METHODS

Calm = METHODS.get("calm")


@cm.method("tranquil")
@dataclass
class Tranquil(Calm):
    name: ClassVar[str] = "tranquil"
"""


def with_more(stage: Stage, text: str = MORE) -> tuple[str, str]:
    """Options that load a second plug-in, whose edits affect only its own methods."""
    file = stage.folder / "more.py"
    file.write_text(text)
    return "--plugin", str(file)


def edit(file: Path, old: str, new: str) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


# -- what runs and why ---------------------------------------------------------------------------------------------------
def test_nothing_is_measured_twice_and_no_process_started(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each case of the first run had a process to itself, since the model is a plug-in's."""
    with Store.open(stage.store, create=False, read_only=True) as store:
        assert list(store.trials(1).values()) == [f"{number + 1} of run 1" for number in range(len(LABELS))]
    stages.no_child(monkeypatch)
    before = stage.store.read_bytes()
    assert explained(stage) == dict.fromkeys(LABELS, ("skip", DONE))
    assert explained(stage, "--fresh") == dict.fromkeys(LABELS, ("run", "--fresh"))
    assert (stage.store.read_bytes(), stage.states()) == (before, ["finished"]), "explain changes nothing"
    result = stage.run()
    assert result.exit_code == 0
    assert result.stdout.startswith("Run 2: 0 measured, 0 failed, 5 skipped.\n")
    assert result.stderr == "5 cases: 5 already measured, 0 to run.\n"
    assert stage.states() == ["finished", "finished"]
    assert stage.outcomes(2) == stage.outcomes(1)


def test_explain_says_that_nothing_is_stored_and_makes_no_store(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stages.no_child(monkeypatch)
    stage.store.unlink()
    for where in ((), ("--store", f"sqlite:///{stage.store}")):
        assert explained(stage, *where) == dict.fromkeys(LABELS, ("run", "nothing is stored yet"))
        assert not stage.store.exists()


def test_explain_names_what_changed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stages.no_child(monkeypatch)
    assert set(explained(stage, "--threads", "3").values()) == {("run", "changed since: numerics (threads 1 → 3)")}
    edit(stage.plan, 'name = "dots"', 'name = "others"')
    assert set(explained(stage).values()) == {("skip", DONE)}, "a plan's name changes no number"
    edit(stage.plan, '"streaming"', '{ name = "streaming", sinks = 2 }')
    found = explained(stage)
    assert found["streaming 1/2"][0] == "run"
    assert found["streaming 1/2"][1].startswith("no such case; the nearest stored one differs in parameters")
    assert {found[label] for label in LABELS if label != "streaming 1/2"} == {("skip", DONE)}
    edit(stage.plugin, "7.5 - 1", "7.5 - 1.0")
    assert {found for label, found in explained(stage).items() if label != "streaming 1/2"} == {
        ("run", "changed since: models"), ("run", "changed since: method, models")}


def test_explain_names_a_memory_cap_that_is_gone(tmp_path: Path) -> None:
    given: dict[str, Any] = {"plan": random_plan(), "store": tmp_path / "s.sqlite"}
    machine = Told("cpu", 1, memory_cap=1 << 30)
    measure(**given, machine=machine)
    for cap, reason in ((1 << 30, DONE), (0, "changed since: memory_cap"), (2 << 30, "changed since: memory_cap")):
        found = explain(**given, machine=replace(machine, memory_cap=cap))
        assert {why for _, why in found} == {reason}


def test_changed_code_is_measured_again_and_nothing_else(stage: Stage) -> None:
    for number, text in ((2, MORE), (3, MORE + "# edited\n")):
        more = with_more(stage, text)
        reasons = explained(stage, *more)
        assert reasons["tranquil 1/2"][1].startswith("no such case" if number == 2 else "changed since: method")
        assert {reasons[label] for label in LABELS} == {("skip", DONE)}
        result = stage.run(*more)
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith(f"Run {number}: 1 measured, 0 failed, 5 skipped.\n")
        assert list(stage.outcomes(number)) == [*LABELS, "tranquil 1/2"]
        with Store.open(stage.store, read_only=True, create=False) as store:
            assert store.reused(number) == {stage.outcomes(number)[label].case.key for label in LABELS}


def test_fresh_measures_everything_again(stage: Stage) -> None:
    result = stage.run("--fresh", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert {name: found[name] for name in found if name != "answers"} == {"run": 2, "ran": 5, "skipped": 0, "report": None, "not_ok": []}
    old, new = stage.outcomes(1), stage.outcomes(2)
    for label in LABELS:
        assert new[label].output_hash == old[label].output_hash
    assert new["full"].samples["latency"] != old["full"].samples["latency"]


# -- interruptions --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)])
def test_an_ended_run_goes_on_where_it_was(sent: signal.Signals, code: int, stage: Stage) -> None:
    """Killed during its last case; after SIGKILL, readers see it when its heartbeats have lapsed."""
    more = with_more(stage, MORE + "import os\n" + examples.WAITS)
    edit(stage.plan, '"streaming"', '"streaming", "calm", "tranquil", "waits"')
    hold, reached = (Path(f"{more[1]}.{name}") for name in ("hold", "reached"))
    hold.touch()
    process = stage.start(*more)
    assert process.stderr is not None
    told = [process.stderr.readline() for _ in range(2)]
    assert told[0] == "7 cases: 5 already measured, 2 to run.\n"
    assert told[1].startswith("[1/2] dot tranquil 1/2: ok")
    stages.until(reached.exists, "the case that waits")
    process.send_signal(sent)
    out, err = process.communicate(timeout=stages.PATIENCE)
    assert process.returncode == code
    assert out == ""
    if sent is signal.SIGINT:
        assert err == "\nInterrupted. Completed work is stored; run the same command to resume.\n"
    elif sent is not signal.SIGKILL:
        assert err == f"Ended by {sent.name}. Completed work is stored; run the same command to resume.\n"

    child = int(reached.read_text())
    stages.until(lambda: stages.ended(child), "the end of the child")
    assert stage.whole()
    state = "running" if sent is signal.SIGKILL else "interrupted"
    assert stage.states() == ["finished", state]
    assert list(stage.outcomes(2)) == [*LABELS, "tranquil 1/2"]
    assert explained(stage, *more)["waits 1/2"][0] == "run"

    hold.unlink()
    result = stage.run(*more)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Run 3: 1 measured, 0 failed, 6 skipped.\n")
    assert stage.states() == ["finished", state, "finished"]
    assert list(stage.outcomes(3)) == [*LABELS, "tranquil 1/2", "waits 1/2"]


# -- the store ------------------------------------------------------------------------------------------------------------
@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stub worker processes; returns the cases of each."""
    asked: list[list[str]] = []

    def trials(planned: Any, options: TrialRequest, started: Any, **_: Any) -> Any:
        asked.append([p.case.label for p in planned])
        for p in planned:
            started(p)
            yield Finished(outcome_of(p, Measurement(Status.ERROR, log="not run")), {})

    monkeypatch.setattr(local, "run_trials", trials)
    return asked


def random_plan(trial: str = "") -> plans.Plan:
    cells = [{"model": "llamagen-b", "methods": ["window", "streaming"]}, {"model": "llamagen-l", "methods": ["window"]}]
    return plans.Plan.model_validate({"name": "p", "cells": cells} | ({"trial": trial} if trial else {}))


@pytest.mark.parametrize(("trial", "groups"), [
    ("model", [["full", "window 1/2", "streaming 1/2"], ["full", "window 1/2"]]),
    ("case", [["full"], ["window 1/2"], ["streaming 1/2"], ["full"], ["window 1/2"]]),
])  # fmt: skip
def test_a_process_is_shared_by_the_cases_of_a_model_or_by_none(
    trial: str, groups: list[list[str]], told: list[list[str]], tmp_path: Path,
) -> None:
    with Store.open(tmp_path / "s.sqlite") as store:
        PlanRunner(random_plan(trial), store, Local()).measure()
    assert told == groups


def test_a_run_whose_store_fails_is_failed(told: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = Store.save

    def broken(store: Store, run_id: int, outcome: Outcome, *given: Any, **named: Any) -> int:
        if outcome.case.label == "streaming 1/2":
            raise OSError("the disk is full")
        return save(store, run_id, outcome, *given, **named)

    monkeypatch.setattr(Store, "save", broken)
    with Store.open(tmp_path / "s.sqlite") as store:
        with pytest.raises(OSError, match="the disk is full"):
            PlanRunner(random_plan(), store, Local()).measure()
        assert store.run().state == "failed"
        assert [o.case.label for o in store.outcomes(1)] == ["full", "window 1/2"]


@dataclass(frozen=True)
class Told(Machine):
    """A machine whose trials measure nothing; ``caches`` are the folders for features of each of them."""

    caches: list[set[Path | None]] = field(default_factory=list)

    @contextmanager
    def places(self, store: Store | None = None) -> Iterator[Executor]:
        caches = self.caches

        class Stub(stub.Stub):
            def run(self, groups: Any, request: TrialRequest, *given: Any) -> Iterator[Finished]:
                caches.append({planned.feature_cache for group in groups for planned in group})
                return super().run(groups, request, *given)

        yield Stub()  # type: ignore[misc]


def quality_plan() -> plans.Plan:
    """Two cases with a quality pass."""
    quality = {"samples": 256, "batch": 4, "preset": "scene", "seeds": "s256"}
    return plans.Plan.model_validate({"name": "p", "quality": quality, "cells": [{"model": "tiny-llamagen", "methods": ["window"]}]})


def test_a_share_that_no_device_was_left_for_was_not_made(tmp_path: Path) -> None:
    lost = Local()
    lost._rejects[0] = local.REJECTS
    with Store.open(tmp_path / "s.sqlite") as store:
        failed = PlanRunner(quality_plan(), store, lost).make_share((0, 2))
    assert [(o.case.label, o.status) for o in failed] == [("full", Status.NOT_REACHED), ("window 1/2", Status.NOT_REACHED)]


def test_a_share_under_a_memory_cap_is_for_the_run_under_that_cap(tmp_path: Path) -> None:
    plan, machine = quality_plan(), Told("cpu", 1, memory_cap=1 << 30)
    share(plan, (0, 2), tmp_path / "s.sqlite", machine=machine)
    measure(plan, tmp_path / "s.sqlite", machine=machine)
    shared, run = machine.caches
    assert len(shared) == 2
    assert shared <= run
