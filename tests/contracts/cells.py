"""The cells: every next-token method × its further modes × codec × kind of attention, and one recorded run of each."""

from __future__ import annotations

import functools
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.codec import CODECS
from cachemark.cache.layout import Layout, Site, Step
from cachemark.contract.method import Method
from cachemark.core import registry
from cachemark.core.errors import BadBudget
from cachemark.core.spec import Sampling
from cachemark.models.llamagen import LlamaGen, LlamaGenConfig

from .driver import Watch, watched
from .oracle import Shadow

GRID, BATCH = 6, 2
ATTENTION: dict[str, int | None] = {"mha": None, "gqa": 1}
SAMPLING = Sampling(cfg_scale=1.5)
RATIOS = (Fraction(1, 2), Fraction(1, 3), Fraction(2, 3), Fraction(3, 4))
# Modes of a method that its budget alone does not reach. LineAR's anchor is small, so that its middle region leaves it a choice.
MODES: dict[str, tuple[dict[str, Any], ...]] = {
    "linear": ({"anchor": 2}, {"anchor": 2, "score": "accumulated"}),
    "window": ({}, {"keep_condition": False}),
}


@functools.cache
def model(attention: str, grid: int = GRID) -> LlamaGen:
    """Random weights, scaled up so that attention is far from uniform and what it reads shows in the logits."""
    tiny = LlamaGen(LlamaGenConfig(2, 4, 64, vocab=64, classes=10, grid=grid, kv_heads=ATTENTION[attention])).initialise(0).eval()
    for block in tiny.layers:
        block.attention.wqkv.weight.data *= 8
        block.attention.wo.weight.data *= 4
    tiny.output.weight.data *= 8
    return tiny


@dataclass(frozen=True)
class Cell:
    """One method in one mode, with one codec, on one kind of attention."""

    cls: type[Method]
    mode: tuple[tuple[str, Any], ...]
    codec: str
    attention: str
    grid: int = GRID

    @property
    def label(self) -> str:
        return "-".join([self.cls.name, *(f"{knob}={value}" for knob, value in self.mode), self.codec, self.attention])

    @property
    def layout(self) -> Layout:
        return model(self.attention, self.grid).layout(range(BATCH), SAMPLING)

    def at(self, budget: Fraction) -> Method:
        return self.cls.build({**self.cls.knobs_for(budget, self.layout), **dict(self.mode)})

    def tight(self) -> Method:
        """The method at a budget that makes it work: about half the image, or the nearest that it can meet.

        The whole image only for a method that does not evict.
        """
        for budget in (*RATIOS, *(() if self.cls.evicts else (Fraction(1),))):
            try:
                method = self.at(budget)
                method.resolve(self.layout)
            except BadBudget:
                continue
            return method
        raise AssertionError(f"{self.label} meets none of the budgets {', '.join(map(str, RATIOS))}, so its contract cannot be tested")

    def memory(self) -> Memory:
        return Memory("cpu", CODECS[self.codec])


def cells(*, evicting: bool = False, grid: int = GRID) -> list[Cell]:
    """All cells, or those of methods that evict. Reads the registry, so a new method joins by being registered."""
    known: list[type[Method]] = [registry.methods.get(name) for name in registry.methods]
    chosen = [cls for cls in known if "next-token" in cls.paradigms and (cls.evicts or not evicting)]
    modes = [(cls, tuple(mode.items())) for cls in chosen for mode in MODES.get(cls.name, ({},))]
    return [Cell(cls, mode, codec, attention, grid) for cls, mode in modes for codec in CODECS for attention in ATTENTION]


def label(cell: Cell) -> str:
    return cell.label


def sampled(chosen: Sequence[Any], always: Container[Any]) -> list[Any]:
    """Parameters for cells of any family: those in ``always`` for every run of the tests, the others for the nightly one."""
    return [pytest.param(cell, id=cell.label, marks=[] if cell in always else [pytest.mark.slow]) for cell in chosen]


def one_a_method(chosen: Sequence[Any]) -> list[Any]:
    """The first cell of each method, and the first with a codec that rounds."""
    return [*{cell.cls if cell.codec == "native" else cell.codec: cell for cell in reversed(chosen)}.values()]


def crossed(chosen: Sequence[Any]) -> list[Any]:
    """The native codec with heads of their own, the others with shared ones: both of each, in half of the cells."""
    return [cell for cell in chosen if (cell.codec == "native") == (cell.attention == "mha")]


def halved(chosen: Sequence[Any]) -> list[Any]:
    """Parameters of which every run takes the crossed half: the codec and the kind of attention are the slot's, not the method's."""
    return sampled(chosen, crossed(chosen))


@dataclass
class Ran:
    """What a generation gave: tokens (batch, N), guided logits (N, batch, vocab), the method and its memory."""

    tokens: Tensor
    logits: Tensor
    method: Method
    memory: Memory


def generate(cell: Cell, method: Method, *watches: Watch, memory: Memory | None = None, seeds: Sequence[int] = range(BATCH),
             forced: Tensor | None = None) -> Ran:  # fmt: skip
    """One generation of the cell's model, seen by ``watches``. The class of a sample follows from its seed."""
    logits: list[Tensor] = []

    def keep(index: int, guided: Tensor) -> None:
        logits.append(guided[:, 0].clone())

    seen, memory = watched(method, *watches) if watches else method, memory or cell.memory()
    labels = torch.tensor([seed % 10 for seed in seeds])
    tokens = model(cell.attention, cell.grid).generate(labels, list(seeds), seen, SAMPLING, memory, forced=forced, see=keep)
    return Ran(tokens, torch.stack(logits), seen, memory)


@dataclass
class Moment:
    """One pass: live entries of each site while it ran and after its work, and what the live prefix held after it."""

    step: Step
    during: dict[Site, list[int]]
    after: dict[Site, list[int]]
    held: dict[Site, Tensor]


@dataclass
class Record(Watch):
    """Keeps every moment of a generation."""

    moments: list[Moment] = field(default_factory=list)
    _during: dict[Site, list[int]] = field(default_factory=dict)

    def fed(self, method: Method, step: Step) -> None:
        self._during = {site: list(slot.live) for site, slot in method.slots.items()}

    def settled(self, method: Method, step: Step) -> None:
        after = {site: list(slot.live) for site, slot in method.slots.items()}
        held = {site: slot.visual[..., : max(slot.live)].clone() for site, slot in method.slots.items()}
        self.moments.append(Moment(step, self._during, after, held))


@dataclass
class Recorded(Ran):
    moments: list[Moment]
    shadow: Shadow


@functools.cache
def recorded(cell: Cell) -> Recorded:
    """The reference run of a cell at its tight budget, recorded and shadowed by the oracle."""
    record, shadow = Record(), Shadow()
    ran = generate(cell, cell.tight(), record, shadow)
    return Recorded(ran.tokens, ran.logits, ran.method, ran.memory, record.moments, shadow)
