"""Types of parameters, budgets, what is evicted: the lowest scores, of equal ones the oldest; how many tokens masked passes predict."""

from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch

from cachemark.cache.layout import RowRun
from cachemark.cache.masked_layout import MaskedLayout, masked_steps, placed
from cachemark.contract.method import Method
from cachemark.core.errors import BadParameter, Unsupported
from cachemark.kit.driver import RasterFeed, drive, layout_of
from cachemark.methods.base.evicting import Evicting, lowest, visual_budget


@dataclass
class Parameterbed(Method):
    name = "parameterbed"
    count: int = 3
    share: float = 0.5
    exact: bool = True
    mode: str = "plain"


def test_a_parameter_of_another_type_is_refused() -> None:
    for parameter, kind, values in (("count", "an int", (2.0, True, "2", None)), ("share", "a float", ("0.5", False)),
                                    ("exact", "a bool", (1,)), ("mode", "a str", (3,))):
        for value in values:
            with pytest.raises(BadParameter) as caught:
                Parameterbed.build({parameter: value})
            assert str(caught.value) == f"parameterbed: {parameter} = {value!r} is not {kind}. Use type {kind.split()[1]}."


def test_a_budget_is_whole_lines_and_two_at_least_and_evict_is_called_at_the_edge_alone() -> None:
    for budget, lines, expected in (("1", 6, 36), ("1/2", 6, 18), ("1/3", 6, 12), ("1/6", 6, 12), ("1/100", 6, 12), ("1/4", 24, 36),
                                    ("1/8", 24, 18)):
        assert visual_budget(Fraction(budget), layout_of(lines=lines, line=6)) == expected
        assert Evicting.parameters_for(Fraction(budget), layout_of(lines=lines, line=6)) == {"B": expected}
    layout, asked = layout_of(lines=3, line=4), list[int]()
    method = type("Edged", (Evicting,), {"evict_after": "line", "evict": lambda self, step, slots: asked.append(step.index)})(B=100)
    drive(method, layout, RasterFeed(layout))
    assert asked == [4, 8]


def test_heads_choose_for_themselves_both_zeros_are_one_number_and_small_and_large_numbers_keep_their_order() -> None:
    draw = torch.Generator().manual_seed(0)
    score = torch.randint(0, 3, (2, 3, 4, 9), generator=draw).float()
    age = torch.rand(2, 3, 4, 9, generator=draw).argsort(-1).to(torch.int16)
    for count in (1, 2):
        alone = [lowest(some, ages, count) for some, ages in zip(score.view(24, 9), age.view(24, 9), strict=True)]
        assert torch.equal(lowest(score, age, count), torch.stack(alone).view(2, 3, 4, count))
    for count in (1, 2, 4):
        ages = torch.tensor([3, 1, 2, 0], dtype=torch.int16)
        assert lowest(torch.tensor([-0.0, 0.0, -0.0, 0.0]), ages, count).tolist() == [3, 1, 2, 0][:count]
    score = torch.tensor([3e38, 1e-45, -1e-45, -3e38, 0.0, 1e-38, -1.0, 1.0, float("inf")])
    assert lowest(score, torch.arange(9, dtype=torch.int16).flip(0), 9).tolist() == [3, 6, 2, 4, 1, 5, 7, 0, 8]


def shape(grid: int) -> MaskedLayout:
    return MaskedLayout("masked", (3, 3), grid, grid, 2, 2, 8, 3)


def test_every_step_predicts_something_and_all_steps_everything_and_neighbors_of_one_length_make_a_run() -> None:
    assert layout_of((3, 1, 1, 2)).runs == (RowRun(0, 1, 3), RowRun(1, 3, 1), RowRun(3, 4, 2))
    assert layout_of((1, 2, 1)).runs == (RowRun(0, 1, 1), RowRun(1, 2, 2), RowRun(2, 3, 1))
    for total in range(1, 65):
        steps = masked_steps(shape(8), total)
        assert min(step.count for step in steps) >= 1
        assert sum(step.count for step in steps) == 64
        assert steps[-1].last
        assert [step.left for step in steps[:-1]] == [64 - step.first - step.count for step in steps[:-1]]
        assert steps[-1].left == 1
    for total in (0, -1, 65):
        with pytest.raises(Unsupported, match="64"):
            masked_steps(shape(8), total)


def test_places_are_known_once_they_have_been_generated() -> None:
    generator = torch.Generator().manual_seed(0)
    order = torch.stack([torch.randperm(16, generator=generator) for _ in range(2)])
    steps = placed(masked_steps(shape(4), 5), order)
    generated = order[:, :0]
    for step, before in zip(steps, [None, *steps[:-1]], strict=True):
        assert torch.equal(step.known, generated.sort(1).values)
        assert torch.equal(step.previous, order[:, :0] if before is None else before.generating)
        end = 16 - step.first
        assert torch.equal(step.generating, order[:, end - step.count : end].sort(1).values)
        generated = torch.cat((generated, step.generating), 1)
    assert generated.size(1) == 16
