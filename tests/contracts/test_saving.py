"""Methods that save computation in next-scale models pass every check of the kit: mode × codec × model."""

from __future__ import annotations

import pytest

from cachemark.core.errors import Unsupported
from cachemark.kit import checks
from cachemark.kit.runner import SAVING, Check
from cachemark.kit.saving import SavingCell

from .saving import cells

FIRST = {checks.neutral_is_full, checks.wrong_parameters_are_refused, checks.settings_are_unchanged}  # which depend on no mode
CELLS = cells()


@pytest.mark.parametrize(("cell", "check"), [
    pytest.param(cell, check, id=f"{cell.label}-{check.__name__}".replace(" ", ""),
                 marks=[pytest.mark.slow] if cell.codec != "native" else [])
    for number, cell in enumerate(CELLS) for check in SAVING
    if check not in FIRST or (CELLS[number - 1].cls, CELLS[number - 1].attention) != (cell.cls, cell.attention)
])  # fmt: skip
def test_a_method_that_saves_computation_passes(cell: SavingCell, check: Check) -> None:
    try:
        assert not list(check(cell))
    except Unsupported as reason:
        pytest.skip(reason.message)
