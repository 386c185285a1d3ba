"""Broken and hostile input: each command ends soon, in one line and with a documented code, and changes only its own files."""

from pathlib import Path

import pytest

from support.stages import Stage

from . import edited, ground, options, plans, plugins, stores, weights
from .attack import Attack, Ending, faults, state_of
from .process import call

ROWS = [(module.__name__.rpartition(".")[2], row) for module in (edited, options, plans, plugins, stores, weights) for row in module.ROWS]


@pytest.fixture(scope="module")
def furnished(measured: Stage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ground.furnish(measured, tmp_path_factory.mktemp("furnished") / "here")


@pytest.mark.parametrize("row", [
    pytest.param(row, id=f"{area}: {row.name}", marks=[pytest.mark.slow] if number % 3 else []) for number, (area, row) in enumerate(ROWS)])
def test_an_attack(row: Attack, furnished: Path, tmp_path: Path) -> None:
    here = ground.lay_out(furnished, tmp_path / "ground")
    row.prepare(here)
    before = state_of(here.parent)
    end = call(here.parent, row.arguments)
    assert list(faults(row, end, before, state_of(here.parent))) == [], f"{end.stdout[-2000:]}\n{end.stderr[-4000:]}"


def test_every_fault_is_found() -> None:
    row, good = Attack("", (), "bad-plan"), "cachemark: It is so.\n  [bad-plan; see docs/errors.md#bad-plan]\n"
    assert not list(faults(row, Ending(2, "", good), {}, {}))
    bad = Ending(None, "Traceback\x1b\n ::error::", "cachemark: " + "so" * 2000, ("open '/etc/passwd'",))
    assert len(list(faults(row, bad, {"here/a": "1", "others/b": "1"}, {"here/a": "2"}))) == 9
