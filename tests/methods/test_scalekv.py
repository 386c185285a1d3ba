"""ScaleKV: the published budgets, the observation window, and the drafters."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from cachemark.core.spec import Budget
from cachemark.methods.base import calibrations
from cachemark.methods.scalekv import LayerBudgets, ScaleKV, drafters_of, spread
from cachemark.models.registry import MODELS
from cachemark.plans.expand import resolve

SIDES = (1, 2, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64)
CUTS = {  # of the authors' files for 10 %, behind scales 7 … 11: the drafters' budget and that of the others
    "infinity-2b": [(920, 632), (1490, 594), (2510, 526), (4100, 420), (6385, 465)],
    "infinity-8b": [(909, 629), (1464, 584), (2463, 503), (4054, 374), (6200, 200)],
}


@pytest.mark.parametrize(("model", "rooms"), [("infinity-2b", 29445), ("infinity-8b", 41873)])
def test_the_rule_gives_the_published_budgets(model: str, rooms: int) -> None:
    facts = calibrations.packaged("scalekv")[model]
    plan = LayerBudgets(tuple(side**2 for side in SIDES), facts["layers"], 650, drafters_of(facts, 0), 16)
    assert plan.first == 7
    assert [(max(row), min(row)) for row in plan.budgets] == CUTS[model]
    assert {sum(row) for row in plan.budgets} == {650 * facts["layers"]}
    assert sum(plan.rooms) == rooms


def test_the_window_covers_a_map_from_its_upper_left_corner() -> None:
    assert spread((4, 4)).tolist() == list(range(16))
    assert spread((13, 13)).tolist() == [13 * row + column for row in (1, 4, 7, 10) for column in (1, 4, 7, 10)]
    assert max(spread((6, 6)).tolist()) == 3 * 6 + 3
    assert spread((5, 12)).tolist() == [12 * row + column for row in (0, 1, 2, 3) for column in (1, 4, 7, 10)]


def infinity(budget: str = "0.1012", **parameters: Any) -> dict[str, Any]:
    entry = MODELS.get("infinity-2b")
    return resolve(ScaleKV, Budget.parse(budget), entry.shape(entry.presets["paper"], 1), parameters, "random:0/random:0")


def test_a_budget_is_of_allocated_bytes_and_of_living_ones_where_it_is_asked() -> None:
    assert infinity(calibration="infinity-2b", counts="live")["mean"] == 650
    entry = MODELS.get("infinity-2b")
    layout = entry.shape(entry.presets["paper"], 1)
    method = ScaleKV.build(infinity("1/4", calibration="infinity-2b"))
    more = ScaleKV(calibration="infinity-2b", mean=method.mean + 1)
    assert method.own_budget(layout) <= Fraction(1, 4) < more.own_budget(layout)


def test_drafters_are_the_layers_that_look_least_at_themselves_and_few() -> None:
    """z-scores by scale: the second layer is lowest in both, the third only in one."""
    facts = {"scales": [1, 2, 3], "asi": [[0.9, 0.8], [0.1, 0.2], [0.8, 0.1], [0.9, 0.9]]}
    assert drafters_of(facts, 1) == ((1,),) * 3
    assert drafters_of(facts, 2) == ((1, 2),) * 3
