"""Layout and passes of a masked generation: the number and positions of the tokens that each predicts.

The numbers are known on the host before the first tensor is computed; positions are drawn per sample, on the device. No shape depends on a
value, and nothing is read back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..core.errors import Unsupported
from .layout import Layout, Step
from .timesteps import respaced, spaced

NOWHERE = torch.empty(0, 0, dtype=torch.int64)


@dataclass(frozen=True)
class MaskedLayout(Layout):
    """The shape of a masked generation; ``layers`` are the blocks of the decoder.

    ``steps``: passes of the generation. ``encoder``: blocks of the encoder. The diffusion head has ``head`` blocks of ``head_width``
    channels, which run once for each step of a diffusion of ``sections`` (see :func:`~.timesteps.respaced`) for each token of ``channels``
    numbers. Unconditional rows follow the conditional ones. ``counts``: tokens of each pass, by default from the cosine schedule.
    """

    steps: int = 0
    counts: tuple[int, ...] = ()
    encoder: int = 0
    head: int = 0
    head_width: int = 0
    channels: int = 0
    sections: tuple[int, ...] = ()

    @property
    def diffusion(self) -> int:
        """Passes of the head for each token."""
        return sum(self.sections)

    def timesteps(self, passes: int) -> tuple[int, ...]:
        """Return the timesteps of a diffusion of so many passes, ascending, spaced as the model's own.

        Raises Unsupported.
        """
        return respaced(self.sections if passes == self.diffusion else spaced(self.sections, passes))

    @property
    def dim(self) -> int:
        """Width of encoder and decoder."""
        return self.heads * self.head_dim

    @property
    def buffer(self) -> int:
        """Positions before the image that carry the class."""
        return self.longest_condition

    @property
    def places(self) -> int:
        """Tokens of the decoder: the buffer and the image."""
        return self.buffer + self.visual

    @property
    def stored(self) -> int:
        """0, since without a cache every pass computes all tokens again."""
        return 0


@dataclass(frozen=True)
class MaskedStep(Step):
    """A pass of a masked generation: ``count`` tokens are predicted from the ``first`` known ones.

    ``left``: scheduled length of the mask after the pass, at least 1. ``known`` (seen by the encoder), ``generating`` (predicted by this
    pass) and ``previous`` (predicted by the previous pass) are raster positions, ascending, (rows, …) int64 on the device; empty until the
    generation has drawn its order. In the diffusion head ``inner`` counts its passes from 0, of ``inners``; elsewhere both are 0.
    """

    left: int = 0
    inner: int = 0
    inners: int = 0
    known: Tensor = field(default=NOWHERE, compare=False, repr=False)
    generating: Tensor = field(default=NOWHERE, compare=False, repr=False)
    previous: Tensor = field(default=NOWHERE, compare=False, repr=False)

    @property
    def causal(self) -> bool:
        """False: the tokens of a pass see one another."""
        return False


def masked_steps(layout: MaskedLayout, total: int) -> list[MaskedStep]:
    """Return the passes by the layout's ``counts``, or ``total`` by the cosine schedule.

    Raises Unsupported for more passes than tokens.
    """
    tokens = layout.visual
    if not 1 <= total <= tokens:
        raise Unsupported(f"{total} steps cannot predict {tokens} tokens.", remedy=f"Use 1 … {tokens} steps: each predicts at least one.")
    steps, generated = [], 0
    for index, count in enumerate(layout.counts or cosine_counts(tokens, total)):
        steps.append(MaskedStep(index, total, generated, count, edges=("step",), left=max(1, tokens - generated - count)))
        generated += count
    return steps


def cosine_counts(tokens: int, total: int) -> tuple[int, ...]:
    """Return the tokens of each of ``total`` passes under MaskGIT's cosine schedule, rounded as in MAR.

    Li et al. 2024, §3.4. After pass s of T, floor(N·cos(π/2·(s + 1)/T)) tokens are still unknown, but at least one fewer than before and at
    least one.
    """
    counts, unknown = [], tokens
    for index in range(total - 1):
        remaining = max(1, min(unknown - 1, math.floor(tokens * math.cos(math.pi / 2 * (index + 1) / total))))
        counts.append(unknown - remaining)
        unknown = remaining
    return *counts, unknown


def placed(steps: Sequence[MaskedStep], order: Tensor) -> list[MaskedStep]:
    """Return copies of the passes with their positions.

    ``order`` (rows, N) int64 lists positions; **its tail is predicted first**.
    """
    result: list[MaskedStep] = []
    previous = order[:, :0]
    for step in steps:
        end = order.size(1) - step.first
        generating = order[:, end - step.count : end].sort(1).values
        result.append(replace(step, known=order[:, end:].sort(1).values, generating=generating, previous=previous))
        previous = generating
    return result


def take(x: Tensor, places: Tensor) -> Tensor:
    """Return the entries of ``x`` (rows, n, width) at ``places`` (rows, m)."""
    return x.gather(1, places[..., None].expand(-1, -1, x.size(-1)))


def put(x: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """Return a copy of ``x`` with ``values`` (rows, m, width) at ``places`` (rows, m)."""
    return x.scatter(1, places[..., None].expand(-1, -1, x.size(-1)), values)
