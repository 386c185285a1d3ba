"""Every method passes every check of the kit: method and mode × codec × kind of attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from cachemark.core.errors import Unsupported
from cachemark.kit import batches, budgets, checks
from cachemark.kit.batches import GAP, Pass, compare
from cachemark.kit.common import recorded
from cachemark.kit.next_scale import ScaleCell
from cachemark.kit.next_token import Cell
from cachemark.kit.runner import MASKED, SCALE, TOKEN, Check
from cachemark.kit.work import work_is_declared
from cachemark.methods.h2o import H2O
from cachemark.methods.lazymar import LazyMAR

from . import masked, scales
from .cells import ALONE, WHOLE, cells, crossed, halved, sampled

# test_graph.py has more cells; parameters, bf16 and settings do not depend on codec and attention (tests/kit)
ELSEWHERE = {checks.graph_is_eager, checks.wrong_parameters_are_refused, checks.bf16_runs, checks.settings_are_unchanged}
# What these find in a method does not depend on how a vector is stored: of the cells with int8, every run has two.
WITHOUT_CODEC = {checks.nothing_is_read_on_the_host, checks.timed_equals_fidelity, checks.second_generation_repeats,
                 checks.tight_is_not_neutral, checks.neutral_is_no_special_case, batches.samples_are_the_same_in_any_batch}
SAME_WORK = {"select", "forced", "refresh"}  # parameters that decide which tokens are computed, and not how many
SCALES = [*scales.cells(), *(ScaleCell(cls, (), codec, attention) for cls in (scales.Staggered, scales.Scored) for codec in ALONE
                             for attention in scales.ATTENTION)]
MASKS = masked.cells()
FAMILIES: tuple[tuple[str, Sequence[Any], Sequence[Any], Sequence[Check]], ...] = (  # cells, those of every run, checks
    ("next-token", cells(), crossed(cells()), TOKEN), ("next-scale", SCALES, crossed(SCALES), SCALE),
    ("masked", MASKS, [cell for cell in MASKS if cell.codec in WHOLE], MASKED),
)  # fmt: skip


def params() -> Iterator[Any]:
    for family, family_cells, always, family_checks in FAMILIES:
        for param in sampled(family_cells, always):
            cell: Any = param.values[0]
            for check in family_checks:
                narrow = check is checks.neutral_is_full and "c_min" in dict(cell.mode)  # no budget replaces it; see test_scales.py
                fixed = check is budgets.budgets_are_the_requested_ones and cell.cls in (scales.Staggered, scales.Scored)  # in size
                if check in ELSEWHERE or narrow or fixed:
                    continue
                again = check is work_is_declared and (cell.codec != "native" or SAME_WORK & {name for name, _ in cell.mode})
                rarely = check in WITHOUT_CODEC and cell.codec == "int8" and cell.cls not in (H2O, LazyMAR)
                yield pytest.param(*param.values, check, id=f"{family}-{param.id}-{check.__name__}",
                                   marks=pytest.mark.slow if rarely or again else param.marks)


@pytest.mark.parametrize(("cell", "check"), list(params()))
def test_a_method_passes(cell: Any, check: Check) -> None:
    try:
        assert not list(check(cell))
    except Unsupported as reason:
        pytest.skip(reason.message)


# -- what the checks leave out -----------------------------------------------------------------------------------------
EVICTING = cells(evicting=True)


@pytest.mark.parametrize("cell", halved(EVICTING))
def test_a_token_survives_its_own_step(cell: Cell) -> None:
    for moment in recorded(cell).moments[1:]:
        assert all((tokens == moment.step.first).any(-1).all() for heads in moment.contents.values() for tokens in heads)


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
