"""Methods that save computation in next-scale models pass every check of the kit.

Each runs on every model, further modes on some models, and codecs at night.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from cachemark.core.errors import Unsupported
from cachemark.kit import checks
from cachemark.kit.runner import SAVING
from cachemark.kit.saving import SavingCell

from .saving import cells

ONCE = {checks.neutral_is_full, checks.wrong_parameters_are_refused, checks.settings_are_unchanged}  # which depend on no mode
CELLS = cells()
FIRST = {(cell.cls, cell.attention): cell for cell in reversed(CELLS)}.values()
IN_TURN = [cell for number, cell in enumerate(cell for cell in CELLS if cell.codec == "native") if number % 2 == 0]


@pytest.mark.parametrize("cell", [
    pytest.param(cell, id=cell.label.replace(" ", ""), marks=[] if cell in FIRST or cell in IN_TURN else pytest.mark.slow)
    for cell in CELLS
])  # fmt: skip
def test_a_method_that_saves_computation_passes(cell: SavingCell) -> None:
    faults = {}
    for check in SAVING:
        if check not in ONCE or cell in FIRST:
            with suppress(Unsupported):
                faults[check.__name__] = list(check(cell))
    assert not any(faults.values()), faults
