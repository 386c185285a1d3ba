"""Every method passes every check of the kit: pairs of mode, check, codec and kind of attention."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch

from cachemark.core.errors import Unsupported
from cachemark.core.spec import FLOPS
from cachemark.kit import batches, budgets, checks
from cachemark.kit.batches import GAP, Pass, compare
from cachemark.kit.common import recorded
from cachemark.kit.findings import KitFinding
from cachemark.kit.next_scale import ScaleCell
from cachemark.kit.next_token import Cell
from cachemark.kit.positions import evicted_positions_are_distinct
from cachemark.kit.runner import MASKED, SAVING, SCALE, TOKEN, Check
from cachemark.kit.saving import SAMPLING, SavingCell, flops_are_the_declared_ones
from cachemark.kit.work import work_is_declared

from . import masked, scales
from .cells import ALONE, WHOLE, cells, crossed, modes_of

# parameters, bf16 and settings do not depend on codec and attention (tests/kit)
ELSEWHERE = {checks.wrong_parameters_are_refused, checks.bf16_runs, checks.settings_are_unchanged}
# What these find in a method can depend on how a vector is stored or on shared heads: all its cells of the day meet them.
STORED = {checks.evicting_is_masking, checks.bytes_are_declared, checks.declared_is_used, checks.live_bytes_are_counted}
SAME_WORK = {"select", "forced", "refresh"}  # parameters that decide which tokens are computed, and not how many
# What takes longest and finds the same in a smaller next-token model, which stands in by day, on every third method.
SLOW = {
    work_is_declared, checks.graph_is_eager, batches.samples_are_the_same_in_any_batch, batches.equal_tokens_tie,
    checks.nothing_is_read_on_the_host, checks.neutral_is_no_special_case, checks.second_generation_repeats, checks.dead_is_never_read,
    checks.timed_equals_fidelity, checks.tight_is_not_neutral, evicted_positions_are_distinct, flops_are_the_declared_ones,
    checks.samples_are_the_same_in_another_order,
}
SHARE = 10  # of the other checks, one in so many runs on a further cell of a mode
FEW = 3  # checks of a cell by day, which need not apply to it
SCALES = [*scales.cells(), *(ScaleCell(cls, (), codec, attention) for cls in (scales.Staggered, scales.Scored) for codec in ALONE
                             for attention in scales.ATTENTION)]
MASKS = masked.cells()
SAVING_MODES: dict[str, tuple[dict[str, Any], ...]] = {
    "fewer_scales": ({"count": 2}, {"count": 4}),
    "guidance_off": ({"start": 3}, {"start": 0}),
    "fastvar": ({"shares": [0.3, 0.6]}, {"shares": [0.5, 1], "layers": [0, 4], "cached": 1}, {"shares": [0.4, 0.5], "fill": "zero"},
                {"shares": [0.4, 0.5], "score": "highpass"}, {"shares": [0.4, 0.5], "score": "random"}),
}


ONCE = {checks.neutral_is_full, checks.wrong_parameters_are_refused, checks.settings_are_unchanged}  # which depend on no mode
SAVINGS = [SavingCell(cls, mode, codec, model)  # the first mode with every codec on every model
           for model in SAMPLING for cls, number, mode in modes_of(lambda cls: cls.budget_kind == FLOPS, SAVING_MODES)
           for codec in ALONE if codec == "native" or number == 0]
FIRST = {(cell.cls, cell.attention): cell for cell in reversed(SAVINGS)}.values()  # each method on every model
IN_TURN = [cell for number, cell in enumerate(cell for cell in SAVINGS if cell.codec == "native") if number % 3 == 0]
IN_TURN += [cell for cell in SAVINGS if cell.codec == "turbo2"][:1]  # a codec with constants, whose products count nothing
FAMILIES: tuple[tuple[str, Sequence[Any], Sequence[Any], Sequence[Check]], ...] = (  # cells, those of every run, checks
    ("next-token", cells(), crossed(cells()), TOKEN), ("next-scale", SCALES, crossed(SCALES), SCALE),
    ("masked", MASKS, [cell for cell in MASKS if cell.codec in WHOLE], MASKED),
    ("saving", SAVINGS, [cell for cell in SAVINGS if cell in FIRST or cell in IN_TURN], SAVING),
)  # fmt: skip


def params() -> Iterator[Any]:
    """Yield each cell with its checks: for every run a cover, in which every mode and every codec meets ``STORED``; the rest at night.

    A check of ``SLOW`` meets every third method by day, and their turns differ from check to check.
    """
    for family, family_cells, always, family_checks in FAMILIES:
        classes = set[Any]()
        turns = {cls: turn for turn, cls in enumerate(dict.fromkeys(cell.cls for cell in always))}
        for number, cell in enumerate(always):
            applicable = [check for check in family_checks if not elsewhere(check, cell)]
            daily = [check for place, check in enumerate(applicable)
                     if runs_daily(check, cell, cell.cls not in classes, (place + number) % SHARE == 0)
                     and (check not in SLOW or (family_checks.index(check) + turns[cell.cls]) % 3 == 0)]
            if daily:
                yield pytest.param(cell, daily, small(cell), id=f"{family}-{cell.label}")
            if rest := [check for check in applicable if check not in daily or (check in SLOW and small(cell) is not cell)]:
                yield pytest.param(cell, rest, cell, id=f"{family}-{cell.label}-rest", marks=pytest.mark.slow)
            classes.add(cell.cls)
        for cell in (cell for cell in family_cells if cell not in always):
            yield pytest.param(cell, [check for check in family_checks if not elsewhere(check, cell)], cell, id=f"{family}-{cell.label}",
                               marks=pytest.mark.slow)


def small(cell: Any) -> Any:
    """Return the next-token cell of two layers and heads, where heads share no keys."""
    return cell.smaller[-1] if isinstance(cell, Cell) and cell.attention == "mha" else cell


def elsewhere(check: Check, cell: Any) -> bool:
    """Return whether a check of the cell is another test's, or does not apply."""
    if isinstance(cell, SavingCell):
        return check in ONCE and cell not in FIRST
    narrow = check is checks.neutral_is_full and "c_min" in dict(cell.mode)  # no budget replaces it; see test_graph.py
    fixed = check is budgets.budgets_are_the_requested_ones and cell.cls in (scales.Staggered, scales.Scored)  # in size
    again = check is checks.neutral_is_full and cell in MASKS and dict(cell.mode) not in ({}, masked.MODES.get(cell.cls.name, ({},))[0])
    return check in ELSEWHERE or narrow or fixed or again  # neutral parameters replace those of a masked mode


