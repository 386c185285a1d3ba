"""Suggested commands contain the given store and plug-ins."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from cachemark.store.db import Store
from support import stages
from support.stages import Stage, call

from .test_commands import good


@pytest.fixture(autouse=True)
def _no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    stages.no_child(monkeypatch)


def printed_command(text: str, name: str) -> list[str]:
    """The arguments of the command of that name in a text, as far as its line goes."""
    line = next(line for line in text.splitlines() if f"cachemark {name}" in line)
    return shlex.split(line[line.index(f"cachemark {name}") :].removeprefix("cachemark "))


def test_a_remedy_names_the_store_that_was_given(stage: Stage) -> None:
    result = call("check", "--store", stage.store)
    assert result.exit_code == 2
    good(call(*printed_command(result.stderr, "baseline save")))
    assert call("check", "--store", stage.store).exit_code == 0


def test_a_store_that_the_environment_names_is_not_repeated(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEMARK_STORE", str(stage.store))
    assert "Make one with: cachemark baseline save\n" in call("check").stderr


def test_how_to_accept_a_proposal_names_the_store(stage: Stage) -> None:
    store = stage.store.rename(stage.folder / "a store.sqlite")
    text = good(call("check", "--store", store, "--propose", "proposed"))
    assert printed_command(text, "baseline") == ["baseline", "save", "--store", str(store), "--run", "1"]
    good(call(*printed_command(text, "baseline")))


def test_a_remedy_names_the_plug_ins_that_were_given(stage: Stage) -> None:
    block = '\n[[cells]]\nmodel = "tiny-llamagen"\nmethods = ["window"]\nbudgets = ["1/4"]\nbatch = 2\n'
    stage.plan.write_text(stage.plan.read_text() + block)
    given = ("--plugin", str(stage.plugin), "--store", str(stage.store))
    result = call("compare", stage.plan, *given, "--cases", "streaming 1/2", "window 1/4")
    assert "No model of plan dots has both" in result.stderr
    command = printed_command(result.stderr, "explain")
    assert command == ["explain", *given, "PLAN"]
    assert "window 1/4" in good(call(*(str(stage.plan) if word == "PLAN" else word for word in command)))


def test_names_and_folders_of_baselines_are_kept(stage: Stage) -> None:
    result = call("baseline", "promote", "--store", stage.store, "--root", "kept", "--name", "mine", "--reason", "better")
    assert f"cachemark baseline save --store {stage.store} --root kept --name mine\n" in result.stderr
    assert "cachemark baseline save --root kept\n" in good(call("baseline", "list", "--root", "kept"))


def test_only_options_that_a_command_has_are_added(stage: Stage) -> None:
    """`doctor` has no store."""
    result = call("run", stage.plan, "--plugin", stage.plugin, "--store", stage.store, "--device", "cuda")
    if result.exit_code == 5:
        assert "see `cachemark doctor`" in result.stderr
    assert "doctor --" not in result.stderr


def test_an_open_store_knows_no_command_line(stage: Stage, tmp_path: Path) -> None:
    Store.open(tmp_path / "empty.sqlite").close()
    assert f"Run: cachemark run --store {tmp_path / 'empty.sqlite'} PLAN" in call("show", "--store", tmp_path / "empty.sqlite").stderr
