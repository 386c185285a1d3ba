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
from cachemark.kit import masked as kit
from cachemark.kit import next_token
from cachemark.kit.capture import CpuGraphs, capture_on_cpu
from cachemark.kit.next_scale import SIDES, ScaleCell
from cachemark.methods.streaming import Streaming
from cachemark.models.llamagen import LlamaGen

from . import cells as token
from . import masked, test_scales
from .scales import BUILT_IN, Scored, Staggered


def captured(memory: Memory) -> int:
    assert isinstance(memory.engine, Graph)
    return memory.engine.captured


# -- next-token -------------------------------------------------------------------------------------------------------
OTHER = (7, 3)
TOKEN = token.crossed(token.cells())
MASKED = masked.cells()


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


# -- all families ------------------------------------------------------------------------------------------------------
DAILY = ("full", "linear", "h2o", "streaming", "rkv", "adakv")  # next-token methods with a key, a ring or heads of their own
FAMILIES: dict[str, tuple[list[Any], str]] = {  # cells, and the method that also runs in bf16 and with forced tokens
    "token": (TOKEN, "linear"), "masked": (MASKED, "lazymar"),
    "scale": ([*(cell for cell in test_scales.MHA if cell.square),
               *(ScaleCell(cls, (), "native", "mha") for cls in (Staggered, Scored, *BUILT_IN))], "ams_kv"),
}


def params() -> Iterator[Any]:
    """Yield a mode of each method in fp32, and one method per family in bf16; the others are slow."""
    for family, (cells, always) in FAMILIES.items():
        daily = [cell for cell in token.one_a_method(cells) if family != "token" or cell.cls.name in DAILY or cell.codec == "kivi4"]
        for param in token.sampled(cells, daily):
            yield pytest.param(family, *param.values, torch.float32, id=f"{family}-{param.id}", marks=param.marks)
        native = [cell for cell in cells if cell.codec == "native"]
        first = next(cell for cell in native if cell.cls.name == always)
        for cell in native:
            marks = () if cell is first else pytest.mark.slow
            yield pytest.param(family, cell, torch.bfloat16, id=f"{family}-{cell.label}-bf16", marks=marks)


@cache
def model_of(family: str, attention: str, dtype: torch.dtype) -> tuple[Any, Sampling, list[Tensor]]:
    """Return a family's tiny model, its sampling, and its tensors."""
    model, sampling = {"token": (next_token.model(attention), next_token.SAMPLING), "scale": (test_scales.MODEL, test_scales.SAMPLING),
                       "masked": (kit.model(), kit.SAMPLING)}[family]  # fmt: skip
    model = copy.deepcopy(model).to(dtype)
    own = [model.rope] if family == "token" else [*model.quantizer.parameters()] if family == "scale" else []
    return model, sampling, [*model.parameters(), *model.buffers(), *own]


def captures_of(family: str, cell: Any) -> int | None:
    """Return the number of captures: one per scale; of masked models one per pass, and one per shape of the head."""
    if family == "token":
        return None
    if family == "scale":
        return len(SIDES)
    method = cell.tight()
    method.resolve(cell.layout)
    paced = method.paced(cell.layout)
    parts = [tuple(method.denoising(step, paced.diffusion)) for step in masked_steps(paced, paced.steps)]
    return len(parts) + len(set(parts))


@pytest.mark.parametrize(("family", "cell", "dtype"), list(params()))
def test_captured_steps_repeat_to_the_last_bit(family: str, cell: Any, dtype: torch.dtype) -> None:
    """Tokens, all logits and bytes are equal for other samples and, of one method per family, for forced tokens."""
    model, sampling, lasting = model_of(family, cell.attention, dtype)
    memory = capture_on_cpu(cell.memory(), lasting)

    def ran(seeds: Sequence[int], given: Memory, forced: Tensor | None = None) -> list[Tensor]:
        steps, method, labels = list[Tensor](), cell.tight(), torch.tensor([seed % 10 for seed in seeds])
        tokens = model.generate(labels, list(seeds), method, sampling, given, forced=forced,
                                see=lambda _, logits: steps.append(logits.clone()))
        return [tokens, *steps, torch.tensor([method.logical_bytes, given.nbytes("slots")])]

    count = captures_of(family, cell)
    for seeds in ((0, 1), OTHER):
        eager = ran(seeds, cell.memory())
        assert all(torch.equal(*pair) for pair in zip(ran(seeds, memory), eager, strict=True))
        count = count or captured(memory)
        assert captured(memory) == count, "the second generation repeats what the first one captured"
    if cell.cls.name != FAMILIES[family][1]:
        return
    forced = eager[0].flip(0)
    eager = ran(OTHER, cell.memory(), forced)
    for _ in range(2):  # the first captures, the second repeats
        assert all(torch.equal(*pair) for pair in zip(ran(OTHER, memory, forced), eager, strict=True))


# -- what would be wrong is seen --------------------------------------------------------------------------------------
def test_a_position_in_the_recording_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A position from the step instead of the input is only right if each pass is captured."""
    given = LlamaGen._pass
    places = torch.arange(36)

    def baked(self: LlamaGen, step: Step, *rest: Any) -> tuple[Tensor, ...]:
        return given(self, step, *rest[:-1], places[step.index : step.index + 1])

    monkeypatch.setattr(LlamaGen, "_pass", baked)
    for name, right in (("full", True), ("streaming", False)):
        kept = fresh(cell := native(name), places)
        cell.run(cell.tight(), memory=kept, bare=True)
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
