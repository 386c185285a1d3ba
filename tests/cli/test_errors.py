"""Errors are one short message with slug and exit code, raised before a store or process exists."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import Result
from safetensors.torch import save_file

from cachemark.cli import main
from cachemark.core.result import Status
from cachemark.models.catalogue.next_token import TINY
from cachemark.models.llamagen import LlamaGen
from cachemark.models.tiny import tiny_vq as vq
from cachemark.store.db import Store
from cachemark.trial.executors import local
from cachemark.trial.measurement import Measurement, outcome_of
from cachemark.trial.supervisor import Finished
from support import bad_plans, examples, stages
from support.stages import Stage, call


def refused(result: Result, slug: str, *words: str, code: int = 2) -> None:
    """One of our errors: two lines, nothing on standard output, no traceback."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    said, where = result.stderr.splitlines()
    assert said.startswith("cachemark: ")
    assert where == f"  [{slug}; see docs/errors.md#{slug}]"
    for text in words:
        assert text in said
    assert "\x1b" not in result.stderr


@pytest.fixture(autouse=True)
def _no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    stages.no_child(monkeypatch)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A stage without any run."""
    return stages.stage(tmp_path / "stage")


def untouched(stage: Stage) -> bool:
    return not [file for file in stage.folder.iterdir() if file.name.startswith(stage.store.name)]


# ------------------------------------------------------------------------------------------------ plans

@pytest.mark.parametrize("bad", bad_plans.BAD[::6], ids=bad_plans.name)
@pytest.mark.parametrize("command", ["run", "explain"])
def test_a_wrong_plan_makes_no_database(bad: bad_plans.Bad, command: str, stage: Stage) -> None:
    stage.plan.write_text(bad.text)
    refused(stage.call(command), bad.kind.slug, *bad.words)
    assert untouched(stage)


@pytest.mark.parametrize(("plan", "slug"), [("nowhere.toml", "bad-plan"), ("dmeo", "unknown-name"), (".", "unknown-name")])
def test_a_plan_that_is_not_there(plan: str, slug: str) -> None:
    refused(call("run", plan), slug)
    assert not list(Path().iterdir())


def test_a_method_that_is_not_there(stage: Stage) -> None:
    refused(stage.run("--method", "clam"), "unknown-name", "cachemark: --method clam: Unknown method 'clam'", "Did you mean 'calm'?")
    assert untouched(stage)


def test_a_plan_without_quality_has_nothing_to_share(stage: Stage) -> None:
    refused(stage.call("share", "1/2"), "unsupported", "No case of plan dots has a quality pass", "A table [quality]")
    assert untouched(stage)


# ------------------------------------------------------------------------------------------------ weights

def another_size(path: Path) -> None:
    smaller = LlamaGen(replace(TINY, layers=TINY.layers - 1))
    save_file(smaller.state_dict(), path)


def decoder(path: Path, **changes: int) -> None:
    state = vq.TinyVQ(vq.TinyVQConfig()).state_dict()
    save_file(state, path, metadata={"cachemark": json.dumps(vq.metadata(vq.TinyVQConfig(**changes)))})


WRONG: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "another size": ("weights", another_size),
    "another model": ("decoder_weights", another_size),
    "decoder of another size": ("decoder_weights", lambda path: decoder(path, width=64)),
}


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints that fit the bundled model."""
    folder = tmp_path_factory.mktemp("right")
    save_file(LlamaGen(TINY).state_dict(), folder / "weights.safetensors")
    decoder(folder / "decoder_weights.safetensors")
    return {file.stem: file for file in folder.iterdir()}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_checkpoint_is_refused_before_the_database_is_made(wrong: str, right: dict[str, Path], stage: Stage) -> None:
    key, make = WRONG[wrong]
    file = stage.folder / "wrong.safetensors"
    make(file)
    lines = "".join(f'{name} = "{path}"\n' for name, path in (right | {key: file}).items())
    stage.plan.write_text(f'name = "tiny"\n[[cells]]\nmodel = "tiny-llamagen"\nmethods = ["window"]\n{lines}')
    refused(stage.run(), "bad-checkpoint", f"{stage.plan}:", str(file))
    assert untouched(stage)


# ------------------------------------------------------------------------------------------------ plug-ins

@pytest.mark.parametrize(("text", "words"), [
    (None, "is not a file"), ("def (:\n", "dot.py:1: SyntaxError"), ("x = 1\n\nx.y\n", "dot.py:3: AttributeError"),
    ("x = 1\n", "registers no method, no model, no decoder and no metric"),
])  # fmt: skip
def test_a_bad_plug_in(text: str | None, words: str, stage: Stage) -> None:
    stage.plugin.unlink() if text is None else stage.plugin.write_text(text)
    refused(stage.run(), "bad-plugin", words)
    assert untouched(stage)


# ------------------------------------------------------------------------------------------------ stores

def newer(path: Path) -> None:
    Store.open(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE cachemark_version SET version_num = '9999'")


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE invoices (id)")


def cut(path: Path) -> None:
    Store.open(path).close()
    path.write_bytes(path.read_bytes()[:5000])


STORES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "newer schema": (newer, "9999"),
    "another program's": (foreign, "invoices"),
    "no database": (lambda path: path.write_text("not a database, but long enough to be taken for one " * 20), "not an SQLite database"),
    "cut off": (cut, ""),
    "a folder": (lambda path: path.mkdir(), "is a directory"),
}
READERS = [["report"], ["show"], ["check"], ["list", "runs"], ["baseline", "save"]]


