"""FLOPs of a masked generation on paper, from what a method computes in each block of each pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from ..cache.layout import Site
from ..cache.masked_layout import Load, MaskedLayout, MaskedStep, masked_steps
from ..contract.method import Method
from ..contract.uncached import Bidirectional
from ..core.errors import BadBudget

FREQUENCIES = 256  # channels of the sinusoid that a timestep becomes
MLP = 4  # width of a block's MLP, in widths of the block


@dataclass(frozen=True)
class Work:
    """FLOPs of one image by part: a multiplication and an addition are two, matrix products and attention alone are counted. The head
    includes what is computed once for all its passes."""

    encoder: int
    decoder: int
    head: int

    @property
    def total(self) -> int:
        return self.encoder + self.decoder + self.head


def work(method: Method, layout: MaskedLayout) -> Work:
    """FLOPs of an image under a method; raises what :meth:`Method.resolve` raises."""
    encoder, decoder, head = (sum(part) for part in zip(*_passes(method, layout), strict=True))
    once = 2 * layout.diffusion * layout.head_width * (FREQUENCIES + layout.head_width)
    return Work(encoder, decoder, head + once // layout.batch)


def by_pass(method: Method, layout: MaskedLayout) -> list[int]:
    """FLOPs of one image in each pass; what the head computes once for all of them is left out."""
    return [sum(parts) for parts in _passes(method, layout)]


def _passes(method: Method, layout: MaskedLayout) -> list[tuple[int, int, int]]:
    """FLOPs of one image in encoder, decoder and head, of each pass."""
    method.resolve(layout)
    steps = masked_steps(layout, method.passes(layout.steps))
    token = _head(method, layout, steps[0])  # the head computes as much for a token in any pass
    products = [(*_transformer(method, layout, step), step.count * token) for step in steps]
    return [(2 * a // layout.batch, 2 * b // layout.batch, 2 * c // layout.batch) for a, b, c in products]


def _transformer(method: Method, layout: MaskedLayout, step: MaskedStep) -> tuple[int, int]:
    """Multiplications of encoder and decoder in a pass, all rows."""
    seen, dim, rows = layout.buffer + step.first, layout.dim, layout.rows

    def blocks(stack: str, depth: int, tokens: int) -> int:
        plain = Load(rows, tokens, tokens, tokens)
        return sum(_block(method.computes(Site(stack, layer), step, plain), dim) for layer in range(depth))

    encoder = layout.batch * step.first * layout.channels * dim + blocks("encoder", layout.encoder, seen)
    return encoder, rows * seen * dim**2 + blocks("decoder", layout.layers, layout.places)


def _block(load: Load, dim: int) -> int:
    """Projections to q, k, v and out, both products of the attention, and the MLP."""
    return load.rows * dim * (load.tokens * (4 * dim + 2 * load.keys) + 2 * MLP * load.mlp * dim)


def _head(method: Method, layout: MaskedLayout, step: MaskedStep) -> int:
    """Multiplications of the head for one token of every sample, all its passes."""
    width, found = layout.head_width, layout.rows * layout.dim * layout.head_width
    for inner in range(layout.diffusion):
        at = replace(step, inner=inner, inners=layout.diffusion)
        loads = [method.computes(Site("head", i), at, Load(layout.rows, 1, 0, 1)) for i in range(layout.head)]
        found += sum(load.rows * width**2 * (3 * load.tokens + 2 * load.mlp) for load in loads)
        rows = loads[-1].rows if loads else layout.rows
        found += layout.batch * layout.channels * width + rows * 2 * width * (width + layout.channels)
    return found


def share(method: Method, layout: MaskedLayout) -> Fraction:
    """FLOPs of an image as a share of what it costs without a cache."""
    return Fraction(work(method, layout).total, work(Bidirectional(), layout).total)


def budget_of(method: Method, layout: MaskedLayout) -> Fraction:
    """The share as a budget that these knobs meet: rounded up to a ten-thousandth."""
    return Fraction(math.ceil(share(method, layout) * 10**4), 10**4)


def fitted(name: str, build: Callable[[int], Method], most: int, budget: Fraction, layout: MaskedLayout) -> int:
    """The largest i of 0 … ``most`` for which ``build(i)`` stays within a share of the FLOPs; they grow with i. Raises BadBudget."""
    everything = work(Bidirectional(), layout).total
    allowed = budget * everything
    if (least := work(build(0), layout).total) > allowed:
        raise BadBudget(f"{name}: it computes at least {least / everything:.3f} of the FLOPs of an image, more than {budget}.",
                        remedy="Raise the budget, or give its knobs.")
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if work(build(middle), layout).total <= allowed else (low, middle - 1)
    return low
