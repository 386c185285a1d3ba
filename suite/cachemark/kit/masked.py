"""Examples of masked methods on a tiny MAR with random weights."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.layout import Layout
from ..contract.method import Method
from ..core.spec import Sampling
from ..models.mar import MAR, MARConfig
from .common import FlopsCell, KitRun, smallest_share

# The diffusion head skips its noisiest half, which with random weights would multiply the tokens by thousands.
CONFIG = MARConfig(32, (2, 4), 4, 6, 24, grid=6, channels=4, classes=10, buffer=4, steps=8, diffusion=(3, 0))
SAMPLING = Sampling(cfg_scale=3.0, cfg_schedule="linear")
SEEDS = (5, 11, 23)


@functools.cache
def model() -> MAR:
    """Return a model with random weights, large enough for attention to be far from uniform."""
    tiny, draw = MAR(CONFIG).eval().requires_grad_(False), torch.Generator().manual_seed(0)
    for name, parameter in tiny.named_parameters():
        parameter.normal_(0, 0.1 if "diffloss" in name else 0.4, generator=draw)
    return tiny


@dataclass(frozen=True)
class MaskedCell(FlopsCell):
    """A method on a masked model."""

    @property
    def size(self) -> str:
        return f"MAR of {CONFIG.grid}×{CONFIG.grid} tokens in {CONFIG.steps} passes, codec {self.codec}"

    @property
    def seeds(self) -> Sequence[int]:
        return SEEDS

    @property
    def layout(self) -> Layout:
        return model().layout(SEEDS, SAMPLING)

    @property
    def passes(self) -> set[int]:
        return set(range(CONFIG.steps))

    @property
    def parameters(self) -> Iterable[Tensor]:
        return model().parameters()

    def generate(self, method: Method, memory: Memory, seeds: Sequence[int], forced: Tensor | None, with_logits: bool) -> KitRun:
        """Generate; the class of a sample is its seed modulo the number of classes."""
        labels, drawn = torch.tensor([seed % CONFIG.classes for seed in seeds]), list[Tensor]()
        see = (lambda places, tokens: drawn.append(tokens)) if with_logits else None
        return KitRun(method, memory, {}, model().generate(labels, list(seeds), method, SAMPLING, memory, forced=forced, see=see))


def masked_cells(cls: type[Method], mode: tuple[tuple[str, Any], ...] = ()) -> Sequence[MaskedCell]:
    """Return the method at the smallest budget that it supports, else with its own parameters."""
    fitted = smallest_share(cls, mode, model().layout(SEEDS, SAMPLING))
    if fitted is None:
        return [MaskedCell(cls, mode, "native")]
    return [MaskedCell(cls, fitted, codec) for codec in ("native", "int8")]
