"""Orders and numbers of tokens per step of the Halton scheduler's published code (kind ``halton``)."""

from __future__ import annotations

import torch
from torch import Tensor

from cachemark.cache.masked_layout import MaskedLayout
from cachemark.core.spec import Sampling
from cachemark.methods.halton import Halton
from cachemark.models.mar import MARConfig

from ..checks import Kind, Vector, compare, differing


def shape(grid: int, steps: int) -> MaskedLayout:
    return MARConfig(16, (1, 1), 2, 1, 16, grid=grid).layout([0], Sampling(steps=steps))


def order(method: Halton, _: Vector, grid: str) -> Tensor:
    """Return the positions of a grid in the order in which they are predicted."""
    method.layout = shape(int(grid), 1)
    (row,) = method.ordered(torch.arange(method.layout.visual)[None])
    return row.flip(0).short()


def counts(method: Halton, _: Vector, size: str) -> Tensor:
    """Return the tokens of each step."""
    grid, steps = map(int, size.split("-"))
    method.steps = steps
    return torch.tensor(method.paced(shape(grid, steps)).counts, dtype=torch.int16)


KINDS = {
    "halton": Kind(lambda _: Halton(rate="arccos"), (
        compare("orders", "orders/*", order, 0.0, by=differing),
        compare("counts", "counts/*", counts, 0.0, by=differing),
    ), "the order and the tokens per step of the Halton scheduler's published code", ("halton",)),
}
