"""Cases to be inspected on small models with random weights, one for each family."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from cachemark.cache.arena import Memory
from cachemark.cache.codec import CODECS
from cachemark.contract.method import Bidirectional, Method
from cachemark.core.spec import Sampling
from cachemark.kit import masked_checks, next_scale, next_token
from cachemark.kit.inspection import Inspected
from cachemark.models.protocol import Loaded
from cachemark.models.var import VAR, VARConfig
from cachemark.models.vision.msvq import MultiScaleQuantizer

MODES = {"ams_kv": (("demanding", [1]),)}  # which it otherwise has measured
SEEDS, FRESH, LABELS = (0, 1), (7001, 7002), (1, 2)


@functools.cache
def scales() -> VAR:
    """A next-scale model in the layout of the kit's cells."""
    quantizer = MultiScaleQuantizer(next_scale.SIDES, 64, 8).requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for parameter in quantizer.parameters():
            parameter.normal_()
    config = VARConfig(next_scale.LAYERS, 4, 64, next_scale.SIDES, vocab=64, classes=10, width=8)
    return VAR(config, quantizer).initialise(0).eval().requires_grad_(False)


def of_a_token_model(cls: type[Method]) -> Inspected:
    """A method on the smallest next-token model that has two layers."""
    cell = next_token.Cell(cls, (), "native", "mha", grid=4, heads=1)
    return Inspected(_loaded(cell.model), cell.tight, Method, Memory, next_token.SAMPLING, LABELS, SEEDS, FRESH)


def _loaded(model: Any) -> Loaded:
    tensors = [*model.parameters(), *model.buffers(), *(t for t in vars(model).values() if isinstance(t, torch.Tensor))]
    return Loaded(model, lambda tokens: tokens, "random:0", tensors)


def rounded(case: Inspected) -> Inspected:
    """The case with keys and values in int8."""
    return replace(case, memory=lambda: Memory("cpu", CODECS["int8"]))


def cases(cls: type[Method]) -> Iterator[tuple[str, Inspected]]:
    """A method on every family that it has, at a budget that makes it work."""
    for paradigm in cls.paradigms:
        model: Any
        full: type[Method] = Method
        if paradigm == "next-token":
            cell = next_token.Cell(cls, (), "native", "mha")
            model, build, sampling = cell.model, cell.tight, next_token.SAMPLING
        elif paradigm == "next-scale":
            model, sampling = scales(), Sampling(cfg_scale=1.5, cfg_schedule="linear")
            build = next_scale.ScaleCell(cls, MODES.get(cls.name, ()), "native", "mha").tight
        else:
            example = masked_checks.masked_cells(cls)[0]
            model, build, sampling, full = masked_checks.model(), example.build, masked_checks.SAMPLING, Bidirectional
        yield paradigm, Inspected(_loaded(model), build, full, Memory, sampling, LABELS, SEEDS, FRESH)
