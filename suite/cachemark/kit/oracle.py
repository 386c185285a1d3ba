"""Evicting equals masking: an oracle that keeps everything and hides from attention what the method has evicted.

It runs in the method's shadow: at each pass and site it receives the same queries, keys and values, stores them with the same
codec in a memory of its own, and answers by a plain fp64 softmax under a mask. It is told which visual tokens the method
holds, from ``slot.visual`` before the pass; where a key or a value lies is never asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.layout import Site, Step
from ..cache.ragged import Extent
from ..contract.heads import PerHead
from ..contract.method import Method
from ..methods.base.head_aware import HeadAware
from .driver import Onlooker, numbers, slots_of

TOLERANCE = 1e-5  # outputs of attention
Part = tuple[slice, int, Tensor, Tensor, Tensor]  # rows, tokens of a pass, keys, values, and which of them each query may see


class Apart(NamedTuple):
    """The first number of an answer that is not what it should be, with its place."""

    step: int
    layer: int
    row: int
    head: int
    expected: float
    found: float


def apart(expected: Tensor, found: Tensor, step: int, site: Site, tolerance: float) -> Apart | None:
    """The first row and head of (rows, heads, tokens, head_dim) in which an answer is further off than ``tolerance``, or is no number."""
    wrong = ~((expected - found).abs() <= tolerance) & ~((expected == found) | (expected.isnan() & found.isnan()))
    if not bool(wrong.any()):
        return None
    at = tuple(wrong.nonzero()[0].tolist())
    return Apart(step, site.layer, at[0], at[1], float(expected[at]), float(found[at]))


class Shadow(Onlooker):
    """The oracle. ``worst``: the greatest deviation of the method's answers from its own, the ``largest`` of which is stated too;
    ``hidden``: entries that it masked; ``first``: where an answer was first further off than ``tolerance``, with both."""

    def __init__(self, tolerance: float = TOLERANCE) -> None:
        self.tolerance, self.worst, self.largest, self.hidden = tolerance, 0.0, 0.0, 0
        self.first: Apart | None = None
        self._full: Method | None = None
        self._rounded: dict[Site, tuple[Tensor, Tensor]] = {}
        self._stored: list[Tensor] = []
        self._chosen: dict[int, Tensor] = {}

    def before(self, method: Method, site: Site, step: Step) -> None:
        if step.count:
            self._stored = held_before(method, site, step)
        elif self._full is None:
            self._full = Method()
            sites = dict.fromkeys(Site(place.stack, place.layer) for place in slots_of(method))
            self._full.begin(method.layout, list(sites), Memory("cpu", method.banks[0].codec))
        if isinstance(method, HeadAware):
            self._chosen.clear()
            method.chosen = self._noting(method)  # type: ignore[method-assign]

    def after(self, method: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        read = self._read_scale if method.layout.scales else self._read_tokens
        for rows, tokens, keys, values, seen in read(method, site, step, k, v):
            expected, answer = masked(q[rows, :, :tokens], keys, values, seen), out[rows, :, :tokens].double()
            self.largest = max(self.largest, float(expected.abs().max()))
            self.worst = max(self.worst, float((expected - answer).abs().max()))
            self.first = self.first or apart(expected, answer, step.index, site, self.tolerance)

    def settled(self, method: Method, step: Step) -> None:
        if self._full is not None:
            self._full.end_step(step)

    def _read_tokens(self, method: Method, site: Site, step: Step, k: Tensor, v: Tensor) -> Iterator[Part]:
        """A pass reads its own keys as the codec holds them. Rows whose conditions have one length are read together."""
        assert self._full is not None
        slot = self._full.slots[site]
        slot.append(k, v, condition=step.count == 0)
        for number, (run, n) in enumerate(zip(slot.bank.runs, slot.live, strict=True)):
            tokens = step.count or run.condition  # behind a shorter condition queries are padding
            seen = torch.ones(tokens, n, dtype=torch.bool).tril()[None, None]
            if step.count:
                self.hidden += int((~self._stored[number]).sum())
                seen = _beside_own(self._stored[number], step.count)[:, :, None]
            yield run.rows, tokens, *slot.read(run, n), seen

    def _read_scale(self, method: Method, site: Site, step: Step, k: Tensor, v: Tensor) -> Iterator[Part]:
        """A scale reads its own keys as they are; the codec rounds them when they are stored behind it."""
        codec = method.ragged[site].codec if isinstance(method, PerHead) else method.slots[site].bank.codec
        before = self._rounded.get(site, (k[:, :, :0], v[:, :, :0]))
        keys, values = (torch.cat(pair, 2) for pair in zip(before, (k, v), strict=True))
        seen = _beside_own(self._stored[0], step.count) & looked_at(method, step)
        for head, tokens in self._chosen.items():
            seen[:, head] = torch.zeros_like(seen[:, head]).scatter_(-1, tokens, True)
        self.hidden += int((~seen).sum())
        yield slice(None), step.count, keys, values, seen[:, :, None]
        rounded = (codec.decode(codec.encode(part), method.layout.dtype) for part in (k, v))
        self._rounded[site] = tuple(torch.cat(pair, 2) for pair in zip(before, rounded, strict=True))  # type: ignore[assignment]

    def _noting(self, method: HeadAware) -> Callable[..., Any]:
        """``chosen``, which also notes the tokens that heads see where they do not see all that is there."""
        def chosen(site: Site, step: Step, part: Extent, q: Tensor) -> tuple[Tensor | None, Tensor | None]:
            seen, kept = type(method).chosen(method, site, step, part, q)
            if seen is not None:
                tokens = part.of(method.shown.visual).long().gather(2, seen)
                self._chosen |= {part.first + at: tokens[:, at] for at in range(part.heads)}
            return seen, kept
        return chosen


def _beside_own(entries: Tensor, count: int) -> Tensor:
    return torch.cat((entries, torch.ones(*entries.shape[:2], count, dtype=torch.bool)), -1)


def looked_at(method: Method, step: Step) -> Tensor:
    """Tokens up to this scale that a method looks at where it holds them: all, but for the ablation that hides a group of scales."""
    groups = [getattr(method, "group", lambda *_: "")(scale, step.index) for scale in range(step.scale)]
    sizes = torch.tensor([side**2 for side in method.layout.scales[: step.scale]])
    return torch.tensor([group != getattr(method, "remove", None) for group in groups]).repeat_interleave(sizes)


def held_before(method: Method, site: Site, step: Step) -> list[Tensor]:
    """Of each run of rows which entries from before this pass its heads hold: (rows, kv_heads, condition + first) bool."""
    if isinstance(method, PerHead):
        return [torch.cat([visible(tokens[:, None], 0, step.first) for tokens in numbers(method.ragged[site])], 1)]
    heads, runs = dict[int, int](), list[list[Tensor]]()
    for place, slot in slots_of(method).items():
        if (place.stack, place.layer) == (site.stack, site.layer):
            heads |= {head: len(heads) + at for at, head in enumerate(getattr(place, "heads", range(method.layout.kv_heads)))}
            runs.append([visible(slot.visual[run.rows, :, :n], run.condition, step.first)
                         for run, n in zip(slot.bank.runs, slot.live, strict=True)])
    order = [heads[head] for head in sorted(heads)]
    return [torch.cat(parts, 1)[:, order] for parts in zip(*runs, strict=True)]


def visible(numbers: Tensor, condition: int, tokens: int) -> Tensor:
    """The ``condition + tokens`` entries that are held: (rows, kv_heads, condition + tokens) bool.

    ``numbers`` (rows, kv_heads, live) is −1 for a condition entry. Where a method drops part of the condition, its oldest go.
    """
    seen = torch.zeros(*numbers.shape[:2], condition + tokens + 1, dtype=torch.bool)
    seen.scatter_(-1, torch.where(numbers < 0, condition + tokens, numbers.long() + condition), True)
    dropped = condition - (numbers < 0).sum(-1, keepdim=True)
    seen[..., :condition] = torch.arange(condition) >= dropped
    return seen[..., :-1]


def masked(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """Attention as the textbook writes it, fp64. ``allowed`` broadcasts to (rows, kv_heads, tokens, keys)."""
    group = q.size(1) // k.size(1)
    allowed = allowed.expand(*k.shape[:2], -1, -1)
    k, v, allowed = (part.repeat_interleave(group, 1) for part in (k, v, allowed))
    scores = (q.double() @ k.double().mT * q.size(-1) ** -0.5).masked_fill(~allowed, float("-inf"))
    return scores.softmax(-1) @ v.double()
