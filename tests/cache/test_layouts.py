"""Layouts and passes, counted by hand, and how many tokens each masked pass predicts, and where."""

import pytest
import torch

from cachemark.cache.layout import RowRun, Step, Tokens, raster_steps
from cachemark.cache.masked_layout import MaskedLayout, masked_steps, placed
from cachemark.core.errors import Unsupported
from cachemark.kit.driver import layout_of


def test_rows_of_one_length_make_a_run() -> None:
    assert layout_of((3, 1, 1, 2)).runs == (RowRun(0, 1, 3), RowRun(1, 3, 1), RowRun(3, 4, 2))
    assert layout_of((1, 1, 1)).runs == (RowRun(0, 3, 1),)
    assert layout_of((1, 2, 1)).runs == (RowRun(0, 1, 1), RowRun(1, 2, 2), RowRun(2, 3, 1)), "runs are of neighbours"


def test_the_passes_of_a_raster() -> None:
    steps = raster_steps(layout_of(lines=2, line=3))
    assert steps == [
        Step(0, 6),
        Step(1, 6, 0, 1, 1, ("token",)), Step(2, 6, 1, 1, 1, ("token",)), Step(3, 6, 2, 1, 1, ("token", "line")),
        Step(4, 6, 3, 1, 2, ("token",)), Step(5, 6, 4, 1, 2, ("token",)),
    ]  # fmt: skip
    assert [step.causal for step in steps] == [True] + [False] * 5


def test_tokens_of_some_rows() -> None:
    tokens = Tokens(torch.arange(6).view(3, 2, 1), torch.ones(2), torch.arange(3)[:, None])
    some = tokens.rows([2, 0])
    assert some.x[:, 0, 0].tolist() == [4, 0]
    assert some.cond is not None
    assert some.cond[:, 0].tolist() == [2, 0]
    assert some.rope is tokens.rope
    assert tokens.with_x(tokens.x + 1).cond is tokens.cond
    assert Tokens(tokens.x).rows(slice(1)).cond is None


# -- masked -----------------------------------------------------------------------------------------------------------
def shape(grid: int = 16) -> MaskedLayout:
    return MaskedLayout("masked", (3, 3), grid, grid, 2, 2, 8, 3)


def test_every_step_predicts_something_and_all_steps_everything() -> None:
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
