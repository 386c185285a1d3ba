"""Methods that save computation in next-scale models pass every check of the kit.

Each runs on every model, further modes on one model in turn, and most codecs at night.
"""

from contextlib import suppress
from typing import Any

import pytest

from cachemark.contract.method import Method
from cachemark.core.errors import Unsupported
from cachemark.core.spec import FLOPS
from cachemark.kit import checks
from cachemark.kit.runner import SAVING
from cachemark.kit.saving import SAMPLING, SavingCell
from cachemark.methods.registry import METHODS

from .cells import ALONE

MODES: dict[str, tuple[dict[str, Any], ...]] = {
    "fewer_scales": ({"count": 2}, {"count": 4}),
    "guidance_off": ({"start": 3}, {"start": 0}),
    "fastvar": ({"shares": [0.3, 0.6]}, {"shares": [0.5, 1], "layers": [0, 4], "cached": 1}, {"shares": [0.4, 0.5], "fill": "zero"},
                {"shares": [0.4, 0.5], "score": "highpass"}, {"shares": [0.4, 0.5], "score": "random"}),
}


def cells() -> list[SavingCell]:
    """Return a method's first mode with every codec on every model, the others with the native one."""
    classes: list[type[Method]] = [METHODS.get(name) for name in METHODS]
    return [SavingCell(cls, tuple(mode.items()), codec, model) for cls in classes if cls.budget_kind == FLOPS for model in SAMPLING
            for number, mode in enumerate(MODES.get(cls.name, ({},)))
            for codec in ALONE if codec == "native" or number == 0]  # fmt: skip


ONCE = {checks.neutral_is_full, checks.wrong_parameters_are_refused, checks.settings_are_unchanged}  # which depend on no mode
CELLS = cells()
FIRST = {(cell.cls, cell.attention): cell for cell in reversed(CELLS)}.values()
IN_TURN = [cell for number, cell in enumerate(cell for cell in CELLS if cell.codec == "native") if number % 3 == 0]
IN_TURN += [cell for cell in CELLS if cell.codec == "turbo2"][:1]  # a codec with constants, whose products count nothing


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
