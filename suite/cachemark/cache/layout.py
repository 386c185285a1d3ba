"""The layout of a generation, a place in the network (site), and a moment of the generation (step).

Everything here is known on the host before the first tensor is computed. A method may let its own host attributes depend on
these, never on tensor values; that is what makes a step capturable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor


class Site(NamedTuple):
    """A place in the network: a stack of blocks, and a block of it."""

    stack: str
    layer: int


class RowRun(NamedTuple):
    """Consecutive rows ``start:stop`` with the same number of condition entries. One attention call serves a run."""

    start: int
    stop: int
    condition: int

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class Layout:
    """The shape of one generation.

    ``condition`` holds the number of condition entries of every row (conditional and unconditional rows alike), so its
    length is the number of rows. ``lines`` × ``line`` visual tokens are generated per row; a next-scale model has ``scales``
    instead, the sides of its square token maps, coarse to fine. ``kv_heads`` < ``heads`` is GQA.
    ``seeds`` and ``branches`` name each row's random stream: the seed of its sample, and 0 for the conditional row, 1 for
    the unconditional one. They, not the row's index, key what a method draws, so a sample is the same in any batch.
    ``line_ends``: the last token of a line shows nothing and ends it.
    """

    paradigm: str
    condition: tuple[int, ...]
    lines: int
    line: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    seeds: tuple[int, ...] = ()
    branches: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    scales: tuple[int, ...] = ()
    line_ends: bool = False

    @property
    def rows(self) -> int:
        return len(self.condition)

    @property
    def batch(self) -> int:
        """Samples: the rows without those that guidance adds."""
        return self.rows - sum(self.branches)

    @property
    def visual(self) -> int:
        """Visual tokens per row."""
        return sum(side**2 for side in self.scales) if self.scales else self.lines * self.line

    @property
    def cacheable(self) -> int:
        """Visual tokens per row that a later pass can read: all but those of the last pass."""
        return self.visual - (self.scales[-1] ** 2 if self.scales else 1)

    @cached_property
    def longest_condition(self) -> int:
        return max(self.condition)

    @property
    def stored(self) -> int:
        """Entries per row and layer that the full cache holds: what a later pass reads."""
        return self.longest_condition + self.cacheable

    @cached_property
    def runs(self) -> tuple[RowRun, ...]:
        """Rows grouped into runs of equal condition length, in order."""
        runs: list[RowRun] = []
        for row, condition in enumerate(self.condition):
            if runs and runs[-1].condition == condition:
                runs[-1] = runs[-1]._replace(stop=row + 1)
            else:
                runs.append(RowRun(row, row + 1, condition))
        return tuple(runs)


@dataclass(frozen=True)
class Step:
    """One forward pass of a generation.

    ``index`` of ``total`` passes; pass 0 feeds the condition. ``first`` is the index of the first visual token that this
    pass feeds and ``count`` how many (0 where only the condition is fed). ``line`` counts from 1 and is the line of the last
    token fed (0 in pass 0); ``scale`` counts from 1 in a next-scale model and is 0 in others. ``edges`` names what is complete
    once the pass has run: ``token``, ``line``, ``scale``, and ``step`` in a masked model. ``beyond``: of the tokens fed, how many of the
    last ones do not stay whatever they are; ``line`` and ``edges`` are those of the others.
    """

    index: int
    total: int
    first: int = 0
    count: int = 0
    line: int = 0
    edges: tuple[str, ...] = ()
    scale: int = 0
    beyond: int = 0

    @property
    def staying(self) -> int:
        """Tokens that this pass feeds and that may stay."""
        return self.count - self.beyond

    @property
    def last(self) -> bool:
        """True in the last pass, whose keys nobody reads afterwards."""
        return self.index == self.total - 1

    @property
    def causal(self) -> bool:
        """True where the tokens of this pass see each other in order: those of the condition, and of a window of several visual ones."""
        return not self.scale and self.count != 1


def raster_steps(layout: Layout) -> list[Step]:
    """The passes of a next-token generation: the condition, then every visual token but the last, which nobody reads."""
    return [Step(0, layout.visual), *(window_step(layout, fed, 1) for fed in range(layout.visual - 1))]


def window_step(layout: Layout, first: int, count: int, beyond: int = 0) -> Step:
    """The pass of a next-token generation that feeds ``count`` visual tokens from ``first`` on, of which the last ``beyond`` do not stay.
    Its index is that of the last token that it predicts, so that a window of one is the pass of sequential decoding."""
    behind = first + count - beyond
    edges = ("token", "line") if behind // layout.line > first // layout.line else ("token",)
    return Step(first + count, layout.visual, first, count, (behind - 1) // layout.line + 1, edges, beyond=beyond)


def scale_steps(layout: Layout) -> list[Step]:
    """The passes of a next-scale generation: all tokens of a scale at once."""
    steps, first = [], 0
    for index, side in enumerate(layout.scales):
        steps.append(Step(index, len(layout.scales), first, side**2, edges=("scale",), scale=index + 1))
        first += side**2
    return steps


ROWS_FIRST = 3  # dimensions of a rotation table that has rows


@dataclass
class Tokens:
    """Hidden states on their way through a stack.

    ``x``: hidden states, (rows, tokens, width). ``rope``: the model's own rotation table for these tokens, opaque to
    methods: (tokens, …), or (rows, tokens, …) where the positions of rows differ; ``cond``: conditioning of each row, rows first,
    where the model has one; opaque too. ``text``: what cross-attention reads, rows first, and ``text_shown``, which of it each row sees.
    """

    x: Tensor
    rope: Tensor | None = None
    cond: Tensor | None = None
    text: Tensor | None = None
    text_shown: Tensor | None = None

    def with_x(self, x: Tensor) -> Tokens:
        return replace(self, x=x)

    def rows(self, rows: slice | Sequence[int]) -> Tokens:
        """These tokens for some of the rows."""
        rope = self.rope[rows] if self.rope is not None and self.rope.dim() == ROWS_FIRST else self.rope
        parts = {name: None if part is None else part[rows] for name, part in self._by_row().items()}
        return replace(self, x=self.x[rows], rope=rope, **parts)

    def _by_row(self) -> dict[str, Tensor | None]:
        return {"cond": self.cond, "text": self.text, "text_shown": self.text_shown}
