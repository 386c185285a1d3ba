"""Stored baselines and registers open, among them every accepted baseline. The files of ``data`` were written by version 0.1.0."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachemark.gate import baselines, incidents
from cachemark.gate.baseline_check import compare

DATA = Path(__file__).parent / "data"
ACCEPTED = sorted((Path(__file__).parents[2] / "baselines" / "accepted").glob("*/*.json"))


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
