"""A method without a model: the passes of a generation on random queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.codec import NATIVE, Codec
from ..cache.layout import Layout, Site, Step, raster_steps
from ..cache.ragged import RaggedSlot, extents
from ..cache.slot import Slot, Stage
from ..contract.heads import HeadGroups, HeadSite, PerHead
from ..contract.method import Method

Place = Site | HeadSite
Outputs = dict[tuple[int, Site], Tensor]


class Onlooker:
    """Moments of a generation, for who looks on; every moment does nothing by default."""

    def before(self, method: Method, site: Site, step: Step) -> None:
        """A pass reaches a site."""

    def after(self, method: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        """The site has answered ``out``."""

    def fed(self, method: Method, step: Step) -> None:
        """All sites of the pass are done, nothing is evicted yet."""

    def settled(self, method: Method, step: Step) -> None:
        """The pass is closed."""


class Watched:
    """The outermost scopes of a method with watches around them."""

    watches: tuple[Onlooker, ...]

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for watch in self.watches:
            watch.before(self, site, step)  # type: ignore[arg-type]
        out = super().attend(site, step, q, k, v)  # type: ignore[misc]
        for watch in self.watches:
            watch.after(self, site, step, q, k, v, out)  # type: ignore[arg-type]
        return out

    def end_step(self, step: Step) -> None:
        for watch in self.watches:
            watch.fed(self, step)  # type: ignore[arg-type]
        super().end_step(step)  # type: ignore[misc]
        for watch in self.watches:
            watch.settled(self, step)  # type: ignore[arg-type]


def slots_of(method: Method) -> Mapping[Place, Slot]:
    """Every slot of a method, by its site and, where heads have slots of their own, by these."""
    return method.slots_by_heads if isinstance(method, HeadGroups) else method.slots  # type: ignore[return-value]


def stages_of(method: Method) -> list[Stage]:
    """Every stage of a method."""
    methods = [group.method for group in method.groups] if isinstance(method, HeadGroups) else [method]
    return [one.stage for one in methods if one.stage is not None]


def numbers(slot: RaggedSlot) -> list[Tensor]:
    """Visual tokens of each head, (rows, length) each."""
    return [tokens for extent in extents(slot.lengths) for tokens in extent.of(slot.visual).long().unbind(1)]


def entries_of(method: Method) -> dict[Place, list[Tensor]]:
    """The visual tokens that each head holds, (rows, live) each, by site and, where heads have slots of their own, by these; −1 is an entry
    of the condition."""
    if isinstance(method, PerHead):
        return {site: numbers(slot) for site, slot in method.ragged.items()}
    return {place: list(slot.visual[..., : max(slot.live)].unbind(1)) for place, slot in slots_of(method).items()}


@dataclass
class Moment:
    """One pass: the live entries of each head of each place before and after it was closed, and what the heads held behind it."""

    step: Step
    during: dict[Place, list[int]]
    after: dict[Place, list[int]]
    contents: dict[Place, list[Tensor]]


@dataclass
class Record(Onlooker):
    """Keeps every moment of a generation, and what attention answered at every pass and site."""

    moments: list[Moment] = field(default_factory=list)
    answers: Outputs = field(default_factory=dict)
    _during: dict[Place, list[int]] = field(default_factory=dict)

    def after(self, method: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        self.answers[step.index, site] = out.clone()

    def fed(self, method: Method, step: Step) -> None:
        self._during = _lengths(entries_of(method))

    def settled(self, method: Method, step: Step) -> None:
        contents = {place: [tokens.clone() for tokens in heads] for place, heads in entries_of(method).items()}
        self.moments.append(Moment(step, self._during, _lengths(contents), contents))


def _lengths(contents: Mapping[Place, Sequence[Tensor]]) -> dict[Place, list[int]]:
    return {place: [tokens.size(-1) for tokens in heads] for place, heads in contents.items()}


def watched(method: Method, *watches: Onlooker) -> Method:
    """A method, seen by ``watches``: a subclass around its outermost scopes with the same knobs."""
    cls = type(method)
    seen: Any = type(cls.__name__, (Watched, cls), {"watches": watches, "__module__": cls.__module__})
    return seen(**method.knobs())


def layout_of(condition: Sequence[int] = (1, 1), *, lines: int = 6, line: int = 6, heads: int = 4, kv_heads: int = 4, head_dim: int = 16,
              layers: int = 2, seeds: Sequence[int] | None = None) -> Layout:  # fmt: skip
    """A next-token layout; each row is its own sample unless seeds are given."""
    rows = len(condition)
    return Layout("next-token", tuple(condition), lines, line, heads, kv_heads, head_dim, layers,
                  tuple(seeds or range(100, 100 + rows)), (0,) * rows)  # fmt: skip


class RasterFeed:
    """Queries, keys and values of every pass and site, drawn once. Keys come in families, so that some resemble each other.

    ``flat`` leaves queries and keys zero: every score ties.
    """

    def __init__(self, layout: Layout, seed: int = 0, *, flat: bool = False) -> None:
        draw = torch.Generator().manual_seed(seed)
        passes, tokens = len(raster_steps(layout)), layout.longest_condition
        shape = (passes, layout.layers, layout.rows)

        def normal(*rest: int) -> Tensor:
            return torch.randn(*shape, *rest, layout.head_dim, generator=draw)

        families = torch.randn(layout.layers, layout.kv_heads, 5, layout.head_dim, generator=draw)
        family = torch.randint(0, 5, (*shape, layout.kv_heads, tokens), generator=draw)
        shared = families[torch.arange(layout.layers)[:, None, None, None], torch.arange(layout.kv_heads)[:, None], family]
        self.q = normal(layout.heads, tokens) * (0 if flat else 1.5)
        self.k = (shared + 0.7 * normal(layout.kv_heads, tokens)) * (0 if flat else 1)
        self.v = normal(layout.kv_heads, tokens)
        self.rows = slice(None)
        self.condition = tokens

    def of_row(self, row: int, condition: int) -> RasterFeed:
        """These vectors for one row alone, whose condition has its own length."""
        alone = object.__new__(RasterFeed)
        alone.__dict__ = {**self.__dict__, "rows": slice(row, row + 1), "condition": condition}
        return alone

    def at(self, step: Step, site: Site) -> tuple[Tensor, Tensor, Tensor]:
        tokens = step.count or self.condition
        q, k, v = (part[step.index, site.layer, self.rows, :, :tokens] for part in (self.q, self.k, self.v))
        return q, k, v


def drive(method: Method, layout: Layout, feed: RasterFeed, codec: Codec = NATIVE) -> Outputs:
    """Run all passes; what attention gave at each pass and site."""
    sites = [Site("decoder", layer) for layer in range(layout.layers)]
    method.begin(layout, sites, Memory("cpu", codec))
    out: Outputs = {}
    with torch.inference_mode():
        for step in raster_steps(layout):
            for site in sites:
                out[step.index, site] = method.attend(site, step, *feed.at(step, site))
            method.end_step(step)
    return out


def alone(layout: Layout, row: int) -> Layout:
    """The layout of one row by itself."""
    one = slice(row, row + 1)
    return replace(layout, condition=layout.condition[one], seeds=layout.seeds[one], branches=layout.branches[one])
