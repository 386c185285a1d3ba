"""The layout of a generation, the sites of a network, and the steps of a generation.

All of it is known on the host before the first tensor is computed. Host attributes of a method may depend on it, never on tensor values, so
that a step can be captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

Grid = tuple[int, int]  # rows and columns of tokens
EDGES = ("token", "line", "scale", "step")
"""What a pass may complete: see :attr:`Step.edges`."""


class Site(NamedTuple):
    """A layer: a stack of blocks, and the number of a block in it."""

    stack: str
    layer: int


class HeadSite(NamedTuple):
    """K/V heads of a site that share a layer cache."""

    stack: str
    layer: int
    heads: tuple[int, ...]


class RowRun(NamedTuple):
    """Consecutive rows ``start:stop`` with equally long conditions, served by one attention call."""

    start: int
    stop: int
    condition: int

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)


class Load(NamedTuple):
    """Work of one block in a pass.

    ``tokens`` of each of ``rows`` are projected and attend to ``keys``; ``mlp`` of them pass through the MLP. In the diffusion head of a
    masked model, which has no attention, ``tokens`` have their modulation computed. In a next-scale model all branches of a block compute
    the same number of tokens.
    """

    rows: int
    tokens: int
    keys: int
    mlp: int


class ScaleWork(NamedTuple):
    """Sizes of the products of a next-scale transformer, for counting FLOPs.

    ``block``: weights of one block, each used once per token. ``logits``: weights between a hidden state and its logits. ``row_pass``:
    weights that a row uses once per pass. ``fed``: weights that embed a drawn token, once for all rows of a sample. ``scale``:
    multiplications per sample between a pass's tokens and the next input. ``text``: text entries that every token attends to in every
    block, and ``text_block``: weights of a block for each of them in every pass.
    """

    block: int
    logits: int
    row_pass: int
    fed: int
    scale: int = 0
    text: int = 0
    text_block: int = 0


@dataclass(frozen=True)
class Layout:
    """The shape of one generation.

    ``condition``: number of condition entries of every row (conditional and unconditional), so its length is the number of rows. ``lines``
    × ``line`` visual tokens are generated per row; a next-scale model has ``scales`` instead, rows and columns of its token maps, coarse to
    fine. ``kv_heads`` < ``heads`` is GQA. ``seeds`` and ``branches`` identify each row's random stream: the seed of its sample, and 0 for
    the conditional or 1 for the unconditional row. They, not the row index, key random choices, so a sample is the same in any batch.
    ``line_ends``: the last token of a line is an end-of-line token. ``previewed``: how many lines a preview fills before the image.
    ``work``: sizes of a next-scale model's products, None if unknown. ``drafter``: of a composite model, the layout of the model that
    makes the first scales, these alone; this layout is then the refiner's, which computes all scales.
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
    scales: tuple[Grid, ...] = ()
    line_ends: bool = False
    previewed: int = 0
    work: ScaleWork | None = None
    drafter: Layout | None = None

    @property
    def draft(self) -> Layout | None:
        """The layout of the drafter, in the dtype and on the device of this one."""
        return self.drafter and replace(self.drafter, dtype=self.dtype, device=self.device)

    @property
    def rows(self) -> int:
        return len(self.condition)

    @property
    def batch(self) -> int:
        """Number of samples: rows without the unconditional ones."""
        return self.rows - sum(self.branches)

    @property
    def visual(self) -> int:
        """Visual tokens per row."""
        return sum(self.scale_tokens) if self.scales else self.lines * self.line

    @cached_property
    def scale_tokens(self) -> tuple[int, ...]:
        """Tokens of each scale of a next-scale model."""
        return tuple(rows * columns for rows, columns in self.scales)

    @property
    def cacheable(self) -> int:
        """Visual tokens per row that a later pass can read: all except the last pass's own."""
        return self.visual - (self.scale_tokens[-1] if self.scales else 1)

    def ending(self, scales: int) -> Layout:
        """Return the layout of a next-scale generation that ends after its first ``scales`` scales."""
        return self if scales >= len(self.scales) else replace(self, scales=self.scales[:scales])

    @cached_property
    def longest_condition(self) -> int:
        return max(self.condition)

    @property
    def stored(self) -> int:
        """Entries per row and layer of the full cache: those that a later pass reads."""
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


def squares(sides: Sequence[int]) -> tuple[Grid, ...]:
    """Return square token maps by their sides."""
    return tuple((side, side) for side in sides)


def scale_names(scales: Sequence[Grid]) -> list[str]:
    """Return token maps as text: ``2`` for a square of side 2, ``2×3`` for 2 rows and 3 columns."""
    return [str(rows) if rows == columns else f"{rows}×{columns}" for rows, columns in scales]


