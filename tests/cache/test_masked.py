"""The passes of a masked generation: how many tokens each predicts, and where."""

from __future__ import annotations

import pytest
import torch

from cachemark.cache.masked_layout import MaskedLayout, masked_steps, placed
from cachemark.core.errors import Unsupported

# Tokens per step of MAR's own settings, as its authors' loop predicts them.
OF_64 = [1] * 13 + [2, 3, 2, 2, 3, 3, 3, 3, 3, 3, 4, 3, 4, 4, 4, 4, 4, 4, 4, 5, 5, 4, 5, 5, 5, 5, 5, 6, 5, 5, 6, 5, 6, 6, 6, 5, 6, 6]
OF_64 += [6, 6, 6, 6, 7, 6, 6, 6, 6, 7, 6, 6, 6]
OF_32 = [1, 1, 1, 2, 3, 4, 3, 5, 5, 6, 6, 7, 7, 8, 8, 8, 10, 9, 10, 10, 11, 11, 11, 12, 11, 12, 12, 13, 12, 12, 13, 12]


def shape(grid: int = 16) -> MaskedLayout:
    return MaskedLayout("masked", (3, 3), grid, grid, 2, 2, 8, 3)


@pytest.mark.parametrize(("total", "expected"), [(64, OF_64), (32, OF_32), (256, [1] * 256), (1, [256])])
def test_tokens_per_step(total: int, expected: list[int]) -> None:
    steps = masked_steps(shape(), total)
    assert [step.count for step in steps] == expected
    assert [step.first for step in steps] == [sum(expected[:i]) for i in range(total)]


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
