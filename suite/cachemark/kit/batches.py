"""A sample is the same in any batch: same logits, same kept entries, same tokens, for another batch size and order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..cache import random_streams as streams
from ..models.sampling import draw
from .choices import Agreement, Choices, choosing, compare
from .common import KitRun
from .findings import Flaw
from .next_token import SAMPLING, Cell

SEEDS, BATCHES = 16, (7, 4, 4, 1)  # a small one because it takes another path through the matrix product


def shuffled(sizes: Sequence[int]) -> list[list[int]]:
    """Seeds from 0 in another order, in batches of these sizes."""
    order = random.Random(1).sample(range(sum(sizes)), sum(sizes))
    return [[order.pop() for _ in range(size)] for size in sizes]


def watched_choices(cell: Cell, seeds: Sequence[int], forced: Tensor | None = None) -> tuple[KitRun, Choices]:
    """A generation of these samples, and what it decided."""
    method = cell.tight()
    with choosing(method, cell.grid) as choices:
        return cell.run(method, choices, seeds=seeds, forced=forced, bare=True), choices


def judge(cell: Cell, sizes: Sequence[int]) -> tuple[Agreement, int]:
    """The verdict over all samples, and for how many a free generation in the other batch draws the same tokens throughout.

    The second run is teacher-forced with the first one's tokens; a free run of it differs exactly where it would have drawn
    another token than the one it was given.
    """
    count = sum(sizes)
    whole, first = watched_choices(cell, range(count))
    assert whole.tokens is not None
    assert whole.logits is not None
    verdict, same = Agreement(), 0
    for seeds in shuffled(sizes):
        part, second = watched_choices(cell, seeds, forced=whole.tokens[seeds])
        assert part.logits is not None
        rows = [*seeds, *(seed + count for seed in seeds)]
        mine = [each.of(rows) for each in first.passes]
        compare(seeds, mine, second.passes, (whole.logits[:, seeds], part.logits), verdict)
        key = streams.seeds_tensor(seeds, "cpu")
        drawn = torch.stack([draw(logits, SAMPLING, key, index) for index, logits in enumerate(part.logits)], 1)
        same += int((drawn == whole.tokens[seeds]).all(1).sum())
    return verdict, same


def samples_are_the_same_in_any_batch(cell: Cell) -> Iterator[Flaw]:
    """A sample draws the same in another batch and order, where no score ties. Two orders of sums differ in the last bits, so that one
    sample of all may turn."""
    verdict, same = judge(cell, BATCHES)
    for fault in verdict.faults[:1]:
        sample, _, rest = fault.removeprefix("sample ").partition(", pass ")
        step, _, found = rest.partition(": ")
        yield Flaw("what the sample decides in a batch of 16", found, cell.size, (int(sample),), int(step))
    if not verdict.faults and same < SEEDS - 1:
        yield Flaw(f"the same tokens of {SEEDS - 1} samples at least", f"of {same}", cell.size, range(SEEDS))
