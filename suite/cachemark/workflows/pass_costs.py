"""The cost on paper of a pass of several tokens, in passes of one: from how many tokens a pass on a decoder pays, by method and batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..cache.layout import Layout, Step, window_step
from ..contract.decoder import Decoder, window
from ..contract.method import Method
from ..core.errors import BadParameter, Unsupported
from ..core.limits import Rates
from ..core.spec import FULL
from ..core.wording import shown
from ..decoders.registry import DECODERS
from ..methods.registry import METHODS
from ..models.protocol import ModelEntry
from ..models.registry import MODELS
from ..roofline.bill import ParameterCounts, bill
from .roofline import DEFAULTS, priced_methods


@dataclass(frozen=True)
class PassCost:
    """A method under a decoder at a batch, or the ``unsupported_reason`` why there is no such line. ``cost``: the roofline time of a pass
    of as many tokens as the decoder draws over that of a pass of one, mean over an image, which is also the number of tokens a pass below
    which it loses. ``speedup`` over the sequential full cache at ``tokens`` a pass, None where nobody said how many there are."""

    method: str
    budget: str
    batch: int
    decoder: str
    unsupported_reason: str = ""
    cost: float = 0.0
    tokens: float | None = None
    speedup: float | None = None


def decoder_of(text: str) -> Decoder:
    """A decoder from ``name=window`` or ``name=window,look_ahead``. Raises UnknownName and BadParameter."""
    name, _, given = text.partition("=")
    width, *parameters = given.split(",")
    if not (width.isascii() and width.isdigit() and len(width) <= 9) or parameters not in ([], ["look_ahead"]):
        raise BadParameter(f"{shown(text)} is no decoder with a window.",
                      remedy="Write its name and the tokens of a pass: jacobi=16, or jacobi=16,look_ahead.")
    decoder: Decoder = DECODERS.get(name).build({"window": int(width), **dict.fromkeys(parameters, True)})
    decoder.check()
    return decoder


def pass_costs(
    model: str, rates: Rates, decoder: Decoder, *, methods: Sequence[str] = (), budgets: Sequence[str] = (), batches: Sequence[int] = (1,),
    dtype: str = "bfloat16", tokens: float | None = None,
) -> list[PassCost]:
    """The full cache and each method under each budget, at each batch, image decoding left out. ``tokens``: what the decoder draws a pass,
    which no arithmetic tells. Raises Unsupported for a model whose products nobody has counted, or that is not of the next-token family."""
    entry: ModelEntry = MODELS.get(model)
    if entry.paradigm != "next-token" or (parts := entry.parameter_counts()) is None:
        raise Unsupported(f"{model}: a decoder is for next-token models whose products are counted.", remedy="Leave --decoder out.")
    own_methods, own_budgets = DEFAULTS[entry.paradigm]
    found = []
    for batch in batches:
        layout = replace(entry.shape(entry.presets["paper"], batch), dtype=getattr(torch, dtype))
        whole = bill(METHODS.get(FULL)(), layout, parts, images=False).roofline_time(rates)
        candidates = priced_methods(methods or own_methods, budgets or own_budgets, layout, None, entry)
        for name, budget, method in ((FULL, "1", METHODS.get(FULL)()), *candidates):
            line = PassCost(name, budget, batch, f"{decoder.name} {decoder.reach}{' ahead' if decoder.ahead else ''}", tokens=tokens)
            found.append(replace(line, unsupported_reason=method) if isinstance(method, str)
                         else _priced(line, method, layout, parts, rates, decoder, whole))
    return found


def _priced(
    line: PassCost, method: Method, layout: Layout, parts: ParameterCounts, rates: Rates, decoder: Decoder, whole: float,
) -> PassCost:
    """The line with its values; ``whole`` is the roofline time of the sequential full cache."""
    steps = windows(method, layout, decoder)
    if max(step.count for step in steps) <= 1 < decoder.reach:
        return replace(line, unsupported_reason=f"{line.method} states no horizon, so it runs one token a pass")
    alone = bill(method, layout, parts, images=False).roofline_time(rates)
    cost = bill(method, layout, parts, images=False, steps=steps).roofline_time(rates) / alone
    return replace(line, cost=cost, speedup=None if line.tokens is None else whole / alone * line.tokens / cost)


def windows(method: Method, layout: Layout, decoder: Decoder) -> list[Step]:
    """Every pass that a decoder may run, one for each number of known tokens."""
    method.resolve(layout)
    method.layout, method.banks = layout, []
    drawn = (window(method, decoder, known) for known in range(1, layout.visual))
    return [Step(0, layout.visual), *(window_step(layout, at, count, count - most) for at, (count, most) in enumerate(drawn))]
