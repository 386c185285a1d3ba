"""A diffusion head that computes its blocks and its unconditional branch only in some of its passes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...cache.arena import Memory
from ...cache.layout import Site, Tokens
from ...cache.masked_layout import Load, MaskedLayout, MaskedStep
from ...contract.method import Block, Method

PERIOD = 7  # every seventh step of the process computes everything
BRIDGED = range(1, 5)  # blocks whose whole change of the hidden state is reused
EARLY = 0.9  # above this share of the process the other blocks' MLPs are computed anew


class HeadCache:
    """The cache of LazyMAR's published code for the head, of which its paper says nothing. Each pass of the transformer starts with
    an empty one: the first pass of the head computes everything, and so does each whose step is a multiple of ``PERIOD``.

    The others run the conditional rows alone. ``BRIDGED`` blocks add the change that they made last; the others put their last
    MLP under today's gate, or compute it anew in the noisiest steps. The unconditional ε follows from the last difference of
    the two branches, and the variance is that of the conditional branch.
    """

    def __init__(self, layout: MaskedLayout, most: int, memory: Memory) -> None:
        """``most``: tokens that a pass of the transformer predicts at most."""
        self.batch = layout.batch
        self.change = memory.zeros("head.change", (layout.head, self.batch, most, layout.head_width), layout.dtype)
        self.apart = memory.zeros("head.apart", (self.batch, most, layout.channels), layout.dtype)

    @staticmethod
    def refreshes(step: MaskedStep) -> bool:
        """True where this pass of the head computes everything."""
        return step.inner == 0 or (step.inners - 1 - step.inner) % PERIOD == 0

    @staticmethod
    def early(step: MaskedStep) -> bool:
        """True for one of the noisiest passes."""
        return step.inners - 1 - step.inner > EARLY * step.inners

    def stack(self, step: MaskedStep, tokens: Tokens, run: Callable[[Tokens], Tensor]) -> Tensor:
        """ε and variance logits of all rows, (rows, n, 2·C)."""
        apart = self.apart[:, : tokens.x.size(1)]
        if self.refreshes(step):
            out = run(tokens)
            c, u = (part.chunk(2, -1)[0] for part in out.chunk(2))
            apart.copy_(c - u)
            return out
        out = run(tokens.rows(slice(self.batch)))
        eps, v = out.chunk(2, -1)
        return torch.cat((out, torch.cat((eps - apart, v), -1)))

    def block(self, site: Site, step: MaskedStep, tokens: Tokens, block: Block, method: Method) -> Tokens:
        """One block of the head, computed or made up from what it did last."""
        change = self.change[site.layer][:, : tokens.x.size(1)]
        bridged = site.layer in BRIDGED
        if bridged and not self.refreshes(step):
            return tokens.with_x(tokens.x + change)
        before, tokens = tokens, block.mix(site, step, tokens, method)
        if not self.refreshes(step) and not self.early(step):
            return block.join(tokens, change)
        branch = block.branch(tokens)
        after = block.join(tokens, branch)
        change.copy_((after.x - before.x if bridged else branch)[: self.batch])
        return after

    @classmethod
    def computes(cls, site: Site, step: MaskedStep, load: Load, batch: int) -> Load:
        """The part of ``load`` that this pass of the head computes."""
        if cls.refreshes(step):
            return load
        if site.layer in BRIDGED:
            return load._replace(rows=batch, tokens=0, mlp=0)
        return load._replace(rows=batch, mlp=load.mlp if cls.early(step) else 0)
