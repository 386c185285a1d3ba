"""Look-ahead and horizons: under a decoder a method has the tokens and entries of sequential decoding."""

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.codecs import CODECS
from cachemark.contract.decoder import Sequential, beyond, horizon, spare, widest
from cachemark.contract.method import Method
from cachemark.decoders.jacobi import Jacobi
from cachemark.kit.common import calibration
from cachemark.kit.next_token import GRID, model
from cachemark.methods import registry
from cachemark.methods.full import Full
from cachemark.methods.linear import Linear
from cachemark.methods.rkv import RKV

from .test_windows import GUIDED, SAMPLINGS, SEEDS, N, generate, poisoned

METHODS: dict[str, Callable[[], Method]] = {
    "linear": lambda: Linear(B=3 * GRID, anchor=1), "wide": lambda: Linear(B=4 * GRID, anchor=2), "rkv": lambda: RKV(B=3 * GRID, alpha=4),
    "long": lambda: RKV(B=3 * GRID, alpha=GRID + 3),
}  # fmt: skip


def ahead(window: int, **parameters: Any) -> Jacobi:
    return Jacobi(window=window, look_ahead=True, **parameters)


# -- the tokens, and what is held -------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "window"), [
    *((name, GRID + 1) for name in METHODS), ("linear", 2), ("rkv", N), ("long", 2), ("wide", N)])
def test_tokens_are_the_method_s_own_and_no_more_live_than_a_window_above_its_budget(name: str, window: int) -> None:
    method, decoder, memory = METHODS[name](), ahead(window), Memory()
    own, plain = METHODS[name](), Memory()
    assert torch.equal(generate(decoder, method=lambda: method, memory=memory), generate(None, method=lambda: own, memory=plain))
    assert sum(decoder.kept) == N
    assert max(decoder.kept) <= GRID
    known = [sum(decoder.kept[:number]) for number in range(len(decoder.kept))]
    looked = [fed for accepted, fed in zip(known, decoder.fed, strict=True) if accepted and (accepted - 1) % GRID + fed > GRID]
    assert looked, "some passes go past the line's end"
    (bank,), (narrow,) = method.banks, own.banks
    assert narrow.capacity < bank.capacity == min(narrow.capacity + window - 1, bank.layout.stored)
    entry = len(bank.sites) * bank.layout.rows
    assert narrow.peak < bank.peak <= narrow.peak + (window - 1) * entry
    assert own.logical_bytes < method.logical_bytes
    assert plain.nbytes("slots") < memory.nbytes("slots")


@pytest.mark.parametrize(("name", "proposals"), [("interval", "newest"), ("greedy", "above"), ("top-k", "newest")])
def test_every_sampling_has_its_own_tokens(name: str, proposals: str) -> None:
    tokens = generate(ahead(9, proposals=proposals), SAMPLINGS[name], method=METHODS["linear"], attention="gqa")
    assert torch.equal(tokens, generate(None, SAMPLINGS[name], method=METHODS["linear"], attention="gqa"))


@pytest.mark.parametrize("name", ["int8", "kivi4"])
def test_a_codec_alone_decides_the_tokens(name: str) -> None:
    """Keys that share ranges leave nothing to look at."""
    memory, plain, decoder = Memory(codec=CODECS[name]), Memory(codec=CODECS[name]), ahead(8)
    assert torch.equal(generate(decoder, method=METHODS["linear"], memory=memory), generate(None, method=METHODS["linear"], memory=plain))
    assert (decoder.fed == [1] * N) == (memory.nbytes("slots") == plain.nbytes("slots")) == CODECS[name].grouped


@pytest.mark.parametrize("window", [5, 16])
def test_what_does_not_stay_is_never_read(window: int) -> None:
    tokens = generate(ahead(window), method=lambda: poisoned(Linear)(B=3 * GRID, anchor=1))
    assert torch.equal(tokens, generate(None, method=METHODS["linear"]))


