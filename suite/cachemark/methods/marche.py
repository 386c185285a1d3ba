"""MARché: only a small active set is computed after an early block, over the keys of all tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, cast

import torch
from torch import Tensor

from ..cache.layout import Layout, Site, Step
from ..cache.masked_layout import MaskedLayout, MaskedStep
from ..contract.planning import MethodOverhead
from ..roofline.flops_budget import fitted
from .base.annealed import HEAD_PARAMETERS
from .base.partial import DECODER, Selecting, wide
from .registry import method


@method("marche")
@dataclass
class MARche(Selecting):
    """Computes only ``active`` tokens after block ``select_layer`` in most passes.

    Jiang et al., "MARché: Fast Masked Autoregressive Image Generation with Cache-Aware Attention" (arXiv 2506.12035), §4; no code is
    published. Every ``period``-th pass is full. In the others, from after block ``select_layer`` (from 1) on, the active set has
    *generating* tokens, predicted in this pass; *caching* tokens, predicted in the previous pass; and *refreshing* tokens, which the
    generating tokens attend to most in that block. If the first two kinds exceed ``active``, no tokens are refreshed.

    Its ablations: ``generating`` and ``caching`` off leave that kind out (§5.3); ``refresh`` selects refreshing tokens with ``high`` or
    ``low`` attention or ``random`` ones, and with ``blind`` the whole set is random (§5.3); ``refresh_layers`` lists further blocks, from
    1, that compute all tokens in every pass (App. D).

    Our readings, where the paper is silent or ambiguous: attention is summed after the softmax over heads and generating tokens; rows
    select for themselves; class positions compete as all others; blocks 1 … ``select_layer`` compute everything, MLPs included; passes 0,
    3, 6, … are full; the encoder runs in every pass (``encoder_cache`` makes it incremental, see
    :class:`~cachemark.methods.base.partial.Incremental`).

    Differs from the paper: keys and values are written in place, so one attention reads them all without concatenation. ``partitioned``
    computes the paper's two attentions and joins them; the result is the same.
    """

    title = "MARché"
    carries = True
    sizes = ("active",)
    source = "MARché (arXiv 2506.12035), §4 and Appendices A and D"
    authors_code = "none"

    unstated = {
        **HEAD_PARAMETERS,
        "active": "§4.3 states 64 active tokens in all, as here; §5.3 64 refreshing ones",
        "select_layer": "§4.2 and §5.3 state the second block, as here; §4.3 and Appendix D the first",
        "encoder_cache": "ours: the paper does not mention the encoder",
        "partitioned": "the paper computes two parts; one attention over all keys gives the same result",
    }

    active: int = 64
    period: int = 3
    select_layer: int = 2
    refresh: str = "high"
    generating: bool = True
    caching: bool = True
    refresh_layers: Sequence[int] = ()
    encoder_cache: bool = False
    partitioned: bool = False

    # -- planning -----------------------------------------------------------------------------------------------------
    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        """Return the most active tokens within this fraction of an image's FLOPs."""
        shape = cast(MaskedLayout, layout)
        return {"active": 1 + fitted(self.name, lambda i: replace(self, active=1 + i), shape.places - 1, budget, shape)}

    @property
    def kernel(self) -> str:
        return "matmul-partitioned" if self.partitioned else super().kernel

    def check(self) -> None:
        blocks = self.shape.layers
        self.check_choice("refresh", "high", "low", "random", "blind")
        for parameter in ("active", "period"):
            self.check_range(parameter, getattr(self, parameter) >= 1, "Use at least 1.")
        self.check_range("select_layer", 1 <= self.select_layer <= blocks, f"Use a decoder block in 1 … {blocks}.")
        layers = self.refresh_layers
        valid = not isinstance(layers, str) and all(type(layer) is int and 1 <= layer <= blocks for layer in layers)
        self.check_range("refresh_layers", valid, f"Use a list of blocks in 1 … {blocks}.")

    # -- full passes, and computed blocks and tokens ------------------------------------------------------------------
    def refreshes(self, step: MaskedStep) -> bool:
        return step.index % self.period == 0

    def keep(self, step: MaskedStep) -> int:
        own, before = step.count, self.steps[step.index - 1].count
        if self.refresh == "blind":
            return self.active
        left_out = own * (not self.generating) + before * (not self.caching)
        return min(max(self.active, own + before - left_out), self.shape.places - left_out)

    @property
    def selects_at(self) -> int:
        return self.select_layer - 1

    def spans(self, block: int) -> tuple[bool, bool]:
        all_tokens = block < self.select_layer or block + 1 in self.refresh_layers
        return all_tokens, all_tokens

    def choose(self, step: MaskedStep, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return positions by descending score; generating and caching tokens first, if used."""
        generating, caching = (self.image(places, len(q)) for places in (step.generating, step.previous))
        scores = self.lots(step, len(q)) if self.refresh in ("random", "blind") else relevance(q, k, generating)
        if self.refresh == "low":
            scores = -scores
        if self.refresh != "blind":
            for places, goes in ((generating, self.generating), (caching, self.caching)):
                scores = scores.scatter(1, places, float("inf") if goes else float("-inf"))
        return scores.argsort(dim=1, descending=True, stable=True)

    def overhead(self, layout: Layout, site: Site, step: Step) -> MethodOverhead:
        """Count the generating tokens' scores of all keys, if tokens are selected by attention."""
        if site != (DECODER, self.selects_at) or not self.narrows(step) or self.refresh in ("random", "blind"):
            return MethodOverhead()
        keys = self.shape.dim * self.shape.places
        return MethodOverhead(step.count * keys, step.count * self.shape.dim + keys)

    # -- the paper's attention ----------------------------------------------------------------------------------------
    def attend_chosen(self, block: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not self.partitioned:
            return super().attend_chosen(block, q, k, v)
        assert self.places is not None
        assert self.chosen is not None
        assert self.others is not None
        cached = [part.gather(2, wide(self.others, part)) for part in self.places.update(block, k, v, self.chosen, self.shape.places)]
        return joined(q, (k, v), (cached[0], cached[1]))


def relevance(q: Tensor, k: Tensor, generating: Tensor) -> Tensor:
    """Return the attention from ``generating`` tokens (rows, n) to each token, (rows, places) fp32.

    Summed over the generating tokens and heads.
    """
    asking = q.gather(2, wide(generating, q)).float()
    return (asking @ k.float().mT * q.size(-1) ** -0.5).softmax(-1).sum((1, 2))


def joined(q: Tensor, *parts: tuple[Tensor, Tensor]) -> Tensor:
    """Return softmax(q·kᵀ/√d)·v over several ``parts`` of keys and values, by an online softmax.

    Appendix A, Eq. 6–10. Each part: (rows, heads, n, head_dim); result: (rows, heads, tokens, head_dim).
    """
    top, total, out = q.new_full((*q.shape[:3], 1), float("-inf")).float(), q.new_zeros(()).float(), q.new_zeros(()).float()
    for k, v in parts:
        scores = q.float() @ k.float().mT * q.size(-1) ** -0.5
        higher = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights, shrink = (scores - higher).exp(), (top - higher).exp()
        total, out, top = total * shrink + weights.sum(-1, keepdim=True), out * shrink + weights @ v.float(), higher
    return (out / total).to(q.dtype)
