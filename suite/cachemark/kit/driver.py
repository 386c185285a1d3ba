"""A method without a model: the steps of a generation on random queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.codec import NATIVE, Codec
from ..cache.layout import HeadSite, Layout, Site, Step, raster_steps
from ..cache.ragged import RaggedSlot, extents
from ..contract.heads import PerHead
from ..contract.method import Method
from ..roofline.passes import steps_of

Place = Site | HeadSite
Outputs = dict[tuple[int, Site], Tensor]


class Onlooker:
    """Callbacks during a generation; they do nothing by default."""

    def before(self, method: Method, site: Site, step: Step) -> None:
        """Run before a step reaches a site."""

    def after(self, method: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        """Run after attention at a site returned ``out``."""

    def before_end(self, method: Method, step: Step) -> None:
        """Run after all sites of a step, before ``end_step`` evicts anything."""

    def after_end(self, method: Method, step: Step) -> None:
        """Run after ``end_step``."""


class Watched:
    """A mixin that calls onlookers around the outermost scopes of a method."""

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
            watch.before_end(self, step)  # type: ignore[arg-type]
        super().end_step(step)  # type: ignore[misc]
        for watch in self.watches:
            watch.after_end(self, step)  # type: ignore[arg-type]


def watched(method: Method, *watches: Onlooker) -> Method:
    """Return a method of a subclass that calls ``watches``, with the same parameters."""
    cls = type(method)
    subclass: Any = type(cls.__name__, (Watched, cls), {"watches": watches, "__module__": cls.__module__})
    return subclass(**method.parameters())


def tokens_by_head(slot: RaggedSlot) -> list[Tensor]:
    """Return the visual tokens of each head, (rows, length) each."""
    return [tokens for extent in extents(slot.lengths) for tokens in extent.view(slot.visual).long().unbind(1)]


def entries_of(method: Method) -> dict[Place, list[Tensor]]:
    """Return the live visual tokens of each head, (rows, live), by site or heads; −1 is the condition."""
    if isinstance(method, PerHead):
        return {site: tokens_by_head(slot) for site, slot in method.ragged.items()}
    return {place: list(slot.visual[..., : max(slot.live)].unbind(1)) for place, slot in method.slots.items()}


@dataclass
class Moment:
    """One step: live entries of each head before and after ``end_step``, and the tokens after it."""

    step: Step
    during: dict[Place, list[int]]
    after: dict[Place, list[int]]
    contents: dict[Place, list[Tensor]]


@dataclass
class Record(Onlooker):
    """Records the entries of every step, and the output of attention at every step and site."""

    moments: list[Moment] = field(default_factory=list)
    answers: Outputs = field(default_factory=dict)
    _during: dict[Place, list[int]] = field(default_factory=dict)

    def after(self, method: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        self.answers[step.index, site] = out.clone()

    def before_end(self, method: Method, step: Step) -> None:
        self._during = _lengths(entries_of(method))

    def after_end(self, method: Method, step: Step) -> None:
        contents = {place: [tokens.clone() for tokens in heads] for place, heads in entries_of(method).items()}
        self.moments.append(Moment(step, self._during, _lengths(contents), contents))


def _lengths(contents: Mapping[Place, Sequence[Tensor]]) -> dict[Place, list[int]]:
    return {place: [tokens.size(-1) for tokens in heads] for place, heads in contents.items()}


def layout_of(condition: Sequence[int] = (1, 1), *, lines: int = 6, line: int = 6, heads: int = 4, kv_heads: int = 4, head_dim: int = 16,
              layers: int = 2, seeds: Sequence[int] | None = None) -> Layout:  # fmt: skip
    """Return a next-token layout; each row is its own sample unless ``seeds`` are given."""
    rows = len(condition)
    return Layout("next-token", tuple(condition), lines, line, heads, kv_heads, head_dim, layers,
                  tuple(seeds or range(100, 100 + rows)), (0,) * rows)  # fmt: skip


class RasterFeed:
    """Random queries, keys and values of every step and site, with families of similar keys."""

    def __init__(self, layout: Layout, seed: int = 0) -> None:
        draw = torch.Generator().manual_seed(seed)
        steps, tokens = len(raster_steps(layout)), layout.longest_condition
        shape = (steps, layout.layers, layout.rows)

        def normal(*sizes: int) -> Tensor:
            return torch.randn(*shape, *sizes, layout.head_dim, generator=draw)

        families = torch.randn(layout.layers, layout.kv_heads, 5, layout.head_dim, generator=draw)
        family = torch.randint(0, 5, (*shape, layout.kv_heads, tokens), generator=draw)
        shared = families[torch.arange(layout.layers)[:, None, None, None], torch.arange(layout.kv_heads)[:, None], family]
        self.q = normal(layout.heads, tokens) * 1.5
        self.k = shared + 0.7 * normal(layout.kv_heads, tokens)
        self.v = normal(layout.kv_heads, tokens)
        self.rows = slice(None)
        self.condition = tokens

    def at(self, step: Step, site: Site) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of a step at a site."""
        tokens = step.count or self.condition
        q, k, v = (part[step.index, site.layer, self.rows, :, :tokens] for part in (self.q, self.k, self.v))
        return q, k, v


class Feed(Protocol):
    """Queries, keys and values of a generation."""

    def at(self, step: Step, site: Site) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of a step at a site."""


def drive(method: Method, layout: Layout, feed: Feed, codec: Codec = NATIVE, memory: Memory | None = None) -> Outputs:
    """Run all steps and return the outputs of attention."""
    sites = [Site("decoder", layer) for layer in range(layout.layers)]
    method.begin(layout, sites, memory or Memory("cpu", codec))
    out: Outputs = {}
    with torch.inference_mode():
        for step in steps_of(method, layout):
            for site in sites:
                q, k, v = feed.at(step, site)
                if method.needs_raw_queries:
                    method.observe_raw(site, step, q.flip(-1))
                out[step.index, site] = method.attend(site, step, q, k, v)
            method.end_step(step)
    return out
