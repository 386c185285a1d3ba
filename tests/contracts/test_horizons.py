"""Horizons: methods keep their own tokens under decoders, and false horizons are detected."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Layout, Site, Step
from cachemark.contract.decoder import Sequential, horizon, spare, widest
from cachemark.contract.method import Method
from cachemark.decoders.jacobi import Jacobi
from cachemark.kit.common import calibration
from cachemark.methods.base.evicting import ring
from cachemark.methods.full import Full
from cachemark.methods.linear import Linear
from cachemark.methods.registry import METHODS
from cachemark.methods.rkv import RKV
from cachemark.methods.streaming import Streaming

from .cells import GRID, model
from .test_windows import GUIDED, SEEDS, N, generate


def evicting() -> list[str]:
    return [name for name in METHODS if "next-token" in METHODS.get(name).paradigms
            and METHODS.get(name).__module__.startswith("cachemark.methods") and "horizon" not in vars(METHODS.get(name))]


@pytest.mark.parametrize("name", evicting())
def test_a_method_without_a_horizon_is_served_one_token_a_pass_to_the_byte(name: str) -> None:
    cls, layout = METHODS.get(name), model("mha").layout(SEEDS, GUIDED)
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


Notes = list[tuple[Tensor, Tensor]]


class Noting:
    """Records entries kept after each line's eviction, and the queries that chose them."""

    notes: Notes
    chosen_by: str

    def horizon(self, first: int) -> int:
        return super().horizon(first)  # type: ignore[misc]

    def beyond(self, first: int) -> int:
        return super().beyond(first)  # type: ignore[misc]

    def evict(self, step: Step, slots: Any) -> None:
        before = slots.live_visual
        super().evict(step, slots)  # type: ignore[misc]
        if slots.live_visual < before:
            self.notes.append((slots.table().sort(-1).values.clone(), getattr(self, self.chosen_by).clone()))


class LineEnds(Noting, Linear):
    chosen_by = "guide"


class Redundant(Noting, RKV):
    chosen_by = "queries"


def as_sequential(noting: Callable[[], LineEnds | Redundant], own: Callable[[], Method], **model: Any) -> Notes:
    """Assert that tokens, kept entries and queries at line ends equal the sequential run's; return these."""
    notes_of: dict[int, Notes] = {}
    for window, look_ahead in ((0, False), (3, False), (GRID, True), (16, True)):
        method = noting()
        notes = method.notes = []
        notes_of.setdefault(window, notes)
        decoder = Jacobi(window=window, look_ahead=look_ahead) if window else None
        assert torch.equal(generate(decoder, method=lambda method=method: method, **model), generate(None, method=own, **model))
        assert decoder is None or max(decoder.kept) > 1
        for (visual, queries), (own_visual, own_queries) in zip(notes_of[0], notes, strict=True):
            assert torch.equal(visual, own_visual)
            assert torch.allclose(queries, own_queries, atol=1e-4)
    return notes_of[0]


@pytest.mark.parametrize("lines", [3, 4])
@pytest.mark.parametrize("attention", ["mha", "gqa"])
def test_linear_keeps_its_own_tokens_and_evicts_by_final_ones(attention: str, lines: int) -> None:
    notes_of = as_sequential(lambda: LineEnds(B=lines * GRID, anchor=1), lambda: Linear(B=lines * GRID, anchor=1), attention=attention)
    assert len(notes_of) == GRID - lines


@pytest.mark.parametrize("alpha", [1, 4, GRID, GRID + 3])
def test_rkv_keeps_its_own_tokens_and_evicts_by_final_ones(alpha: int) -> None:
    """Whether there are fewer or more of its latest queries than a line or a window has."""
    notes_of = as_sequential(lambda: Redundant(B=3 * GRID, alpha=alpha), lambda: RKV(B=3 * GRID, alpha=alpha))
    assert len(notes_of) == GRID - 3


class OverTheLine(Linear):
    """Looks past the line's end and keeps what it finds there, so that it evicts by drafts."""

    def capacity(self, layout: Layout, site: Site) -> int:
        return super().capacity(layout, site) + layout.line

    def prepare(self, slots: Any, memory: Memory) -> None:
        self.guide = ring(memory, slots, 2 * self.layout.line)

    def horizon(self, first: int) -> int:
        return super().horizon(first) + self.layout.line


def test_linear_that_looks_over_the_line_is_found_out() -> None:
    def make() -> Linear:
        return OverTheLine(B=3 * GRID, anchor=1)

    true = generate(None, method=make)
    assert torch.equal(generate(Jacobi(window=1), method=make), true)
    assert not torch.equal(generate(Jacobi(window=2 * GRID), method=make), true)


@dataclass
class Hasty(Streaming):
    """States a horizon that it does not have, so that it evicts while drafts are live."""

    def horizon(self, first: int) -> int:
        return self.layout.visual - first


def test_evicting_on_drafts_is_found_out() -> None:
    layout = model("mha").layout(SEEDS, GUIDED)
    parameters = Streaming.parameters_for(Fraction(1, 2), layout)
    true = generate(None, method=lambda: Streaming(**parameters))
    assert torch.equal(generate(Jacobi(window=8), method=lambda: Streaming(**parameters)), true)
    with pytest.raises(AssertionError):
        assert torch.equal(generate(Jacobi(window=8), method=lambda: Hasty(**parameters)), true)


def test_a_horizon_is_not_inherited_by_what_evicts() -> None:
    class Calm(Full):
        footnotes = ("a word more",)

    class Evicts(Full):
        def evict(self, step: Step, slots: Any) -> None: ...

    class Observes(Full):
        def observe(self, *arguments: Any) -> None: ...

    for cls, expected in ((Full, N - 3), (Calm, N - 3), (Evicts, 1), (Observes, 1), (Method, 1)):
        method = cls()
        method.layout, method.banks = model("mha").layout(SEEDS, GUIDED), []
        assert horizon(method, 3) == expected
