"""Stores, baselines and registers that earlier versions wrote open in this one. The files of ``data`` were written by version 0.1.0."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cachemark.gate import baselines, incidents
from cachemark.gate.baseline_check import compare
from cachemark.gate.nights import nights, unchanged
from cachemark.store.db import Store
from cachemark.store.merge import merge
from cachemark.store.rows import PRUNED

DATA = Path(__file__).parent / "data"
ACCEPTED = sorted((Path(__file__).parents[2] / "baselines" / "accepted").glob("*/*.json"))


@pytest.fixture
def old(tmp_path: Path) -> Store:
    """A store of schema 0002: a pruned run, one that carried an outcome of it, and a comparison."""
    path = tmp_path / "old.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript((DATA / "store-0002.sql").read_text())
    return Store.open(path, create=False)


def test_a_store(old: Store) -> None:
    assert [(run.plan, run.state) for run in old.runs()] == [("compare/demo", "finished"), ("demo", "finished"), ("demo", "finished")]
    assert [run.is_comparison for run in old.runs()] == [True, False, False]
    first, later = old.outcomes(1), old.outcomes(2)
    assert [str(o.status) for o in first] == ["ok", "oom"]
    assert PRUNED in first[0].facts["footnotes"]
    assert first[0].mean("kl") == 0.25
    assert [o.case.key for o in later] == [first[0].case.key, later[1].case.key]
    assert old.carried(2) == {first[0].case.key}
    assert old.run().id == 2


def test_a_comparison_in_a_store_judges_and_merges(old: Store, tmp_path: Path) -> None:
    (night,) = nights(old, "demo", "ci-cpu")
    assert night.tally.exit_code == 0
    assert list(night.equal_cells.values()) == [False]
    assert [len(ratios) for ratios in unchanged(old.outcomes(3)).values()] == [2]
    with Store.open(tmp_path / "new.sqlite") as new:
        (tmp_path / "old.sqlite.artifacts").mkdir()
        stored = old.outcomes(2)[1].artifacts["tokens.bin"]
        old.artifacts.path(stored).parent.mkdir(parents=True, exist_ok=True)
        old.artifacts.path(stored).write_bytes(b"x")
        assert merge(new, old).runs == 3
        assert [night.rows for night in nights(new, "demo", "ci-cpu")] == [night.rows]


@pytest.mark.parametrize("path", [DATA / "baseline-1.json", *ACCEPTED], ids=lambda path: path.stem)
def test_a_baseline_passes_against_itself(path: Path) -> None:
    held = baselines.load(path)
    found = compare(held, held.outcomes, held.environment, plan=held.meta["plan"])
    assert (found.exit_code, found.coverage) == (0, 1.0)
    assert not baselines.diff(held, held.outcomes)


def test_a_register_of_incidents(tmp_path: Path) -> None:
    """It held now over then: 0.8 of the PSNR is a cost of 1.25."""
    (found,) = incidents.load(DATA / "incidents-1.json")
    assert (found.state, found.metric, found.change, found.worst) == ("accepted", "psnr", 1.25, 1.25)
    incidents.save(tmp_path / "incidents.json", [found])
    assert incidents.load(tmp_path / "incidents.json") == [found]
