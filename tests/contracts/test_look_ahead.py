"""Look-ahead past a line's end: tokens and entries equal those of sequential decoding."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.codec import CODECS
from cachemark.cache.layout import Step, window_step
from cachemark.cache.slot import Slot
from cachemark.contract.decoder import Decoder, Rehearsal, beyond, spare, widest
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.decoders.jacobi import Jacobi
from cachemark.methods.full import Full
from cachemark.methods.linear import Linear
from cachemark.methods.rkv import RKV
from cachemark.models.llamagen import LlamaGen
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS

from .cells import GRID, model
from .test_graph import captured
from .test_windows import GUIDED, SAMPLINGS, SEEDS, N, generate, graph_memory

WINDOWS = (2, GRID + 1, N)
METHODS: dict[str, Callable[[], Method]] = {
    "linear": lambda: Linear(B=3 * GRID, anchor=1), "wide": lambda: Linear(B=4 * GRID, anchor=2), "rkv": lambda: RKV(B=3 * GRID, alpha=4),
    "long": lambda: RKV(B=3 * GRID, alpha=GRID + 3),
}  # fmt: skip


def ahead(window: int, **parameters: Any) -> Jacobi:
    return Jacobi(window=window, look_ahead=True, **parameters)


# -- the tokens, and what is held -------------------------------------------------------------------------------------
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", METHODS)
def test_tokens_are_the_method_s_own_and_no_more_live_than_a_window_above_its_budget(name: str, window: int) -> None:
    method, decoder, memory = METHODS[name](), ahead(window), Memory()
    own, plain = METHODS[name](), Memory()
    assert torch.equal(generate(decoder, method=lambda: method, memory=memory), generate(None, method=lambda: own, memory=plain))
    assert sum(decoder.kept) == N
    assert max(decoder.kept) <= GRID
    passes = zip(known_before(decoder), decoder.fed, strict=True)
    looked = [fed for accepted, fed in passes if accepted and (accepted - 1) % GRID + fed > GRID]
    assert looked, "some passes go past the line's end"
    (bank,), (narrow,) = method.banks, own.banks
    assert narrow.capacity < bank.capacity == min(narrow.capacity + window - 1, bank.layout.stored)
    entry = len(bank.sites) * bank.layout.rows
    assert narrow.peak < bank.peak <= narrow.peak + (window - 1) * entry
    assert own.logical_bytes < method.logical_bytes
    assert plain.nbytes("slots") < memory.nbytes("slots")


def known_before(decoder: Decoder) -> list[int]:
    """Tokens that were known before each pass."""
    return [sum(decoder.kept[:number]) for number in range(len(decoder.kept))]


@pytest.mark.parametrize("name", ["interval", "greedy", "top-k"])
def test_every_sampling_has_its_own_tokens(name: str) -> None:
    for proposals in ("newest", "above"):
        decoder = ahead(9, proposals=proposals)
        tokens = generate(decoder, SAMPLINGS[name], method=METHODS["linear"], attention="gqa")
        assert torch.equal(tokens, generate(None, SAMPLINGS[name], method=METHODS["linear"], attention="gqa"))


def test_an_image_is_the_same_alone_and_beside_a_codec_that_rounds() -> None:
    count = generate(None, method=METHODS["linear"])
    for seeds in ([5], [6, 0, 3]):
        assert torch.equal(generate(ahead(8), seeds=seeds, method=METHODS["linear"]), count[seeds])
    rounded = [generate(decoder, method=METHODS["linear"], memory=Memory(codec=CODECS["int8"])) for decoder in (None, ahead(8))]
    assert torch.equal(*rounded)


def test_keys_that_share_ranges_leave_nothing_to_look_at() -> None:
    memory, plain, decoder = Memory(codec=CODECS["kivi4"]), Memory(codec=CODECS["kivi4"]), ahead(8)
    assert torch.equal(generate(decoder, method=METHODS["linear"], memory=memory), generate(None, method=METHODS["linear"], memory=plain))
    assert decoder.fed == [1] * N
    assert memory.nbytes("slots") == plain.nbytes("slots")


class PoisonedLine(Linear):
    """Writes NaN over everything behind the live entries whenever drafts are cut off."""

    def horizon(self, first: int) -> int:
        return super().horizon(first)

    def beyond(self, first: int) -> int:
        return super().beyond(first)

    def roll_back(self, count: int) -> None:
        super().roll_back(count)
        for slot in self.slots.values():
            for part in (*slot.k, *slot.v):
                part[:, :, slot.live[0] :] = float("nan")


@pytest.mark.parametrize("window", [5, 16])
def test_what_does_not_stay_is_never_read(window: int) -> None:
    tokens = generate(ahead(window), method=lambda: PoisonedLine(B=3 * GRID, anchor=1))
    assert torch.equal(tokens, generate(None, method=METHODS["linear"]))


def test_forced_tokens_are_fed_line_by_line() -> None:
    own = generate(None, method=METHODS["linear"])
    decoder, seen = ahead(GRID), list[Tensor]()
    generate(decoder, method=METHODS["linear"], forced=own, see=lambda _, logits: seen.append(logits.clone()))
    assert decoder.fed == decoder.kept == [1, *[GRID] * (GRID - 1), GRID - 1]
    alone: list[Tensor] = []
    generate(None, method=METHODS["linear"], forced=own, see=lambda _, logits: alone.append(logits.clone()))
    assert torch.allclose(torch.cat(seen, 1), torch.cat(alone, 1), atol=1e-4)


# -- recordings -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["linear", "long"])
def test_a_tape_gives_the_same_tokens_and_records_nothing_behind_a_rehearsal(name: str) -> None:
    memory, window = graph_memory(), GRID + 1
    generate(Rehearsal(window=window, look_ahead=True), SAMPLINGS["interval"], SEEDS[:2], METHODS[name], memory=memory)
    count = captured(memory)
    for seeds in (SEEDS[2:4], SEEDS[4:6]):
        tokens = generate(ahead(window), SAMPLINGS["interval"], seeds, METHODS[name], memory=memory)
        assert torch.equal(tokens, generate(None, SAMPLINGS["interval"], seeds, METHODS[name]))
        assert captured(memory) == count


# -- passes -----------------------------------------------------------------------------------------------------------
def test_a_trained_model_takes_fewer_passes() -> None:
    """`tests/slow/test_decoders.py` has more images and windows."""
    loaded = MODELS.get("tiny-llamagen").load(Request("cpu", torch.float32)).generator
    assert isinstance(loaded, LlamaGen)
    sampling, seeds = Sampling(cfg_scale=1.5), [0]
    parameters = Linear.parameters_for(Fraction(1, 4), loaded.layout(seeds, sampling))
    passes: list[int] = []
    drawn = []
    for decoder in (Jacobi(window=16), ahead(16)):
        drawn.append(loaded.generate(torch.tensor(seeds), seeds, Linear(**parameters), sampling, Memory(), decoder=decoder))
        passes.append(len(decoder.kept))
    assert torch.equal(*drawn)
    assert passes[1] < passes[0]


# -- who is looked past, and who is not -------------------------------------------------------------------------------


def test_linear_by_mass_is_served_one_token_a_pass() -> None:
    layout = model("mha").layout(SEEDS, GUIDED)
    by_mass = Linear(B=3 * GRID, anchor=1, score="accumulated")
    assert (spare(by_mass, layout, ahead(8)), widest(by_mass, layout)) == (0, 1)
    assert spare(Linear(B=3 * GRID, anchor=1), layout, ahead(8)) == 7
    assert spare(Linear(B=3 * GRID, anchor=1), layout, Jacobi(window=8)) == 0


def test_a_sight_beyond_is_not_inherited_by_what_observes() -> None:
    class CalmLine(Linear):
        footnotes = ("a word more",)

    class ObservingLine(Linear):
        def observe(self, *arguments: Any) -> None: ...

    class NearLine(Linear):
        def horizon(self, first: int) -> int:
            return super().horizon(first)

    for cls, expected in ((Linear, N - 3), (CalmLine, N - 3), (ObservingLine, 0), (NearLine, 0), (Full, 0), (Method, 0)):
        method = cls(**({"B": 3 * GRID} if issubclass(cls, Linear) else {}))
        method.layout, method.banks = model("mha").layout(SEEDS, GUIDED), []
        assert beyond(method, 3) == expected


def test_a_step_knows_what_does_not_stay() -> None:
    layout = model("mha").layout(SEEDS, GUIDED)
    assert window_step(layout, 4, 7, 5) == Step(11, N, 4, 7, 1, ("token", "line"), beyond=5)
    assert window_step(layout, 3, 5, 3) == Step(8, N, 3, 5, 1, ("token",), beyond=3)
    assert window_step(layout, 4, 7, 5).staying == 2


# -- what is found out ------------------------------------------------------------------------------------------------
class NotesAll(Linear):
    """Notes the query of every token that is fed in its column, those behind the line's end too."""

    def horizon(self, first: int) -> int:
        return super().horizon(first)

    def beyond(self, first: int) -> int:
        return super().beyond(first)

    def observe(self, site: Any, step: Step, slot: Slot, q: Tensor, mass: Tensor | None) -> None:
        n = self.layout.line
        for token in range(step.count):
            self.guide[slot.index, :, :, (step.first + token) % n] = q[:, :, token]


def test_a_ring_that_is_written_past_the_line_is_found_out() -> None:
    def make() -> Method:
        return NotesAll(B=3 * GRID, anchor=1)

    true = generate(None, method=make)
    assert torch.equal(generate(Jacobi(window=5), method=make), true)
    assert not torch.equal(generate(ahead(5), method=make), true)
