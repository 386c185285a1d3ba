"""Evicting equals masking: an oracle that keeps everything and hides from attention what the method has evicted.

It runs in the method's shadow: at each pass and site it receives the same queries, keys and values, stores them with the same
codec in a memory of its own, and answers by a plain fp64 softmax under a mask. It is told which visual tokens the method
holds, from ``slot.visual`` before the pass; where a key or a value lies is never asked.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Site, Step
from cachemark.contract.method import Method

from .driver import Watch


class Shadow(Watch):
    """``worst``: the greatest deviation of the method's outputs from the oracle's; ``hidden``: entries that were masked."""

    def __init__(self) -> None:
        self.worst = 0.0
        self.hidden = 0
        self._oracle: Method | None = None
        self._held: list[Tensor] = []

    def before(self, method: Method, site: Site, step: Step) -> None:
        if step.count == 0:
            if self._oracle is None:
                self._oracle = Method()
                self._oracle.begin(method.layout, list(method.slots), Memory("cpu", method.banks[0].codec))
            return
        slot = method.slots[site]
        self._held = [visible(slot.visual[run.rows, :, :n], run.condition, step.first)
                      for run, n in zip(slot.bank.runs, slot.live, strict=True)]

    def after(self, method: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        assert self._oracle is not None
        slot = self._oracle.slots[site]
        slot.append(k, v, condition=step.count == 0)
        for number, (run, n) in enumerate(zip(slot.bank.runs, slot.live, strict=True)):
            keys, values = slot.read(run, n)
            real = step.count or run.condition  # behind a shorter condition queries are padding
            seen = torch.ones(real, n, dtype=torch.bool).tril()[None, None]
            if step.count:
                held = self._held[number]
                seen = torch.cat((held, torch.ones(*held.shape[:2], step.count, dtype=torch.bool)), -1)[:, :, None]
                self.hidden += int((~seen).sum())
            expected = masked(q[run.rows, :, :real], keys, values, seen)
            self.worst = max(self.worst, float((expected - out[run.rows, :, :real].double()).abs().max()))


def visible(held: Tensor, condition: int, tokens: int) -> Tensor:
    """Which of ``condition + tokens`` entries are held: (rows, kv_heads, condition + tokens) bool.

    ``held`` (rows, kv_heads, live) is −1 for a condition entry. Where a method drops part of the condition, its oldest go.
    """
    seen = torch.zeros(*held.shape[:2], condition + tokens + 1, dtype=torch.bool)
    seen.scatter_(-1, torch.where(held < 0, condition + tokens, held.long() + condition), True)
    dropped = condition - (held < 0).sum(-1, keepdim=True)
    seen[..., :condition] = torch.arange(condition) >= dropped
    return seen[..., :-1]


def masked(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Attention as the textbook writes it, fp64. ``seen`` broadcasts to (rows, kv_heads, tokens, keys)."""
    group = q.size(1) // k.size(1)
    seen = seen.expand(*k.shape[:2], -1, -1)
    k, v, seen = (part.repeat_interleave(group, 1) for part in (k, v, seen))
    scores = (q.double() @ k.double().mT * q.size(-1) ** -0.5).masked_fill(~seen, float("-inf"))
    return scores.softmax(-1) @ v.double()