def test_forced_tokens_are_fed_line_by_line() -> None:
    own = generate(None, method=METHODS["linear"])
    decoder, seen = ahead(GRID), list[Tensor]()
    generate(decoder, method=METHODS["linear"], forced=own, see=lambda _, logits: seen.append(logits.clone()))
    assert decoder.fed == decoder.kept == [1, *[GRID] * (GRID - 1), GRID - 1]
    alone: list[Tensor] = []
    generate(None, method=METHODS["linear"], forced=own, see=lambda _, logits: alone.append(logits.clone()))
    assert torch.allclose(torch.cat(seen, 1), torch.cat(alone, 1), atol=1e-4)


# -- who is looked past, and who is not -------------------------------------------------------------------------------
def test_linear_by_mass_is_served_one_token_a_pass() -> None:
    layout = model("mha").layout(SEEDS, GUIDED)
    by_mass = Linear(B=3 * GRID, anchor=1, score="accumulated")
    assert (spare(by_mass, layout, ahead(8)), widest(by_mass, layout)) == (0, 1)
    assert spare(Linear(B=3 * GRID, anchor=1), layout, ahead(8)) == 7
    assert spare(Linear(B=3 * GRID, anchor=1), layout, Jacobi(window=8)) == 0


@pytest.mark.parametrize(("cls", "override", "expected"), [
    (Linear, "", (GRID - 3, N - 3)), (Linear, "footnotes", (GRID - 3, N - 3)), (Linear, "observe", (1, 0)),
    (Linear, "horizon", (GRID - 3, 0)), (Full, "", (N - 3, 0)), (Full, "footnotes", (N - 3, 0)), (Full, "evict", (1, 0)),
    (Full, "observe", (1, 0)), (Method, "", (1, 0)),
])  # fmt: skip
def test_what_observes_or_evicts_inherits_no_horizon(cls: type[Method], override: str, expected: tuple[int, int]) -> None:
    method = type("Derived", (cls,), {override: getattr(cls, override)} if override else {})(**({"B": 3 * GRID} if cls is Linear else {}))
    method.layout, method.banks = model("mha").layout(SEEDS, GUIDED), []
    assert (horizon(method, 3), beyond(method, 3)) == expected


# -- horizons ------------------------------------------------------------------------------------------------------------
def evicting() -> list[str]:
    built_in = {name: cls for name in registry.METHODS if (cls := registry.METHODS.get(name)).__module__.startswith("cachemark.methods")}
    return [name for name, cls in built_in.items() if "next-token" in cls.paradigms and cls.horizon is Method.horizon]


@pytest.mark.parametrize("name", evicting())
def test_a_method_without_a_horizon_is_served_one_token_a_pass_to_the_byte(name: str) -> None:
    cls, layout = registry.METHODS.get(name), model("mha").layout(SEEDS, GUIDED)
    make = functools.partial(cls.build, {**calibration(cls, layout), **cls.parameters_for(Fraction(1, 2), layout)})
    outcomes = []
    for decoder in (None, Sequential(), Jacobi(window=8), Jacobi(window=8, look_ahead=True)):
        memory, method, logits = Memory(), make(), []
        tokens = generate(decoder, memory=memory, method=lambda method=method: method,
                          see=lambda _, guided, logits=logits: logits.append(guided.clone()))
        outcomes.append((tokens, torch.cat(logits, 1), method.logical_bytes, [memory.nbytes(kind) for kind in ("slots", "workspace")]))
        if isinstance(decoder, Jacobi):
            assert decoder.kept == [1] * N
    assert widest(make(), layout) == 1
    assert spare(make(), layout, Jacobi(window=8, look_ahead=True)) == 0
    for tokens, logits, *notes_of in outcomes[1:]:
        assert torch.equal(tokens, outcomes[0][0])
        assert torch.equal(logits, outcomes[0][1])
        assert notes_of == [*outcomes[0][2:]]
