"""Next-token cells: one method in one mode, with one codec, on a small model with random weights, and recorded runs of it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.layout import Layout, Site, Step
from ..contract.method import Method
from ..core.errors import BadBudget
from ..core.spec import Sampling
from ..models.llamagen import LlamaGen, LlamaGenConfig
from .common import MethodCell, calibration
from .driver import Onlooker, Outputs, Place, slots_of, watched
from .oracle import TokenShadow

GRID, BATCH, LAYERS, HEADS = 6, 2, 2, 4
ATTENTION: dict[str, int | None] = {"mha": None, "gqa": 1}
SEEDS = tuple(range(BATCH))
SAMPLING = Sampling(cfg_scale=1.5)
LOUDER = {"wqkv.weight": 8, "attention.wo.weight": 4, "output.weight": 8}
RATIOS = (Fraction(1, 2), Fraction(1, 3), Fraction(2, 3), Fraction(3, 4))


def model(attention: str, grid: int = GRID, layers: int = LAYERS, heads: int = HEADS) -> LlamaGen:
    """Random weights, scaled up so that attention is far from uniform and what it reads shows in the logits."""
    return _model(attention, grid, layers, heads)


@functools.cache
def _model(attention: str, grid: int, layers: int, heads: int) -> LlamaGen:
    config = LlamaGenConfig(layers, heads, 16 * heads, vocab=64, classes=10, grid=grid, kv_heads=ATTENTION[attention])
    tiny = LlamaGen(config).initialise(0).eval()
    for name, parameter in tiny.named_parameters():
        parameter.data *= next((factor for part, factor in LOUDER.items() if name.endswith(part)), 1)
    return tiny


class NoBudget(AssertionError):
    """A method meets none of the budgets at which its contract could be tried on a model of this size."""


@dataclass(frozen=True)
class Cell(MethodCell):
    """One method in one mode, with one codec, on one kind of attention and size of model."""

    grid: int = GRID
    layers: int = LAYERS
    heads: int = HEADS

    @property
    def size(self) -> str:
        return f"{self.blocks(self.layers, self.heads)}, {self.grid}×{self.grid} tokens, codec {self.codec}"

    @property
    def seeds(self) -> Sequence[int]:
        return SEEDS

    @property
    def model(self) -> LlamaGen:
        """The model that it runs on."""
        return model(self.attention, self.grid, self.layers, self.heads)

    @property
    def in_bf16(self) -> LlamaGen:
        """A copy of the model in bf16."""
        return copy.deepcopy(self.model).bfloat16()

    @property
    def layout(self) -> Layout:
        """Shape of its reference run."""
        return self.model.layout(range(BATCH), SAMPLING)

    def at(self, budget: Fraction, driven: Layout | None = None) -> Method:
        """The method at a budget; what it asks to be known of a model is made up, for a ``driven`` layout where it is not the cell's."""
        given = calibration(self.cls, driven or self.layout)
        return self.cls.build({**given, **self.cls.knobs_for(budget, self.layout), **dict(self.mode)})

    def tight(self, driven: Layout | None = None) -> Method:
        """The method at a budget that makes it work: about half the image, or the nearest that it can meet; the whole image only for a
        method that does not evict. NoBudget where there is none. ``driven``: as of :meth:`at`."""
        for budget in (*RATIOS, *(() if self.cls.evicts else (Fraction(1),))):
            try:
                method = self.at(budget)
                method.resolve(self.layout)
            except BadBudget:
                continue
            return method if driven is None else self.at(budget, driven)
        raise NoBudget(f"{self.label} meets none of the budgets {', '.join(map(str, RATIOS))}, so its contract cannot be tested")


@dataclass
class TokenRun:
    """A generation: tokens (batch, N), guided logits (N, batch, vocab), the method and its memory."""

    tokens: Tensor
    logits: Tensor
    method: Method
    memory: Memory


def generate(cell: Cell, method: Method, *watches: Onlooker, memory: Memory | None = None, seeds: Sequence[int] = range(BATCH),
             forced: Tensor | None = None) -> TokenRun:  # fmt: skip
    """One generation of the cell's model, seen by ``watches``. The class of a sample follows from its seed."""
    logits: list[Tensor] = []

    def keep(index: int, guided: Tensor) -> None:
        logits.append(guided[:, 0].clone())

    seen, memory = watched(method, *watches) if watches else method, memory or cell.memory()
    labels = torch.tensor([seed % 10 for seed in seeds])
    tokens = cell.model.generate(labels, list(seeds), seen, SAMPLING, memory, forced=forced, see=keep)
    return TokenRun(tokens, torch.stack(logits), seen, memory)


@dataclass
class Moment:
    """One pass: live entries of each slot while it ran and after its work, and what the live prefix held after it."""

    step: Step
    during: dict[Place, list[int]]
    after: dict[Place, list[int]]
    contents: dict[Place, Tensor]


@dataclass
class TokenRecord(Onlooker):
    """Keeps every moment of a generation."""

    moments: list[Moment] = field(default_factory=list)
    _during: dict[Place, list[int]] = field(default_factory=dict)

    def fed(self, method: Method, step: Step) -> None:
        self._during = {place: list(slot.live) for place, slot in slots_of(method).items()}

    def settled(self, method: Method, step: Step) -> None:
        after = {place: list(slot.live) for place, slot in slots_of(method).items()}
        held = {place: slot.visual[..., : max(slot.live)].clone() for place, slot in slots_of(method).items()}
        self.moments.append(Moment(step, self._during, after, held))


@dataclass
class Answers(Onlooker):
    """Keeps what attention answered at every pass and site."""

    out: Outputs = field(default_factory=dict)
    steps: dict[int, Step] = field(default_factory=dict)

    def after(self, method: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        self.out[step.index, site] = out.clone()
        self.steps[step.index] = step


@dataclass
class Recorded(TokenRun):
    """A reference run, with all that was seen of it."""

    moments: list[Moment]
    shadow: TokenShadow
    answers: Answers


@functools.cache
def recorded(cell: Cell) -> Recorded:
    """The reference run of a cell at its tight budget, recorded and shadowed by the oracle."""
    record, shadow, answers = TokenRecord(), TokenShadow(), Answers()
    ran = generate(cell, cell.tight(), record, shadow, answers)
    return Recorded(ran.tokens, ran.logits, ran.method, ran.memory, record.moments, shadow, answers)
