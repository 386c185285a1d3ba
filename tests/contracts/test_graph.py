"""The graph engine gives the tokens of the eager one, bit for bit, for every method of every family.

The first generation records, the second one, of other samples, repeats; each is compared with the eager engine's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
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
from cachemark.kit.cpu_graphs import CpuGraphs, capture_on_cpu
from cachemark.methods.streaming import Streaming
from cachemark.models.llamagen import LlamaGen

from . import cells as token
from . import masked, test_scales


def captured(memory: Memory) -> int:
    assert isinstance(memory.engine, Graph)
    return memory.engine.captured


# -- next-token -------------------------------------------------------------------------------------------------------
OTHER = (7, 3)
TOKEN = token.crossed(token.cells())
SCALED = test_scales.MHA
MASKED = masked.cells(masked.MODES)


def fresh(cell: token.Cell) -> Memory:
    model = token.model(cell.attention, cell.grid)
    return capture_on_cpu(cell.memory(), [*model.parameters(), model.rope])


def same(cell: token.Cell, memory: Memory, seeds: Sequence[int], method: Method | None = None, forced: Tensor | None = None) -> bool:
    """Whether one generation by the memory's engine and one by the eager engine are equal to the last bit."""
    expected = token.generate(cell, method or cell.tight(), seeds=seeds, forced=forced)
    found = token.generate(cell, method or cell.tight(), seeds=seeds, memory=memory, forced=forced)
    return torch.equal(found.tokens, expected.tokens) and torch.equal(found.logits, expected.logits)


# In every run a mode of each method is repeated; that all modes can be recorded is seen by the tests of what a pass reads on the host.
@pytest.mark.parametrize("cell", token.sampled(TOKEN, token.one_a_method(TOKEN)))
def test_next_token_repeats_to_the_last_bit(cell: token.Cell) -> None:
    memory = fresh(cell)
    assert same(cell, memory, (0, 1))
    passes = captured(memory)
    assert same(cell, memory, OTHER)
    assert captured(memory) == passes, "the second generation repeats what the first one has recorded"


@pytest.mark.parametrize(("name", "captures"), [("full", 36), ("linear", 19), ("streaming", 20), ("h2o", 20), ("rkv", 36)])
def test_a_saw_tooth_needs_few_recordings(name: str, captures: int) -> None:
    """One capture for the condition and one per number of live entries before a pass, at most 18.

    One line fewer for LineAR, one more with a slack of one. R-KV's ring turns every 8 tokens, which lines of 6 never meet.
    """
    cell = native(name)
    memory = fresh(cell)
    token.generate(cell, cell.tight(), memory=memory)
    assert captured(memory) == captures


def native(name: str) -> token.Cell:
    return next(c for c in token.cells() if (c.cls.name, c.codec, c.attention) == (name, "native", "mha"))


# -- in 16 bit --------------------------------------------------------------------------------------------------------
@cache
def rounded(family: str) -> tuple[Any, Sampling]:
    """A family's tiny model in bf16."""
    given, sampling = {"token": (token.model("mha"), token.SAMPLING), "scale": (test_scales.MODEL, test_scales.SAMPLING),
                       "masked": (masked.MODEL, masked.SAMPLING)}[family]  # fmt: skip
    return copy.deepcopy(given).bfloat16(), sampling


def families() -> Iterator[Any]:
    """Return every method and mode in the native codec; all but one per family are slow."""
    of = {"token": (TOKEN, "linear"), "scale": (SCALED, "ams_kv"), "masked": (MASKED, "lazymar")}
    for family, (cells, always) in of.items():
        native = [cell for cell in cells if cell.codec == "native"]
        first = next(cell for cell in native if cell.cls.name == always)
        yield from (pytest.param(family, cell, id=f"{family}-{cell.label}", marks=[] if cell == first else [pytest.mark.slow])
                    for cell in native)


