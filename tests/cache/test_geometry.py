"""Layouts and passes, counted by hand."""

from __future__ import annotations

import torch

from cachemark.cache.layout import RowRun, Step, Tokens, raster_steps
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
