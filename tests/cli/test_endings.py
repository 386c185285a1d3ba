"""Exit codes that do not depend on the readers of the output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from cachemark.cli.endings import INTERRUPTED, ending
from cachemark.core.errors import NothingMeasured
from support.fork_server import COMMAND_LINE

REFUSED = ("show", "--store", "nowhere.sqlite")  # ends with 2, and a line about it
CASES = {"an error of ours": REFUSED, "a wrong option": ("run", "demo", "--reuse-quality"), "a wrong command": ("shwo",),
         "a wrong value": ("show", "--run", "0"), "a wrong option of the group": ("--wrong", "show")}


def ended(*arguments: str, redirected: str) -> int:
    """The exit code of the command in a shell of its own, with streams as they are redirected there."""
    command = f'exec "$0" -c "{COMMAND_LINE}" "$@" {redirected}'
    return subprocess.run(["sh", "-c", command, sys.executable, *arguments], check=False, stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode


@pytest.mark.parametrize("redirected", ["2>&-", ">&- 2>&-", "2>/dev/full"])
@pytest.mark.parametrize("case", CASES)
def test_an_error_that_nobody_can_be_told_keeps_its_code(case: str, redirected: str) -> None:
    """1 would be a verdict."""
    assert ended(*CASES[case], redirected=redirected) == 2


def test_what_is_opened_where_standard_error_was_closed_is_no_file_of_ours(tmp_path: Path) -> None:
    """A library that writes to descriptor 2 must not write into a store."""
    script = "import os, sys; from cachemark.cli.endings import open_closed_streams\nopen_closed_streams()\nos.write(2, b'x')"
    found = subprocess.run(["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, script], check=False, cwd=tmp_path)
    assert found.returncode == 0


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect both streams to pipes without a reader."""
    for name in ("stdout", "stderr"):
        reader, writer = os.pipe()
        os.close(reader)
        monkeypatch.setattr(sys, name, os.fdopen(writer, "w"))


@pytest.mark.parametrize(("raised", "code"), [
    (KeyboardInterrupt(), INTERRUPTED), (click.UsageError("no"), 2), (click.ClickException("no"), 2), (NothingMeasured("no"), 4),
    (ZeroDivisionError("no"), 70), (BrokenPipeError(), 141),
])  # fmt: skip
def test_pipes_that_nobody_reads_change_no_code(raised: BaseException, code: int, unread: None) -> None:
    sys.stdout.write("words that were not written yet")
    with pytest.raises(SystemExit) as caught, ending():
        raise raised
    assert caught.value.code == code
    sys.stdout.flush()  # as Python does at its end, where a failure makes another code


def test_a_second_interruption_changes_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(click, "echo", impatient)
    with pytest.raises(SystemExit) as caught, ending():
        raise NothingMeasured("no")
    assert caught.value.code == 4
