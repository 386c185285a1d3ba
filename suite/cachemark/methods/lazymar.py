"""LazyMAR: recomputes tokens, unconditional rows, encoder and diffusion head only if they change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache.arena import Memory
from ..cache.layout import Layout, Load, Site, Step, Tokens
from ..cache.masked_layout import MaskedLayout, MaskedStep
from ..contract.block import Block
from ..contract.method import Method
from ..core.errors import BadParameter
from .base.annealed import HEAD_PARAMETERS
from .base.lazy_schedule import Scheduled
from .base.partial import DECODER, HEAD
from .registry import method

SELECTIONS = ("similarity", "min-similarity", "random", "predicted", "unpredicted")
HEAD_PERIOD = 7  # every seventh step of the process computes everything
BRIDGED = range(1, 5)  # blocks whose whole change of the hidden state is reused
EARLY = 0.9  # above this share of the process the other blocks' MLPs are computed again


@method("lazymar")
@dataclass
class LazyMAR(Scheduled):
    """Reuses features of earlier passes in partial passes, in four ways with a switch each.

    Yan et al., "LazyMAR: Accelerating Masked Autoregressive Models via Feature Caching" (ICCV 2025), and its published code.
    ``token_cache``: after the attention of block ``layer`` only tokens whose values changed most since the previous pass are computed
    (§3.2.1). ``condition_cache``: only conditional rows run; unconditional hidden states follow from their difference in the last full pass
    (§3.2.2). ``encoder_cache`` and ``head_cache`` are not in the paper: see :class:`~.base.partial.Incremental` and :class:`HeadCache`. See
    :class:`~cachemark.methods.base.lazy_schedule.Scheduled` for the other parameters.

    ``select`` names the tokens that are left out, as in Table 3: the most similar to the previous pass (``similarity``), the least similar
    (``min-similarity``), ``random`` ones, or random with a preference for tokens with a value (``predicted``) or without
    (``unpredicted``). As published, a forced token has similarity 0 (``forced = "zero"``), so that less similar ones precede it; with
    ``always``, and with every other selection, forced tokens are always computed.

    Differs from the code: keys and values are stored only for blocks that read them in a later pass.
    """

    title = "LazyMAR"
    source = "LazyMAR (arXiv 2503.12450), §3.2, and its published code"
    authors_code = "yes: feihongyan1/LazyMAR"
    neutral = {"period": 1, "head_cache": False}

    unstated = {
        **HEAD_PARAMETERS,
        **Scheduled.unstated,
        "encoder_cache": "of the published code; not in the paper",
        "head_cache": "of the published code; not in the paper",
        "forced": "of the published code; not stated in the paper",
    }

    token_cache: bool = True
    condition_cache: bool = True
    encoder_cache: bool = True
    head_cache: bool = True
    select: str = "similarity"
    forced: str = "zero"

    def check(self) -> None:
        super().check()
        self.check_choice("select", *SELECTIONS)
        self.check_choice("forced", "zero", "always")
        for parameter in ("condition_cache", "head_cache"):
            if getattr(self, parameter) and self.shape.batch == self.shape.rows:
                raise BadParameter(f"lazymar: {parameter} needs unconditional rows, which exist only with guidance.",
                                   remedy=f"Use {parameter} = false, or another cfg_scale than 1.")
        if self.condition_cache:
            self.rows = self.shape.batch

    @property
    def reuses(self) -> bool:
        return super().reuses or self.head_cache

    def keep(self, step: MaskedStep) -> int:
        return super().keep(step) if self.token_cache else self.shape.places

    def begin(self, layout: Layout, sites: Sequence[Site], memory: Memory) -> None:
        super().begin(layout, sites, memory)
        shape, most = self.shape, max(step.count for step in self.steps)
        self.head = HeadCache(shape, most, memory) if self.head_cache else None
        tokens_shape, heads = (self.rows, shape.places, shape.dim), (self.rows, shape.heads, shape.places, shape.head_dim)
        self.apart = memory.zeros("apart", tokens_shape, layout.dtype) if self.condition_cache else None
        compares = "similarity" in self.select and min(self.kept) < shape.places
        self.values = memory.zeros("values", heads, layout.dtype) if compares else None

    def graph_key(self, step: Step) -> None:
        """Return None: the head's cache depends on the inner pass alone."""

    # -- computed rows ------------------------------------------------------------------------------------------------
    def stack(self, name: str, step: Step, tokens: Tokens, run: Callable[[Tokens], Tensor]) -> Tensor:
        if name == HEAD and self.head:
            return self.head.stack(cast(MaskedStep, step), tokens, run)
        out = super().stack(name, step, tokens, run)
        if name == HEAD or self.apart is None:
            return out
        if not self.full[step.index]:
            return torch.cat((out, out + self.apart)) if name == DECODER else out.repeat(2, 1, 1)
        if name == DECODER:
            torch.sub(out[self.rows :], out[: self.rows], out=self.apart)
        return out

    def block(self, site: Site, step: Step, tokens: Tokens, block: Block) -> Tokens:
        if site.stack == HEAD and self.head:
            return self.head.block(site, cast(MaskedStep, step), tokens, block, self)
        return super().block(site, step, tokens, block)

    # -- computed tokens ----------------------------------------------------------------------------------------------
    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = super().attend(site, step, q, k, v)
        if site == (DECODER, self.layer) and self.values is not None:
            self.values.copy_(v[: self.rows])
        return out

    @property
    def forced_score(self) -> float:
        return 0.0 if (self.select, self.forced) == ("similarity", "zero") else super().forced_score

    def scores(self, step: MaskedStep, v: Tensor) -> Tensor:
        if self.values is not None:
            alike = F.cosine_similarity(v.float(), self.values.float(), dim=-1).mean(1)
            return alike if self.select == "similarity" else -alike
        lots = self.lots(step, len(v))
        if self.select == "random":
            return lots
        predicted = torch.zeros_like(lots).scatter(1, self.image(step.known, len(v)), 1.0)
        predicted[:, : self.shape.buffer] = 1.0
        return lots + (predicted if self.select == "predicted" else 1 - predicted)

    # -- on paper -----------------------------------------------------------------------------------------------------
    def computes(self, site: Site, step: MaskedStep, load: Load) -> Load:
        if site.stack == HEAD and self.head_cache:
            return HeadCache.computes(site, step, load, self.shape.batch)
        return super().computes(site, step, load)


