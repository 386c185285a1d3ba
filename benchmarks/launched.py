"""Record the fused kernels that passes of published models launch, on torch's meta device, which computes nothing.

The models have the published widths and few layers, so all of them take seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.launches import counting
from cachemark.cache.arena import Memory
from cachemark.cache.kernels import fused
from cachemark.core.spec import Sampling
from cachemark.methods.registry import METHODS
from cachemark.models import llamagen, mar, var
from cachemark.models.vision.msvq import MultiScaleQuantizer

BATCH = 16


class Launch(NamedTuple):
    """A launch of a kernel: its arguments, constants and warps, and whether every operation is rounded as torch does."""

    name: str
    tensors: Sequence[Tensor]
    numbers: Sequence[Any]
    warps: int
    exact: bool
    constants: Mapping[str, int]


def models() -> Iterator[tuple[Any, str, Sampling]]:
    """Yield models, each with a method and sampling options."""
    with torch.device("meta"):
        llama = llamagen.LlamaGen(replace(llamagen.SIZES["XL"], layers=1, grid=6))
        config = replace(var.SIZES["d30"], depth=1)
        scales = var.VAR(config, MultiScaleQuantizer(config.sides, codes=config.vocab, width=config.width))
        masked = mar.MAR(replace(mar.SIZES["L"], depth=(1, 1), head_depth=1, steps=4, diffusion=(4,)))
    yield llama, "full", Sampling()
    yield llama, "linear", Sampling(cfg_scale=1.75)
    yield scales, "full", Sampling(cfg_scale=1.5, cfg_schedule="linear", top_k=900, top_p=0.96)
    yield masked, "full", Sampling(cfg_scale=3.0, cfg_schedule="linear")


def launched() -> list[Launch]:
    """Return the first launch of each kernel with each choice of constants and dtypes."""
    found: dict[tuple[Any, ...], Launch] = {}

    def record(
        name: str, grid: tuple[int, ...], tensors: tuple[Tensor, ...], *numbers: Any, warps: int = 4, exact: bool = False,
        touched: Sequence[Tensor] = (), kernels: str = "", **constants: int,
    ) -> None:
        kind = name, *(x.dtype for x in tensors), *(number == 1 for number in numbers), *constants.values()
        found.setdefault(kind, Launch(name, tensors, numbers, warps, exact, constants))

    with ExitStack() as stack:
        for module in [module for module in sys.modules.values() if getattr(module, "launch", None) is fused.launch]:
            stack.enter_context(patch.object(module, "launch", record))
        for model, name, sampling in models():
            layout, cls = model.layout([*range(BATCH)], sampling), METHODS.get(name)
            method = cls.build({} if name == "full" else {"B": layout.visual // 2})
            with counting(fused=True):
                model.to(torch.bfloat16).eval().generate(torch.zeros(BATCH, dtype=torch.int64, device="meta"), [*range(BATCH)], method,
                                                         sampling, Memory("meta"))
    return [*found.values()]