def runs_daily(check: Check, cell: Any, first: bool, in_turn: bool) -> bool:
    """Return whether a check of the cell is part of the cover; ``first``: the cell is its method's first."""
    if isinstance(cell, SavingCell):
        return True
    if check is work_is_declared:
        return cell.codec == "native" and not SAME_WORK & {name for name, _ in cell.mode}
    return first or check in STORED or in_turn


@pytest.mark.parametrize(("cell", "cell_checks", "smaller"), list(params()))
def test_a_method_passes(cell: Any, cell_checks: Sequence[Check], smaller: Any) -> None:
    found: dict[str, list[KitFinding]] = {}
    for check in cell_checks:
        with suppress(Unsupported):
            found[check.__name__] = list(check(smaller if check in SLOW else cell))
    assert not any(found.values()), found
    assert found or len(cell_checks) < FEW, "no check applies"


def test_the_cover_has_every_pair_of_method_and_check() -> None:
    for family, family_cells, _, family_checks in FAMILIES:
        daily = [param.values for param in params() if param.id.startswith(family) and not param.marks]
        for check in set(family_checks) - ELSEWHERE:
            applicable = {cell.cls for cell in family_cells if not elsewhere(check, cell)}
            met = {cell.cls for cell, cell_checks, _ in daily if check in cell_checks}
            assert met == applicable or (check in SLOW and len(met) >= len(applicable) // 3 > 0), (family, check)
            if check not in SLOW and family not in ("masked", "saving"):
                assert {cell.codec for cell, cell_checks, _ in daily if check in cell_checks} > {"native"}


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
