"""The attack: every try ends soon, in one line and with a documented code, and changes nothing that is not its own."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.stages import Stage

from . import __path__ as folder_of_rows
from . import ground
from .attack import Attack, Ending, faults, state_of
from .process import CopiedCommandLine


def all_rows() -> Iterator[tuple[str, Attack]]:
    """The rows of every file in this folder, each with its area."""
    for module in sorted(result.name for result in pkgutil.iter_modules(folder_of_rows)):
        if not module.startswith(("test_", "process")):
            yield from ((module, row) for row in getattr(importlib.import_module(f".{module}", __package__), "ROWS", ()))


ROWS = list(all_rows())


@pytest.fixture(scope="module")
def command_line() -> Iterator[CopiedCommandLine]:
    with CopiedCommandLine() as copied:
        yield copied


@pytest.fixture(scope="module")
def furnished(measured: Stage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ground.furnish(measured, tmp_path_factory.mktemp("furnished") / "here")


@pytest.mark.parametrize(("area", "row"), [
    pytest.param(area, row, id=f"{area}: {row.name}") for area, row in ROWS
])  # fmt: skip
def test_a_try(area: str, row: Attack, furnished: Path, command_line: CopiedCommandLine, tmp_path: Path) -> None:
    here = ground.lay_out(furnished, tmp_path / "ground")
    row.prepare(here)
    before = state_of(here.parent)
    end = command_line.call(here.parent, row.arguments, process=row.process, trials=row.trials)
    result = list(faults(row, end, before, state_of(here.parent)))
    assert result == [], f"{end.stdout[-2000:]}\n{end.stderr[-4000:]}"


def test_names_of_tries_differ() -> None:
    assert [name for name, count in Counter((area, row.name) for area, row in ROWS).items() if count > 1] == []


# -- the frame itself -----------------------------------------------------------------------------------------------------
ROW = Attack("", (), "bad-plan")
GOOD = Ending(2, "", "cachemark: It is so.\n  [bad-plan; see docs/errors.md#bad-plan]\n")


@pytest.mark.parametrize(("end", "fault"), [
    (Ending(None, "", ""), "did not end"),
    (Ending(1, "", GOOD.stderr), "ended with 1 instead of 2"),
    (Ending(2, "Traceback (most recent call last):", GOOD.stderr), "traceback"),
    (Ending(2, "\x1b[31m", GOOD.stderr), "control character"),
    (Ending(2, "  ::error::pwned", GOOD.stderr), "workflow command"),
    (Ending(2, "", ""), "one line"),
    (Ending(2, "", "cachemark: One.\n" + GOOD.stderr), "one line"),
    (Ending(2, "", GOOD.stderr.replace("It is so", "so" * 2000)), "characters"),
    (Ending(2, "", GOOD.stderr, ("open '/etc/passwd'",)), "touched open '/etc/passwd'"),
])  # fmt: skip
def test_what_is_a_fault(end: Ending, fault: str) -> None:
    assert not list(faults(ROW, GOOD, {}, {}))
    assert fault in " ".join(faults(ROW, end, {}, {}))


def test_a_change_on_disk_is_a_fault() -> None:
    before, after = {"here/a": "1", "others/b": "1"}, {"here/a": "2", "here/new": "1"}
    assert list(faults(ROW, GOOD, before, after)) == ["it changed here/a", "it changed here/new", "it changed others/b"]
    allowed = Attack("", (), "bad-plan", changes=("*",))
    assert list(faults(allowed, GOOD, before, after)) == ["it changed others/b"]


@pytest.mark.parametrize(("code", "seen"), [
    ("import os, signal; os.kill(os.getpid(), signal.SIGXCPU)", Ending(None, "", "")),
    ("import sys; print('out'); sys.exit('err')", Ending(1, "out\n", "err\n")),
    ("open('/dev/null', 'w'); open('mine', 'w'); raise SystemExit(7)", Ending(7, "", "")),
    ("import os; os.chmod('../../stray', 0o600)", Ending(0, "", "", ("os.chmod '{}'",))),
])  # fmt: skip
def test_a_copy_tells_how_it_ended(code: str, seen: Ending, command_line: CopiedCommandLine, tmp_path: Path) -> None:
    (tmp_path / "ground" / "here").mkdir(parents=True)
    (tmp_path / "stray").touch()
    expected = Ending(seen.code, seen.stdout, seen.stderr, tuple(text.format(tmp_path / "stray") for text in seen.outside))
    assert command_line.call(tmp_path / "ground", (), code=code) == expected
