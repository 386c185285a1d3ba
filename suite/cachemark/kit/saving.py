"""Check of the declared work of next-scale methods that save computation, on a tiny VAR and Infinity."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.layout import Layout, scale_names, squares
from ..contract.method import Method
from ..core.spec import Sampling
from ..models import costs
from ..models.infinity import Infinity, InfinityConfig
from ..models.var import VAR, VARConfig
from ..models.vision.msvq import MultiScaleQuantizer
from ..roofline.bill import bill
from .common import Findings, FlopsCell, KitRun, smallest_share
from .work import count_work

VAR_SIZES = VARConfig(5, 2, 32, sides=(1, 2, 3, 4, 6), vocab=48, classes=10, width=8)
INFINITY_SIZES = InfinityConfig(5, 2, 32, chunks=1, scales=squares((1, 2, 3, 4, 6)), width=5, text=256, longest=8)
WIDE_SIZES = replace(INFINITY_SIZES, scales=((1, 1), (1, 2), (2, 4), (3, 5), (4, 6)))
TEXTS = 7, 4, 6  # entries of the texts
SAMPLING = {"var": Sampling(cfg_scale=1.5, cfg_schedule="linear"), **dict.fromkeys(("infinity", "wide infinity"), Sampling(cfg_scale=3.0))}
SEEDS = (5, 11, 23)


@functools.cache
def model(name: str) -> VAR | Infinity:
    """Return a model with random weights, large enough for attention to be far from uniform."""
    draw = torch.Generator().manual_seed(0)
    tiny: VAR | Infinity
    if name == "var":
        quantizer = MultiScaleQuantizer(VAR_SIZES.sides, VAR_SIZES.vocab, VAR_SIZES.width)
        for parameter in quantizer.parameters():
            parameter.data.normal_(0, 0.5, generator=draw)
        tiny = VAR(VAR_SIZES, quantizer)
    else:
        sizes = WIDE_SIZES if name == "wide infinity" else INFINITY_SIZES
        tiny = Infinity(sizes, [torch.randn(count, sizes.text, generator=draw) for count in TEXTS])
    for parameter_name, parameter in tiny.named_parameters():
        if not parameter_name.endswith(("scale_mul_1H11", "norm.weight")):
            parameter.data.normal_(0, 0.2, generator=draw)
    return tiny.eval().requires_grad_(False)


@dataclass(frozen=True)
class SavingCell(FlopsCell):
    """A method on a next-scale model, which ``attention`` names."""

    @property
    def size(self) -> str:
        return f"{self.attention} of scales {', '.join(scale_names(self.layout.scales))}, codec {self.codec}"

    @property
    def seeds(self) -> Sequence[int]:
        return SEEDS

    @property
    def layout(self) -> Layout:
        return model(self.attention).layout(SEEDS, SAMPLING[self.attention])

    @property
    def passes(self) -> set[int]:
        method = self.tight()
        method.resolve(self.layout)
        return set(range(method.scales(self.layout)))

    @property
    def parameters(self) -> Iterable[Tensor]:
        own = model(self.attention)
        return [*own.parameters(), *(own.quantizer.parameters() if isinstance(own, VAR) else (own.rope,))]

    def generate(self, method: Method, memory: Memory, seeds: Sequence[int], forced: Tensor | None, with_logits: bool) -> KitRun:
        """Generate; the label of a sample is the position of its seed."""
        labels, logits = torch.tensor([seed % len(TEXTS) for seed in seeds]), list[Tensor]()
        see = (lambda first, scale: logits.append(scale.clone())) if with_logits else None
        tokens = model(self.attention).generate(labels, list(seeds), method, SAMPLING[self.attention], memory, forced=forced, see=see)
        return KitRun(method, memory, {}, tokens, logits if with_logits else None)


def saving_cells(cls: type[Method], mode: tuple[tuple[str, Any], ...] = ()) -> Sequence[SavingCell]:
    """Return the method on both models, at its smallest budget or else with its own parameters."""
    modes = {name: smallest_share(cls, mode, model(name).layout(SEEDS, SAMPLING[name])) or mode for name in SAMPLING}
    return [SavingCell(cls, fitted, codec, name) for name, fitted in modes.items() for codec in ("native", "int8")]


def flops_are_the_declared_ones(cell: SavingCell) -> Findings:
    """Dispatched FLOPs follow from ``scales``, ``computed_rows``, ``computes`` and ``attended``."""
    own, layout, method = model(cell.attention), cell.layout, cell.tight()
    counts = costs.var(VAR_SIZES, lambda: None) if isinstance(own, VAR) else costs.infinity(own.config, lambda: None, max(TEXTS))
    dispatched = count_work(cell, method).flops
    declared = bill(method, layout, counts, images=False).flops
    if dispatched != declared:
        yield cell.finding(f"{declared:,} FLOPs, as declared", f"{dispatched:,}")


def scales_that_are_not_generated_are_absent(cell: SavingCell) -> Findings:
    """Every token of a generated scale is sampled, and the others are −1."""
    generated = cell.layout.ending(cell.record.method.scales(cell.layout)).visual
    for tokens in cell.record.tokens:
        if int((tokens[:generated] < 0).sum()) or int((tokens[generated:] != -1).sum()):
            yield cell.finding(f"{generated} tokens of a sample, and −1 for the others", f"{tokens.tolist()}")
