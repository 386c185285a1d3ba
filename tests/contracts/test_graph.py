"""The graph engine is the eager one to the last bit, and heads differ, where the kit does not check it."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.codecs import CODECS
from cachemark.cache.layout import Layout, Site, Step
from cachemark.cache.masked_layout import masked_steps
from cachemark.cache.ragged import Kept, RaggedSlot, RaggedWorkspace
from cachemark.contract import heads
from cachemark.contract.heads import HeadGroups
from cachemark.contract.method import Method
from cachemark.core.errors import BadParameter, BadPlugin, Unsupported
from cachemark.core.spec import Sampling
from cachemark.kit import checks, masked as kit
from cachemark.kit.capture import CpuGraphs, NotCapturable, capture_on_cpu, capturing
from cachemark.kit.driver import RasterFeed, drive, layout_of
from cachemark.kit.next_scale import SIDES, ScaleCell
from cachemark.kit.next_token import Cell
from cachemark.methods.ams_kv import AMSKV
from cachemark.methods.base.evicting import visual_budget
from cachemark.methods.streaming import Streaming
from cachemark.methods.window import Window

from . import cells as token, masked, scales
from .scales import BUILT_IN, CELLS, Scored, Staggered, run


def captured(memory: Memory) -> int:
    return memory.engine.captured


OTHER = (7, 3)


def fresh(cell: Cell) -> Memory:
    return capture_on_cpu(cell.memory(), list(cell.parameters))


def same(cell: Cell, memory: Memory, seeds: Sequence[int]) -> bool:
    """Whether one generation by the memory's engine and one by the eager engine are equal to the last bit."""
    expected, actual = (cell.run(cell.tight(), seeds=seeds, memory=given, bare=True) for given in (None, memory))
    return torch.equal(actual.tokens, expected.tokens) and torch.equal(actual.logits, expected.logits)


def native(name: str) -> Cell:
    return next(c for c in token.cells() if (c.cls.name, c.codec, c.attention) == (name, "native", "mha"))


def captures_of_a_generation(cell: Cell) -> tuple[int, Memory]:
    memory = fresh(cell)
    cell.run(cell.tight(), memory=memory, bare=True)
    return captured(memory), memory


def test_a_saw_tooth_needs_few_recordings() -> None:
    """One capture for the condition and one per number of live entries before a pass, at most 18.

    One line fewer for LineAR, one more with a slack of one. R-KV's ring turns every 8 tokens, which lines of 6 never meet.
    """
    expected = {"full": 36, "linear": 19, "streaming": 20, "h2o": 20, "rkv": 36}
    assert {name: captures_of_a_generation(native(name))[0] for name in expected} == expected