class HeadCache:
    """Cache of the diffusion head in the published code; the paper does not mention it.

    Each pass of the transformer starts with an empty cache: the first pass of the head computes everything, as does each whose step is a
    multiple of ``HEAD_PERIOD``. The others run conditional rows alone. ``BRIDGED`` blocks repeat their last change of the hidden state; the
    others reuse their last MLP output under the current gate, or recompute it in the noisiest steps. The unconditional ε follows from the
    last difference of the branches, and the variance is the conditional branch's.
    """

    def __init__(self, layout: MaskedLayout, most: int, memory: Memory) -> None:
        """Allocate for at most ``most`` tokens per pass of the transformer."""
        self.batch = layout.batch
        self.change = memory.zeros("head.change", (layout.head, self.batch, most, layout.head_width), layout.dtype)
        self.apart = memory.zeros("head.apart", (self.batch, most, layout.channels), layout.dtype)

    @staticmethod
    def refreshes(step: MaskedStep) -> bool:
        """Return whether this pass of the head computes everything."""
        return step.inner == 0 or (step.inners - 1 - step.inner) % HEAD_PERIOD == 0

    @staticmethod
    def early(step: MaskedStep) -> bool:
        """Return whether this is one of the noisiest passes."""
        return step.inners - 1 - step.inner > EARLY * step.inners

    def stack(self, step: MaskedStep, tokens: Tokens, run: Callable[[Tokens], Tensor]) -> Tensor:
        """Return ε and variance logits of all rows, (rows, n, 2·C)."""
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
        """Run one block of the head, or reuse its last change."""
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
        """Return the part of ``load`` that this pass of the head computes."""
        if cls.refreshes(step):
            return load
        if site.layer in BRIDGED:
            return load._replace(rows=batch, tokens=0, mlp=0)
        return load._replace(rows=batch, mlp=load.mlp if cls.early(step) else 0)