@pytest.mark.parametrize("command", [["run"], ["show"]], ids=" ".join)
@pytest.mark.parametrize("bad", STORES)
def test_a_bad_store(bad: str, command: list[str], stage: Stage) -> None:
    make, words = STORES[bad]
    make(stage.store)
    before = stage.store.read_bytes() if stage.store.is_file() else b""
    refused(stage.run() if command == ["run"] else call(*command, "--store", stage.store), "bad-store", str(stage.store), words)
    assert (stage.store.read_bytes() if stage.store.is_file() else b"") == before


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_a_store_that_is_not_there_is_not_made(command: list[str], stage: Stage) -> None:
    refused(call(*command, "--store", stage.store), "bad-store", "There is no store")
    assert untouched(stage)


@pytest.mark.parametrize(("path", "words"), [
    ("/proc/dots.sqlite", "cannot be opened or created"), ("nowhere/dots.sqlite", "does not exist"), ("mysql://x/y", "'mysql'"),
])  # fmt: skip
def test_a_store_that_cannot_be_made(path: str, words: str, stage: Stage) -> None:
    if path.startswith("/proc") and not Path("/proc/self").exists():
        pytest.skip("needs /proc, where nobody may make a file")
    refused(call("run", stage.plan, "--plugin", stage.plugin, "--store", path), "bad-store", words)


@pytest.mark.parametrize("command", [["report"], ["show"], ["check"], ["baseline", "save"]], ids=" ".join)
def test_a_run_that_is_not_there(command: list[str], measured: Stage, stage: Stage) -> None:
    refused(call(*command, "--store", measured.store, "--run", 99), "bad-store", "There is no run 99", "The newest is 1.")
    Store.open(stage.store).close()
    refused(call(*command, "--store", stage.store), "nothing-measured", "holds no run", code=4)


# ------------------------------------------------------------------------------------------------ the rest

@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_missing_gpu_is_the_machines_fault(stage: Stage) -> None:
    refused(stage.run("--device", "cuda"), "infrastructure", "no CUDA device", code=5)
    assert untouched(stage)


def test_a_run_that_measured_nothing_fails(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def trials(planned: Any, *_: object, **__: object) -> Any:
        yield from (Finished(outcome_of(p, Measurement(Status.ERROR, log="[/bold] first line\nlast line")), {}) for p in planned)

    monkeypatch.setattr(local, "run_trials", trials)
    result = stage.run()
    assert result.exit_code == 4
    assert result.stdout == "Run 1: 0 measured, 5 failed, 0 skipped.\n"
    assert "[1/5] dot full: error, 0.0 s\n    [/bold] first line\n" in result.stderr
    assert "[nothing-measured; " in result.stderr
    assert stage.states() == ["finished"]


@pytest.mark.parametrize(("arguments", "words"), [
    (["rnu"], "No such command 'rnu'. Did you mean 'run'?"),
    (["run"], "Missing argument 'PLAN'"),
    (["run", "demo", "--bogus"], "No such option '--bogus'"),
    (["run", "demo", "--threads", "0"], "0 is not in the range"),
    (["run", "demo", "--device", "tpu"], "'tpu' is not one of"),
    (["list", "model"], "Invalid value for 'KIND': 'model' is not one of"),
    (["--verbose"], "--verbose"),
    (["check", "--threshold", "0"], "0.0 is not in the range"),
    (["check", "--min-coverage", "2"], "2.0 is not in the range"),
    (["baseline", "svae"], "svae"),
    (["share", "demo", "2"], "'2' is not a share"),
    (["run", "demo", "--until-decided", "--fresh", "--reuse-quality"], "cannot be combined with --until-decided"),
    (["price", "demo", "--on", "tpu"], "'tpu' is not one of"),
    (["run", "demo", "--reuse-quality"], "--reuse-quality needs --fresh"),
    (["run", "demo", "--gpu", "all"], "Add --device cuda"),
    (["compare", "demo", "--cases", "a", "b", "--gpu", "0", "--lock-clocks", "1410"], "Add --device cuda"),
    (["run", "demo", "--memory-cap", "24"], "write 24GiB"),
    (["baseline", "promote"], "Missing option '--reason'"),
    (["baseline", "rebase"], "Missing option '--reason'"),
    (["report", "--days", "3"], "--days needs --site."),
    (["report", "page.html", "--site", "pages"], "Leave out PATH"),
])  # fmt: skip
def test_a_wrong_call_is_a_usage_error(arguments: list[str], words: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Usage: " in result.stderr
    assert result.stdout == ""
    assert not list(Path().iterdir())


def walked(command: click.Command, name: str) -> Iterator[tuple[str, click.Parameter]]:
    """Every option and argument of the command line, with the name of its command."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from walked(found, f"{name} {inner}")
    yield from ((name, parameter) for parameter in command.params)


def test_what_is_required_is_asked_for() -> None:
    """click takes an option that has a default, None too, for one that can be left out."""
    required = [(name, parameter) for name, parameter in walked(main, "cachemark") if parameter.required]
    assert ("cachemark baseline promote", "reason") in {(name, parameter.name) for name, parameter in required}
    for name, parameter in required:
        with pytest.raises(click.MissingParameter):
            parameter.process_value(click.Context(click.Command(name)), parameter.get_default(click.Context(click.Command(name))))


@pytest.mark.parametrize("group", [[], ["baseline"], ["export"], ["weights"]], ids=" ".join)
def test_a_group_without_a_command_shows_its_help(group: list[str]) -> None:
    result = call(*group)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == call(*group, "--help").stdout


def test_messages_are_short(stage: Stage) -> None:
    """The longest text that a plan can provoke is cut."""
    stage.plan.write_text(examples.plan_text("3").replace('"dots"', f"[{'1, ' * 5000}]"))
    result = stage.run()
    refused(result, "bad-plan")
    assert len(re.sub(re.escape(str(stage.folder)), "", result.stderr)) < 400