# -- next-scale and masked --------------------------------------------------------------------------------------------
PER_HEAD = [ScaleCell(cls, (), "native", "mha") for cls in (Staggered, Scored, *BUILT_IN)]
SCALES = [*(cell for cell in scales.DETERMINISTIC if cell.attention == "mha" and cell.square), *PER_HEAD]
DAILY = ("native", "int8", "turbo2")  # codecs
FAMILIES: dict[str, tuple[list[Any], Any, Sampling]] = {
    "scale": (SCALES, scales.model(), scales.SAMPLING), "masked": (masked.cells(), kit.model(), kit.SAMPLING),
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
    for family, (cells, *_) in FAMILIES.items()
    for param in token.sampled(cells, [cell for cell in token.one_a_method(cells) if cell.codec in DAILY])
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
    if cell in PER_HEAD:  # heads differ, else the checks of the kit say nothing about it
        assert max(len(set(each)) for each in cell.record.moments[-1].after.values()) > 1


class Turns(Streaming):
    """Reads the step in a pass: every other one writes something else into what is attended to."""

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super().attend(site, step, q, k, -v if step.index % 2 else v)


@pytest.mark.parametrize(("attributes", "captures", "right"), [
    ({}, 36, True), ({"graph_key": lambda self, step: step.index % 2}, 21, True),
    ({"graph_key": lambda self, step: None}, 20, False),  # broken on purpose: says that it reads nothing
])
def test_what_a_method_reads_of_the_step_is_part_of_the_key(attributes: dict[str, Any], captures: int, right: bool) -> None:
    cls = type("Keyed", (Turns,), attributes)
    cell = Cell(cls, (), "native", "mha")
    recorded, memory = captures_of_a_generation(cell)
    assert (recorded, same(cell, memory, OTHER)) == (captures, right)


@pytest.mark.parametrize("remaining", [0, 5])
def test_where_memory_runs_out_passes_run_as_written(remaining: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is full after so many captures."""
    capture, made = CpuGraphs.capture, list[object]()

    def short(self: CpuGraphs, work: Any) -> Any:
        if len(made) == remaining:
            raise torch.OutOfMemoryError("none is left")
        made.append(work)
        return capture(self, work)

    monkeypatch.setattr(CpuGraphs, "capture", short)
    cell = native("linear")
    memory = fresh(cell)
    if not remaining:
        with pytest.raises(torch.OutOfMemoryError, match="does not fit one"):
            cell.run(cell.tight(), memory=memory, bare=True)
        return
    assert all(same(cell, memory, seeds) for seeds in ((0, 1), OTHER))
    assert captured(memory) == remaining
    assert memory.engine.missed == 2 * (36 - remaining)  # type: ignore[attr-defined]


# -- heads ------------------------------------------------------------------------------------------------------------
@dataclass
class Windows(HeadGroups):
    """Every head has a window of another width; a mean of ``mean`` visual entries."""

    name = "staggered"
    mean: int = 0

    @classmethod
    def parameters_for(cls, budget: Fraction, layout: Layout) -> dict[str, Any]:
        return {"mean": visual_budget(budget, layout)}

    def budget(self, layout: Layout, layer: int, head: int) -> int:
        """Of a head; at the whole budget all keep all."""
        return layout.visual if self.mean >= layout.visual else max(2, self.mean + 3 * ((head + layer) % 3 - 1))

    def served(self, layout: Layout, site: Site) -> Sequence[Method]:
        return [Window(B=self.budget(layout, site.layer, head)) for head in range(layout.kv_heads)]


def test_each_head_is_what_it_is_in_a_uniform_cache() -> None:
    """Driven by one feed, each head answers as under the uniform method of its budget."""
    layout, method = layout_of(), Windows(mean=12)
    feed = RasterFeed(layout)
    answers = drive(method, layout, feed)
    for layer, head in itertools.product(range(layout.layers), range(layout.kv_heads)):
        expected = drive(Window(B=method.budget(layout, layer, head)), layout, feed)
        for (index, site), out in answers.items():
            if site.layer == layer:
                torch.testing.assert_close(out[:, head], expected[index, site][:, head], rtol=0, atol=1e-6)


def test_heads_that_are_mixed_up_and_a_group_that_hides_what_it_should_evict_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under classes of their own, so that what is broken is no run of another test."""
    roomy = type("Roomy", (Window,), {"capacity": lambda self, layout, site: layout.stored})
    wasteful = type("Wasteful", (Windows,), {
        "served": lambda self, layout, site: [(roomy if head else Window)(B=self.mean) for head in range(layout.kv_heads)]})
    cell = Cell(wasteful, (), "native", "mha")
    assert list(checks.declared_is_used(cell))
    assert not list(checks.evicting_is_masking(cell))
    monkeypatch.setattr(heads, "select_heads", lambda x, heads: torch.stack([x[:, head] for head in reversed(heads)], 1))
    assert list(checks.evicting_is_masking(Cell(type("Crossed", (Windows,), {}), (), "native", "mha")))


# -- next-scale -------------------------------------------------------------------------------------------------------
class Shrinks(Staggered):
    """The second layer gives up at the fourth scale, what the first one gains there."""

    def held(self, layer: int, head: int, total: int) -> int:
        return 10 if (layer == 0) is (total >= sum(side**2 for side in SIDES[:4])) else min(total, 5)

    def select(self, site: Site, step: Step, slot: RaggedSlot, workspace: RaggedWorkspace, q: Tensor) -> Sequence[Kept]:
        return [[range(min(n + step.count, self.held(site.layer, head, step.first + step.count)))] for head, n in enumerate(slot.lengths)]

    def entries(self, layout: Layout, site: Site) -> int:
        return 10 * layout.kv_heads


def test_the_high_water_lies_between_two_layers() -> None:
    """Layers have 10 + 5 + 5 or 5 + 10 + 10 entries after a pass, 10 + 10 + 10 within the fourth."""
    ran = run(Shrinks())
    layout = ran.method.layout
    entry_bytes = layout.rows * layout.kv_heads * CODECS["native"].pair_bytes(layout.head_dim, layout.dtype)
    assert (ran.method.logical_bytes, ran.method.peak_live_bytes) == (25 * entry_bytes, 30 * entry_bytes)
    assert ran.memory.nbytes("slots") == 30 * entry_bytes


def test_too_small_a_declaration_keys_that_share_ranges_and_a_head_without_a_method_are_refused() -> None:
    denies = type("Denies", (Staggered,), {"entries": lambda *of: Staggered.entries(*of) - 1})
    with pytest.raises(BadPlugin, match="47 entries of all heads do not fit into 46"):
        run(denies())
    with pytest.raises(Unsupported, match="kivi4 shares the ranges of keys"):
        run(Staggered(), codec="kivi4")
    for attributes, words in (({"served": lambda *of: [*Windows.served(*of)][:-1]},
                               r"short: 3 methods for the heads of layer 0\. .*each of the 4 K/V heads"),
                              ({"budget": lambda *_: 0}, "window: B = 0 is out of range")):
        with pytest.raises(BadParameter, match=words):
            type("Short", (Windows,), {"name": "short", **attributes})(mean=8).resolve(layout_of())


@pytest.mark.parametrize("cell", [cell for cell in CELLS if "c_min" in dict(cell.mode)], ids=ScaleCell.label.fget)
def test_ams_kv_with_budgets_for_everything_is_the_full_cache(cell: ScaleCell) -> None:
    """The kit skips these modes, whose own budgets no other budget replaces."""
    everything = cell.layout.cacheable
    ran = cell.run(AMSKV.build({**dict(cell.mode), "c_min": everything, "c_max": everything}))
    assert all(torch.equal(ran.answers[where], out) for where, out in cell.full(ran.method).answers.items())


@pytest.mark.parametrize("cell", [cell for cell in CELLS if dict(cell.mode).get("decide") == "online"], ids=ScaleCell.label.fget)
def test_deciding_online_cannot_be_captured_and_says_so(cell: ScaleCell) -> None:
    method = cell.record.method
    assert not method.capturable
    assert "batch" in method.footnotes[0]
    with pytest.raises(NotCapturable), capturing(cell.passes) as capture:
        cell.run(cell.tight(), capture, bare=True)
