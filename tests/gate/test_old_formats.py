"""Stored baselines open, among them every accepted baseline. The files of ``data`` were written by version 0.1.0."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachemark.gate import baselines
from cachemark.gate.baseline_check import compare

DATA = Path(__file__).parent / "data"
ACCEPTED = sorted((Path(__file__).parents[2] / "baselines" / "accepted").glob("*/*.json"))


@pytest.mark.parametrize("path", [DATA / "baseline-1.json", *ACCEPTED], ids=lambda path: path.stem)
def test_a_baseline_passes_against_itself(path: Path) -> None:
    held = baselines.load(path)
    found = compare(held, held.outcomes, held.environment, plan=held.meta["plan"])
    assert (found.exit_code, found.coverage) == (0, 1.0)
    assert not baselines.diff(held, held.outcomes)
