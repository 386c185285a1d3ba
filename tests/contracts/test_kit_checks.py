"""Every method passes every check of the kit: pairs of mode, check, codec and kind of attention."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch

from cachemark.core.errors import Unsupported
from cachemark.kit import budgets, checks
from cachemark.kit.batches import GAP, Pass, compare
from cachemark.kit.common import recorded
from cachemark.kit.next_scale import ScaleCell
from cachemark.kit.runner import MASKED, SCALE, TOKEN, Check
from cachemark.kit.work import work_is_declared

from . import masked, scales
from .cells import ALONE, WHOLE, cells, crossed

# parameters, bf16 and settings do not depend on codec and attention (tests/kit)
ELSEWHERE = {checks.wrong_parameters_are_refused, checks.bf16_runs, checks.settings_are_unchanged}
# What these find in a method can depend on how a vector is stored or on shared heads: every mode meets both.
STORED = {checks.evicting_is_masking, checks.neutral_is_full, checks.bytes_are_declared, checks.declared_is_used,
          checks.live_bytes_are_counted}
SAME_WORK = {"select", "forced", "refresh"}  # parameters that decide which tokens are computed, and not how many
SHARE = 5  # of the other checks, one in so many runs on a further cell of a mode
SCALES = [*scales.cells(), *(ScaleCell(cls, (), codec, attention) for cls in (scales.Staggered, scales.Scored) for codec in ALONE
                             for attention in scales.ATTENTION)]
MASKS = masked.cells()
FAMILIES: tuple[tuple[str, Sequence[Any], Sequence[Any], Sequence[Check]], ...] = (  # cells, those of every run, checks
    ("next-token", cells(), crossed(cells()), TOKEN), ("next-scale", SCALES, crossed(SCALES), SCALE),
    ("masked", MASKS, [cell for cell in MASKS if cell.codec in WHOLE], MASKED),
)  # fmt: skip


def params() -> Iterator[Any]:
    """Yield each cell with its checks, for every run a cover of all pairs, and the rest at night.

    Every method meets every check on its first cell; every mode, codec and kind of attention meets ``STORED`` and, in turn, the others.
    """
    for family, family_cells, always, family_checks in FAMILIES:
        classes = set[Any]()
        for number, cell in enumerate(always):
            applicable = [check for check in family_checks if not elsewhere(check, cell)]
            daily = [check for place, check in enumerate(applicable)
                     if runs_daily(check, cell, cell.cls not in classes, (place + number) % SHARE == 0)]
            yield pytest.param(cell, daily, id=f"{family}-{cell.label}")
            yield pytest.param(cell, [check for check in applicable if check not in daily], id=f"{family}-{cell.label}-rest",
                               marks=pytest.mark.slow)
            classes.add(cell.cls)
        for cell in (cell for cell in family_cells if cell not in always):
            yield pytest.param(cell, [check for check in family_checks if not elsewhere(check, cell)], id=f"{family}-{cell.label}",
                               marks=pytest.mark.slow)


def elsewhere(check: Check, cell: Any) -> bool:
    """Return whether a check of the cell is another test's, or does not apply."""
    narrow = check is checks.neutral_is_full and "c_min" in dict(cell.mode)  # no budget replaces it; see test_scales.py
    fixed = check is budgets.budgets_are_the_requested_ones and cell.cls in (scales.Staggered, scales.Scored)  # in size
    again = check is checks.neutral_is_full and cell in MASKS and dict(cell.mode) not in ({}, masked.MODES.get(cell.cls.name, ({},))[0])
    return check in ELSEWHERE or narrow or fixed or again  # neutral parameters replace those of a masked mode


def runs_daily(check: Check, cell: Any, first: bool, in_turn: bool) -> bool:
    """Return whether a check of the cell is part of the cover; ``first``: the cell is its method's first."""
    if check is work_is_declared:
        return cell.codec == "native" and not SAME_WORK & {name for name, _ in cell.mode}
    return first or check in STORED or in_turn


@pytest.mark.parametrize(("cell", "cell_checks"), list(params()))
def test_a_method_passes(cell: Any, cell_checks: Sequence[Check]) -> None:
    faults = {}
    for check in cell_checks:
        with suppress(Unsupported):
            faults[check.__name__] = list(check(cell))
    assert not any(faults.values()), faults
    assert faults or not cell_checks, "no check applies"


def test_the_cover_has_every_pair_of_method_and_check() -> None:
    for family, family_cells, _, family_checks in FAMILIES:
        daily = [param.values for param in params() if param.id.startswith(family) and not param.marks]
        for check in set(family_checks) - ELSEWHERE:
            applicable = {cell.cls for cell in family_cells if not elsewhere(check, cell)}
            assert {cell.cls for cell, cell_checks in daily if check in cell_checks} == applicable
            if check is not work_is_declared and family != "masked":
                assert {cell.codec for cell, cell_checks in daily if check in cell_checks} > {"native"}


# -- what the checks leave out -----------------------------------------------------------------------------------------
def test_a_token_survives_its_own_step() -> None:
    for cell in crossed(cells(evicting=True)):
        for moment in recorded(cell).moments[1:]:
            assert all((tokens == moment.step.first).any(-1).all() for heads in moment.contents.values() for tokens in heads), cell.label


def one_pass(tokens: list[int], gap: float, code: float = 0.0) -> list[Pass]:
    return [Pass([torch.tensor([[tokens], [tokens]])], [torch.full((2, 1), gap)], [torch.full((2, 1), code)])]


@pytest.mark.parametrize(("other", "apart", "faults", "excused"), [
    (one_pass([0, 1], 1.0), 0.0, 0, set()), (one_pass([0, 2], GAP / 2), 0.0, 0, {9}), (one_pass([0, 2], GAP * 2), 0.0, 1, set()),
    (one_pass([0, 1], 1.0, 1.0), 0.0, 0, {9}), (one_pass([0, 1], 1.0), 2e-4, 1, set()), (one_pass([0, 1], 1.0), torch.nan, 1, set()),
])  # fmt: skip
def test_only_a_tie_or_another_rounding_is_excused(other: list[Pass], apart: float, faults: int, excused: set[int]) -> None:
    samples, logits = set[int](), torch.zeros(1, 1, 8)
    assert len(list(compare([9], one_pass([0, 1], 1.0), other, (logits, logits + apart), samples))) == faults
    assert samples == excused
