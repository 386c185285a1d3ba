"""Examples of next-token methods on a small model with random weights."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.layout import Layout, raster_steps
from ..contract.method import Method
from ..core.errors import BadBudget
from ..core.spec import Sampling
from ..models.llamagen import LlamaGen, LlamaGenConfig
from .common import KitRun, MethodCell, calibration, neutral_parameters

GRID, BATCH, LAYERS, HEADS = 6, 2, 2, 4
ATTENTION: dict[str, int | None] = {"mha": None, "gqa": 2}  # K/V heads; two with two queries each show queries folded in a wrong order
SEEDS = tuple(range(BATCH))
SAMPLING = Sampling(cfg_scale=1.5)
LOUDER = {"wqkv.weight": 8, "attention.wo.weight": 4, "output.weight": 8}
RATIOS = (Fraction(1, 2), Fraction(1, 3), Fraction(2, 3), Fraction(3, 4))


@functools.cache
def model(attention: str, grid: int = GRID, layers: int = LAYERS, heads: int = HEADS) -> LlamaGen:
    """Return a model with random weights, scaled up so that attention is far from uniform."""
    config = LlamaGenConfig(layers, heads, 16 * heads, vocab=64, classes=10, grid=grid, kv_heads=ATTENTION[attention])
    tiny = LlamaGen(config).initialise(0).eval()
    for name, parameter in tiny.named_parameters():
        parameter.data *= next((factor for part, factor in LOUDER.items() if name.endswith(part)), 1)
    return tiny


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
    def smaller(self) -> Sequence[Cell]:
        return [replace(self, layers=layers, heads=heads, grid=grid) for layers, heads, grid in ((1, 1, 4), (1, 2, 4), (2, 2, 5))]

    @property
    def model(self) -> LlamaGen:
        """The model under the method."""
        return model(self.attention, self.grid, self.layers, self.heads)

    @property
    def parameters(self) -> Iterable[Tensor]:
        return [*self.model.parameters(), self.model.rope]

    @property
    def layout(self) -> Layout:
        return self.model.layout(range(BATCH), SAMPLING)

    @property
    def passes(self) -> set[int]:
        """The condition, the first token, every end of a line, the steps after these, and the last two."""
        steps = raster_steps(self.layout)
        ends = [step.index for step in steps if "line" in step.edges]
        return {0, 1, *ends, *(end + 1 for end in ends), len(steps) - 2, len(steps) - 1} & {step.index for step in steps}

    @property
    def undecided(self) -> tuple[int, ...]:
        """Steps without eviction at any budget: the condition, the first token, the end of the first line."""
        return 0, 1, next(step.index for step in raster_steps(self.layout) if "line" in step.edges)

    def at(self, budget: Fraction, driven: Layout | None = None) -> Method:
        """Return the method at a budget, calibrated with random facts for ``driven`` or the own layout."""
        calibrated = calibration(self.cls, driven or self.layout)
        return self.cls.build({**calibrated, **self.cls.parameters_for(budget, self.layout), **dict(self.mode)})

    def tight(self, driven: Layout | None = None) -> Method:
        """Return the method at about half the image, or the nearest budget that it supports.

        A method that does not evict may use the whole image. Raises BadBudget if it supports none of these.
        """
        for budget in (*RATIOS, *(() if self.cls.evicts else (Fraction(1),))):
            try:
                method = self.at(budget)
                method.resolve(self.layout)
            except BadBudget:
                continue
            return method if driven is None else self.at(budget, driven)
        raise BadBudget(f"{self.label} supports none of the budgets {', '.join(map(str, RATIOS))}, so it cannot be checked")

    def neutral(self) -> Method:
        full_budget = calibration(self.cls, self.layout) | self.cls.parameters_for(Fraction(1), self.layout)
        return self.cls.build({**full_budget, **dict(self.mode), **neutral_parameters(self.cls)})

    def generate(self, method: Method, memory: Memory, seeds: Sequence[int], forced: Tensor | None, with_logits: bool) -> KitRun:
        """Generate; the class of a sample is its seed modulo 10."""
        logits: list[Tensor] = []
        see = (lambda index, guided: logits.append(guided[:, 0].clone())) if with_logits else None
        labels = torch.tensor([seed % 10 for seed in seeds])
        tokens = self.model.generate(labels, list(seeds), method, SAMPLING, memory, forced=forced, see=see)
        return KitRun(method, memory, {}, tokens, torch.stack(logits) if logits else None)
