"""Evicting equals masking: an oracle that keeps everything and hides from attention what the method has evicted.

It runs in the method's shadow: at each pass and site it receives the same queries, keys and values, stores them with the same
codec in a memory of its own, and answers by a plain fp64 softmax under a mask. It is told which visual tokens the method
holds, from ``slot.visual`` before the pass; where a key or a value lies is never asked.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.layout import Site, Step
from ..contract.method import Method
from .driver import Onlooker, slots_of

TOLERANCE = 1e-5  # outputs of attention


class Apart(NamedTuple):
    """The first number of an answer that is not what it should be, with its place."""

    step: int
    layer: int
    row: int
    head: int
    expected: float
    found: float


def apart(expected: Tensor, found: Tensor, step: Step, site: Site, tolerance: float) -> Apart | None:
    """The first row and head of (rows, heads, tokens, head_dim) in which an answer is further off than ``tolerance``, or is no number."""
    wrong = ~((expected - found).abs() <= tolerance) & ~((expected == found) | (expected.isnan() & found.isnan()))
    if not bool(wrong.any()):
        return None
    at = tuple(wrong.nonzero()[0].tolist())
    return Apart(step.index, site.layer, at[0], at[1], float(expected[at]), float(found[at]))


class TokenShadow(Onlooker):
    """``worst``: the greatest deviation of the method's outputs from the oracle's, the ``largest`` of which is stated too; ``hidden``:
    entries that were masked; ``first``: where it was first more than ``tolerance``, with what the oracle and the method answered."""

    def __init__(self, tolerance: float = TOLERANCE) -> None:
        self.tolerance = tolerance
        self.first: Apart | None = None
        self.worst = 0.0
        self.largest = 0.0
        self.hidden = 0
        self._oracle: Method | None = None
        self._before: list[Tensor] = []

    def before(self, method: Method, site: Site, step: Step) -> None:
        if step.count == 0:
            if self._oracle is None:
                self._oracle = Method()
                sites = dict.fromkeys(Site(place.stack, place.layer) for place in slots_of(method))
                self._oracle.begin(method.layout, list(sites), Memory("cpu", method.banks[0].codec))
            return
        self._before = held_before(method, site, step)

    def after(self, method: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        assert self._oracle is not None
        slot = self._oracle.slots[site]
        slot.append(k, v, condition=step.count == 0)
        for number, (run, n) in enumerate(zip(slot.bank.runs, slot.live, strict=True)):
            keys, values = slot.read(run, n)
            real = step.count or run.condition  # behind a shorter condition queries are padding
            seen = torch.ones(real, n, dtype=torch.bool).tril()[None, None]
            if step.count:
                held = self._before[number]
                seen = torch.cat((held, torch.ones(*held.shape[:2], step.count, dtype=torch.bool)), -1)[:, :, None]
                self.hidden += int((~seen).sum())
            expected, found = masked(q[run.rows, :, :real], keys, values, seen), out[run.rows, :, :real].double()
            self.largest = max(self.largest, float(expected.abs().max()))
            self.worst = max(self.worst, float((expected - found).abs().max()))
            self.first = self.first or apart(expected, found, step, site, self.tolerance)

    def settled(self, method: Method, step: Step) -> None:
        assert self._oracle is not None
        self._oracle.end_step(step)


def held_before(method: Method, site: Site, step: Step) -> list[Tensor]:
    """Of each run of rows which entries from before this pass its heads hold: (rows, kv_heads, condition + first) bool."""
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