@pytest.mark.parametrize(("family", "cell"), list(families()))
def test_bf16_repeats_to_the_last_bit(family: str, cell: Any) -> None:
    """Tokens and all logits are equal; on a GPU a tolerance replaces this."""
    model, sampling = rounded(family)
    lasting = [tensor for _, tensor in (*model.named_parameters(), *model.named_buffers())]
    extra = [model.rope] if family == "token" else [*model.quantizer.parameters()] if family == "scale" else []
    memory = capture_on_cpu(cell.memory(), [*lasting, *extra])

    def ran(seeds: Sequence[int], given: Memory) -> list[Tensor]:
        steps: list[Tensor] = []
        method = cell.tight()
        labels = torch.tensor([seed % 10 for seed in seeds])
        tokens = model.generate(labels, list(seeds), method, sampling, given, see=lambda _, step_logits: steps.append(step_logits.clone()))
        return [tokens, *steps]

    for seeds in ((0, 1), OTHER):
        assert all(torch.equal(*pair) for pair in zip(ran(seeds, memory), ran(seeds, cell.memory()), strict=True))
    assert captured(memory) > 0


# -- what would be wrong is seen --------------------------------------------------------------------------------------
def test_a_position_in_the_recording_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A position from the step instead of the input is only right if each pass is captured."""
    given = LlamaGen._pass
    places = torch.arange(36)

    def baked(self: LlamaGen, step: Step, *rest: Any) -> tuple[Tensor, ...]:
        return given(self, step, *rest[:-1], places[step.index : step.index + 1])

    def memory(cell: token.Cell) -> Memory:
        model = token.model(cell.attention, cell.grid)
        return capture_on_cpu(cell.memory(), [*model.parameters(), model.rope, places])

    monkeypatch.setattr(LlamaGen, "_pass", baked)
    for name, right in (("full", True), ("streaming", False)):
        kept = memory(cell := native(name))
        token.generate(cell, cell.tight(), memory=kept)
        assert same(cell, kept, OTHER) is right


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
    cell = token.Cell(cls, (), "native", "mha")
    memory = fresh(cell)
    token.generate(cell, cell.tight(), memory=memory)
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
            token.generate(cell, cell.tight(), memory=memory)
        return
    assert all(same(cell, memory, seeds) for seeds in ((0, 1), OTHER))
    assert engine.captured == remaining
    assert engine.missed == 2 * (36 - remaining)


# -- next-scale -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cell", token.sampled(SCALED, token.one_a_method(SCALED)))
def test_next_scale_repeats_to_the_last_bit(cell: test_scales.ScaleCell) -> None:
    model = test_scales.MODEL
    memory = capture_on_cpu(cell.memory(), [*model.parameters(), *model.quantizer.parameters()])
    for seeds in ([0, 1, 2], [9, 4, 7]):
        expected, found = (test_scales.generate(cell, seeds, memory=given) for given in (cell.memory(), memory))
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
        assert captured(memory) == len(test_scales.SIDES)
    forced = expected[0].flip(0)
    logits = test_scales.generate(cell, seeds, forced)[1]
    assert all(torch.equal(test_scales.generate(cell, seeds, forced, memory)[1], logits) for _ in range(2))


# -- masked -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cell", token.sampled(MASKED, token.one_a_method(MASKED)))
def test_masked_repeats_to_the_last_bit(cell: masked.MaskedCell) -> None:
    memory = capture_on_cpu(cell.memory(), [*masked.MODEL.parameters()])
    for seeds in (masked.SEEDS, (40, 2, 8)):
        expected, found = (masked.generate(cell.build(), given, seeds) for given in (cell.memory(), memory))
        assert torch.equal(found, expected)
    method = cell.build()
    method.resolve(masked.LAYOUT)
    paced = method.paced(masked.LAYOUT)
    parts = [tuple(method.denoising(step, paced.diffusion)) for step in masked_steps(paced, paced.steps)]
    assert captured(memory) == len(parts) + len(set(parts)), "one for each pass of the transformer, one for each shape of the head"
