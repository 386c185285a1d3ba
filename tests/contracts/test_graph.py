"""The graph engine gives the tokens of the eager one, bit for bit.

The kit checks it on next-token methods and on those that save computation, tests/gpu all families on a device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.engines import Graph
from cachemark.cache.layout import Site, Step
from cachemark.cache.masked_layout import masked_steps
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.kit import masked as kit
from cachemark.kit import next_token
from cachemark.kit.capture import CpuGraphs, capture_on_cpu
from cachemark.kit.next_scale import SIDES, ScaleCell
from cachemark.methods.streaming import Streaming

from . import cells as token
from . import masked, test_scales
from .scales import BUILT_IN, Scored, Staggered


def captured(memory: Memory) -> int:
    assert isinstance(memory.engine, Graph)
    return memory.engine.captured


# -- next-token -------------------------------------------------------------------------------------------------------
OTHER = (7, 3)


def fresh(cell: next_token.Cell, *lasting: Tensor) -> Memory:
    return capture_on_cpu(cell.memory(), [*cell.parameters, *lasting])


def same(cell: next_token.Cell, memory: Memory, seeds: Sequence[int]) -> bool:
    """Whether one generation by the memory's engine and one by the eager engine are equal to the last bit."""
    expected, actual = (cell.run(cell.tight(), seeds=seeds, memory=given, bare=True) for given in (None, memory))
    return torch.equal(actual.tokens, expected.tokens) and torch.equal(actual.logits, expected.logits)


@pytest.mark.parametrize(("name", "captures"), [("full", 36), ("linear", 19), ("streaming", 20), ("h2o", 20), ("rkv", 36)])
def test_a_saw_tooth_needs_few_recordings(name: str, captures: int) -> None:
    """One capture for the condition and one per number of live entries before a pass, at most 18.

    One line fewer for LineAR, one more with a slack of one. R-KV's ring turns every 8 tokens, which lines of 6 never meet.
    """
    cell = native(name)
    memory = fresh(cell)
    cell.run(cell.tight(), memory=memory, bare=True)
    assert captured(memory) == captures


def native(name: str) -> next_token.Cell:
    return next(c for c in token.cells() if (c.cls.name, c.codec, c.attention) == (name, "native", "mha"))


# -- next-scale and masked --------------------------------------------------------------------------------------------
PER_HEAD = [ScaleCell(cls, (), "native", "mha") for cls in (Staggered, Scored, *BUILT_IN)]
SCALES = [*(cell for cell in test_scales.MHA if cell.square), *PER_HEAD]
FAMILIES: dict[str, tuple[list[Any], Any, Sampling]] = {
    "scale": (SCALES, test_scales.MODEL, test_scales.SAMPLING), "masked": (masked.cells(), kit.model(), kit.SAMPLING),
}


def captures_of(family: str, cell: Any) -> int:
    """Return the number of captures: one per scale; of masked models one per pass, and one per shape of the head."""
    if family == "scale":
        return len(SIDES)
    method = cell.tight()
    method.resolve(cell.layout)
    paced = method.paced(cell.layout)
    parts = [tuple(method.denoising(step, paced.diffusion)) for step in masked_steps(paced, paced.steps)]
    return len(parts) + len(set(parts))


@pytest.mark.parametrize(("family", "cell"), [
    pytest.param(family, *param.values, id=f"{family}-{param.id}", marks=param.marks)
    for family, (cells, *_) in FAMILIES.items() for param in token.sampled(cells, token.one_a_method(cells))
])  # fmt: skip
def test_captured_steps_repeat_to_the_last_bit(family: str, cell: Any) -> None:
    """Tokens, all logits and bytes; the second generation, of other samples, repeats what the first one captured."""
    _, model, sampling = FAMILIES[family]
    own = model.quantizer.parameters() if family == "scale" else ()
    memory = capture_on_cpu(cell.memory(), [*model.parameters(), *model.buffers(), *own])

    def ran(seeds: Sequence[int], given: Memory) -> list[Tensor]:
        steps, method, labels = list[Tensor](), cell.tight(), torch.tensor([seed % 10 for seed in seeds])
        tokens = model.generate(labels, list(seeds), method, sampling, given, see=lambda _, logits: steps.append(logits.clone()))
        return [tokens, *steps, torch.tensor([method.logical_bytes, given.nbytes("slots")])]

    for seeds in ((0, 1), OTHER):
        assert all(torch.equal(*pair) for pair in zip(ran(seeds, memory), ran(seeds, cell.memory()), strict=True))
        assert captured(memory) == captures_of(family, cell)


# -- what would be wrong is seen --------------------------------------------------------------------------------------


@dataclass
class Turns(Streaming):
    """Reads the step in a pass: every other one writes something else into what is attended to."""

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super().attend(site, step, q, k, -v if step.index % 2 else v)


@dataclass
class TurnsAndSays(Turns):
    def graph_key(self, step: Step) -> int:
        return step.index % 2


@dataclass
class TurnsAndHides(Turns):
    """Broken on purpose: says that it reads nothing."""

    def graph_key(self, step: Step) -> None:
        return None


@pytest.mark.parametrize(("cls", "captures", "right"), [(Turns, 36, True), (TurnsAndSays, 21, True), (TurnsAndHides, 20, False)])
def test_what_a_method_reads_of_the_step_is_part_of_the_key(cls: type[Method], captures: int, right: bool) -> None:
    cell = next_token.Cell(cls, (), "native", "mha")
    memory = fresh(cell)
    cell.run(cell.tight(), memory=memory, bare=True)
    assert captured(memory) == captures
    assert same(cell, memory, OTHER) is right


# -- the engine itself ------------------------------------------------------------------------------------------------
class Short(CpuGraphs):
    """An emulator that is full after so many captures."""

    def __init__(self, lasting: Any, remaining: int) -> None:
        super().__init__(lasting)
        self.left = remaining

    def capture(self, work: Any) -> Any:
        if not self.left:
            raise torch.OutOfMemoryError("none is left")
        self.left -= 1
        return super().capture(work)


@pytest.mark.parametrize("remaining", [0, 5])
def test_where_memory_runs_out_passes_run_as_written(remaining: int) -> None:
    cell = native("linear")
    memory = fresh(cell)
    engine = memory.engine
    assert isinstance(engine, Graph)
    engine._backend = Short(engine._backend._lasting, remaining)  # type: ignore[attr-defined]
    if not remaining:
        with pytest.raises(torch.OutOfMemoryError, match="does not fit one"):
            cell.run(cell.tight(), memory=memory, bare=True)
        return
    assert all(same(cell, memory, seeds) for seeds in ((0, 1), OTHER))
    assert engine.captured == remaining
    assert engine.missed == 2 * (36 - remaining)
