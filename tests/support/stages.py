"""The command line on the small model: in this process, as if it were a process of its own, or in one."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from cachemark.cli import main
from cachemark.core import registry
from cachemark.core.result import Outcome
from cachemark.methods.registry import METHODS
from cachemark.models.registry import MODELS
from cachemark.store.db import Store

from . import examples, fork_server

LABELS = ["full", "full (other seeds)", "full (other batch)", "streaming 1/2", "calm 1/2"]  # of the plan of a stage
PATIENCE = 120.0  # seconds until a test gives up on another process; nothing is concluded from how long it took


@contextmanager
def forgetting() -> Iterator[None]:
    """Forget what happens inside as the end of a process would: methods and models of plug-ins and of tests, and hashes of code."""
    loaded = set(sys.modules)
    try:
        yield
    finally:
        for table in (METHODS, MODELS, registry.metrics):
            for name, thing in table.entries().items():
                if not getattr(thing, "load", thing).__module__.startswith(("cachemark.", "functools")):
                    del table._entries[name]
        for name in [n for n in list(sys.modules) if n.startswith("cachemark_plugin_") and n not in loaded]:
            del sys.modules[name]


def call(*arguments: object) -> Result:
    """``cachemark`` with these arguments. Anything but an ordinary exit is raised."""
    with forgetting():
        result = CliRunner().invoke(main, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def good(result: Result) -> str:
    """Return standard output of a command that succeeded."""
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    return result.stdout


def data(result: Result) -> Any:
    return json.loads(good(result))


def whole(store: Path) -> bool:
    with closing(sqlite3.connect(store)) as connection:
        sound = connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return sound and not connection.execute("PRAGMA foreign_key_check").fetchall()


@dataclass(frozen=True)
class Stage:
    """A folder with a plug-in, a plan over its model, and a place for results."""

    folder: Path
    plugin = property(lambda self: self.folder / "dot.py")
    plan = property(lambda self: self.folder / "dots.toml")
    store = property(lambda self: self.folder / "dots.sqlite")
    weights = property(lambda self: self.folder / "dot.safetensors")

    @property
    def run_arguments(self) -> list[str]:
        return ["run", str(self.plan), "--plugin", str(self.plugin), "--store", str(self.store), "--threads", "1"]

    def run(self, *more: object) -> Result:
        return call(*self.run_arguments, *more)

    def call(self, command: str, *more: object) -> Result:
        """Call another command on the plan: ``explain``, ``price``, ``share`` or ``max-batch``."""
        return call(command, *self.run_arguments[1:], *more)

    def start(self, *more: str) -> subprocess.Popen[str]:
        """Measure the plan in a process of its own, as from a shell: Ctrl-C reaches it even where the tests run in the background."""
        command = [sys.executable, "-c", fork_server.COMMAND_LINE, *self.run_arguments, *more]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder,
                                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))

    def outcomes(self, run: int | None = None) -> dict[str, Outcome]:
        with Store.open(self.store, create=False, read_only=True) as store:
            return {o.case.label: o for o in store.outcomes(store.run(run).id)}

    def states(self) -> list[str]:
        with Store.open(self.store, create=False, read_only=True) as store:
            return [run.state for run in reversed(store.runs())]

    def whole(self) -> bool:
        return whole(self.store)

    def copy(self, folder: Path) -> Stage:
        """The same things elsewhere, to be changed."""
        shutil.copytree(self.folder, folder)
        other = replace(self, folder=folder)
        other.plan.write_text(self.plan.read_text().replace(str(self.folder), str(folder)))
        return other


def stage(folder: Path, methods: str = '"streaming"', plugin: str = examples.MODEL, **plan: object) -> Stage:
    """A stage on which nothing has been run."""
    made = Stage(folder)
    folder.mkdir(parents=True, exist_ok=True)
    made.plugin.write_text(plugin)
    examples.weights(made.weights)
    made.plan.write_text(examples.plan_text(methods, weights=made.weights, **plan))  # type: ignore[arg-type]
    return made


@functools.cache
def measured(base: Path) -> Stage:
    """A stage whose plan has been run: full, its two reference rows, streaming, and the plug-in's calm. Not to be changed."""
    made = stage(base / "measured")
    result = made.run()
    assert result.exit_code == 0, result.output
    return made


def until(happened: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, f"{what} within {PATIENCE:g} s"
        time.sleep(0.02)


def ended(pid: int) -> bool:
    """Whether a process is gone, or only waits to be collected by whoever inherited it."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True