def guided_rows(seeds: Sequence[int], guided: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return ``seeds`` and ``branches`` of a layout. With guidance, unconditional rows follow the others."""
    copies = 2 if guided else 1
    return tuple(seeds) * copies, tuple(branch for branch in range(copies) for _ in seeds)


@dataclass(frozen=True)
class Step:
    """One forward pass of a generation.

    ``index`` of ``total``; pass 0 feeds the condition. ``first`` is the index of the first visual token fed and ``count`` their number (0
    for the condition alone). ``line`` counts from 1 and is the line of the last token fed (0 in pass 0); ``scale`` counts from 1 in a
    next-scale model, else 0. ``edges`` names the units that are complete after the pass: ``token``, ``line``, ``scale``, and ``step`` in a
    masked model. ``beyond``: how many of the last tokens fed are always discarded; ``line`` and ``edges`` ignore these.

    A pass that feeds several lines has ``places``, the position of each visual token fed, in any order; ``first`` then is the number of
    visual entries before it. ``visible`` (tokens, visual entries) are the entries that each token may see, None for all before it.
    """

    index: int
    total: int
    first: int = 0
    count: int = 0
    line: int = 0
    edges: tuple[str, ...] = ()
    scale: int = 0
    beyond: int = 0
    places: tuple[int, ...] = ()
    visible: Tensor | None = field(default=None, compare=False)

    @property
    def staying(self) -> int:
        """Tokens fed that may stay."""
        return self.count - self.beyond

    @property
    def last(self) -> bool:
        """True in the last pass, whose keys no pass reads."""
        return self.index == self.total - 1

    @property
    def causal(self) -> bool:
        """True if the tokens of this pass attend causally: the condition, or a window of visual tokens."""
        return not self.scale and self.count != 1


def raster_steps(layout: Layout) -> list[Step]:
    """Return the passes of a next-token generation: the condition, then every visual token but the last."""
    return [Step(0, layout.visual), *(window_step(layout, fed, 1) for fed in range(layout.visual - 1))]


def window_step(layout: Layout, first: int, count: int, beyond: int = 0) -> Step:
    """Return the pass that feeds ``count`` visual tokens from ``first`` on.

    The last ``beyond`` of them do not stay. The index of the pass is the index of the last token it predicts, so that a window of one is a
    pass of sequential decoding.
    """
    behind = first + count - beyond
    edges = ("token", "line") if behind // layout.line > first // layout.line else ("token",)
    return Step(first + count, layout.visual, first, count, (behind - 1) // layout.line + 1, edges, beyond=beyond)


def scale_steps(layout: Layout, count: int | None = None) -> list[Step]:
    """Return the passes of a next-scale generation, one for each of its ``count`` scales (None: all)."""
    steps, first, sizes = [], 0, layout.scale_tokens[:count]
    for index, tokens in enumerate(sizes):
        steps.append(Step(index, len(sizes), first, tokens, edges=("scale",), scale=index + 1))
        first += tokens
    return steps


ROWS_FIRST = 3  # dimensions of a rotation table that has rows


@dataclass
class Tokens:
    """Hidden states that pass through a stack.

    ``x``: (rows, tokens, width). ``rope``: the model's rotation table for these tokens, (tokens, …), or (rows, tokens, …) where the
    positions of rows differ. ``cond``: conditioning per row. ``text``: what cross-attention reads, rows first, and ``text_shown``: which of
    it each row sees. ``normed``: a norm module and its output for ``x``, if a fused pass has computed it. All but ``x`` are opaque to
    methods.
    """

    x: Tensor
    rope: Tensor | None = None
    cond: Tensor | None = None
    text: Tensor | None = None
    text_shown: Tensor | None = None
    normed: tuple[object, Tensor] | None = None

    def with_x(self, x: Tensor) -> Tokens:
        return replace(self, x=x, normed=None)

    def rows(self, rows: slice | Sequence[int]) -> Tokens:
        """Return these tokens for some of the rows."""
        rope = self.rope[rows] if self.rope is not None and self.rope.dim() == ROWS_FIRST else self.rope
        by_row = {"cond": self.cond, "text": self.text, "text_shown": self.text_shown}
        parts = {name: None if part is None else part[rows] for name, part in by_row.items()}
        return replace(self, x=self.x[rows], rope=rope, normed=None, **parts)

    def take(self, places: Tensor) -> Tokens:
        """Return the tokens at ``places`` (rows, m), with their own rotations."""
        x = self.x.gather(1, places[..., None].expand(-1, -1, self.x.size(-1)))
        if self.rope is None:
            return self.with_x(x)
        if self.rope.dim() == ROWS_FIRST:
            return replace(self.with_x(x), rope=self.rope.gather(1, places[..., None].expand(-1, -1, self.rope.size(-1))))
        return replace(self.with_x(x), rope=self.rope[places])
