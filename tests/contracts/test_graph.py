"""The graph engine gives the tokens of the eager one, bit for bit, for every method of every family."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
import torch
from torch import Tensor

from cachemark.cache.graph import Graph
from cachemark.cache.masked import masked_steps
from cachemark.cache.method import Method
from cachemark.cache.slot import Memory

from . import cells as token
from . import masked, test_scales
from .tape import Tape


def taped(memory: Memory, lasting: Iterable[Tensor]) -> Memory:
    """The memory with an engine that records on tape. ``lasting``: what a model has for good."""
    kept = list(lasting)
    tape = Tape(lambda: [*kept, *(tensor for _, tensor in memory._held.values()), *engine.storage])
    engine = memory.engine = Graph(tape)
    return memory


def recorded(memory: Memory) -> int:
    assert isinstance(memory.engine, Graph)
    return memory.engine.recorded


# -- next-token -------------------------------------------------------------------------------------------------------
OTHER = (7, 3)


def fresh(cell: token.Cell) -> Memory:
    model = token.model(cell.attention, cell.grid)
    return taped(cell.memory(), [*model.parameters(), model.rope])


def both(cell: token.Cell, memory: Memory, seeds: Sequence[int], method: Method | None = None, forced: Tensor | None = None) -> None:
    """One generation by the memory's engine and one by the eager engine: equal to the last bit."""
    expected = token.generate(cell, method or cell.tight(), seeds=seeds, forced=forced)
    found = token.generate(cell, method or cell.tight(), seeds=seeds, memory=memory, forced=forced)
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.logits, expected.logits)


@pytest.mark.parametrize("cell", token.cells(), ids=token.label)
def test_next_token_repeats_to_the_last_bit(cell: token.Cell) -> None:
    memory = fresh(cell)
    both(cell, memory, (0, 1))
    passes = recorded(memory)
    both(cell, memory, OTHER)
    assert recorded(memory) == passes, "the second generation repeats what the first one has recorded"


# -- next-scale -------------------------------------------------------------------------------------------------------
SCALED = [cell for cell in test_scales.DETERMINISTIC if cell.attention == "mha"]


@pytest.mark.parametrize("cell", SCALED, ids=test_scales.label)
def test_next_scale_repeats_to_the_last_bit(cell: test_scales.ScaleCell) -> None:
    model = test_scales.MODEL
    memory = taped(cell.memory(), [*model.parameters(), *model.quantizer.parameters()])
    for seeds in ([0, 1, 2], [9, 4, 7]):
        expected, found = (test_scales.generate(cell, seeds, memory=given) for given in (cell.memory(), memory))
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
        assert recorded(memory) == len(test_scales.SIDES)
    forced = expected[0].flip(0)
    for _ in range(2):
        assert torch.equal(test_scales.generate(cell, seeds, forced, memory)[1], test_scales.generate(cell, seeds, forced)[1])


# -- masked -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cell", masked.cells(masked.MODES), ids=masked.label)
def test_masked_repeats_to_the_last_bit(cell: masked.MaskedCell) -> None:
    memory = taped(cell.memory(), [*masked.MODEL.parameters()])
    for seeds in (masked.SEEDS, (40, 2, 8)):
        expected, found = (masked.generate(cell.build(), given, seeds) for given in (cell.memory(), memory))
        assert torch.equal(found, expected)
    counts = [step.count for step in masked_steps(masked.LAYOUT, cell.build().passes(masked.CONFIG.steps))]
    assert recorded(memory) == len(counts) + len(set(counts)), "one for each pass of the transformer, one for each shape of the head"
