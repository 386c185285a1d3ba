"""FastVAR: the last scales compute only the most different tokens; others reuse earlier outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache import random_streams as streams
from ..cache.arena import Memory
from ..cache.layout import Grid, Layout, Load, Site, Step, Tokens
from ..contract.block import Block, Branch, ScaleBlock
from ..contract.planning import MethodOverhead
from ..core.errors import BadParameter
from ..roofline.flops_budget import fitted
from .base.saves_flops import SavesFlops
from .registry import method

HUNDREDTHS = 100  # steps of the factor that a budget multiplies the base shares by


def deviation(x: Tensor) -> Tensor:
    """Return the squared distance of each token from the mean of its map.

    ``x`` (rows, tokens, width) to (rows, tokens). FastVAR's score.
    """
    return (x - x.mean(1, keepdim=True)).square().sum(-1)


def highpass(x: Tensor, grid: Grid) -> Tensor:
    """Return each token's squared distance from its 3×3 mean, as StepVAR does (arXiv 2603.01757)."""
    here = as_map(x, grid)
    return (here - F.avg_pool2d(here, 3, 1, 1, count_include_pad=False)).square().sum(1).flatten(1)


def as_map(x: Tensor, grid: Grid) -> Tensor:
    """Return tokens (rows, h·w, width) as a map (rows, width, h, w)."""
    return x.transpose(1, 2).unflatten(2, grid)


SCORES: dict[str, Callable[[Tensor, Grid], Tensor]] = {"deviation": lambda x, grid: deviation(x), "highpass": highpass}
RANDOM = "random"


@method("fastvar")
@dataclass
class FastVAR(SavesFlops):
    """Prunes tokens in the last scales: some blocks compute only the highest-scored tokens.

    Guo et al., "FastVAR: Linear Visual Autoregressive Modeling via Cached Token Pruning" (ICCV 2025, arXiv 2503.23367). ``shares`` are cut
    from the last scales, coarse to fine; a share of 1 skips the scale, and only last scales can be skipped. ``layers`` are the first and
    the last block (from 0) that prune. Each branch (attention, text, MLP) of each row selects tokens by ``score``: ``deviation`` from the
    mean of the map, ``highpass``, or ``random``. A pruned token reuses the branch's output at scale ``cached`` (from 0; −1: the scale
    before the first share), resized by area, or zero with ``fill`` = ``zero``; it stores no key and value. All tokens of a scale are
    sampled. A budget multiplies the ``base`` shares by the smallest number of hundredths that meets it; without a budget, they are the
    shares.

    Differs from the authors' code: any batch and any schedule of maps are supported (theirs handles two rows and finds scales by
    their width, and repeats outputs of an earlier image for some aspect ratios); only pruning blocks keep outputs, before their gate; the
    last generated scale is not stored; rows keep positions in ascending order; VAR is supported, although no code for it is published.
    """

    title = "FastVAR"
    sizes = ("shares",)
    source = "FastVAR (arXiv 2503.23367), and its code for Infinity"
    authors_code = "yes: csguoh/FastVAR, for Infinity"
    unstated = {
        "base": "FastVAR's table of Infinity; no shares are known for VAR",
        "layers": "FastVAR's code of Infinity-2B; those for VAR are not known",
        "cached": "the scale before the first share, as in the code for Infinity and HART",
        "score": "FastVAR's; highpass and random are other scores for comparison",
        "fill": "FastVAR's; zero is a control",
    }
    neutral = {"shares": (1e-6,)}  # cuts less than one token

    shares: Sequence[float] = ()
    base: Sequence[float] = (0.4, 0.5, 1.0, 1.0)
    layers: Sequence[int] = (3, 27)
    cached: int = -1
    score: str = "deviation"
    fill: str = "cached"

    # -- planning -----------------------------------------------------------------------------------------------------
    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        """Return the base shares times the smallest factor that meets this fraction of an image's FLOPs."""
        self._check_lists()
        if self.shares:
            return {}
        self._check_shares("base", len(layout.scales))
        most = math.ceil(HUNDREDTHS / min(self.base))
        reduction = fitted(self.name, lambda i: replace(self, shares=self._scaled(most - i)), most - 1, budget, layout)
        return {"shares": self._scaled(most - reduction)}

    def _scaled(self, hundredths: int) -> list[float]:
        shares = [min(1.0, round(hundredths * share / HUNDREDTHS, 9)) for share in self.base]
        first = shares.index(1.0) if 1.0 in shares else len(shares)
        return shares[:first] + [1.0] * (len(shares) - first)

    def resolve(self, layout: Layout) -> None:
        scales = len(layout.scales)
        self._check_lists()
        self.shares = list(self.shares or self.base)
        self.check_choice("score", *SCORES, RANDOM)
        self.check_choice("fill", "cached", "zero")
        self._check_shares("shares", scales)
        first = scales - len(self.shares)
        self.check_range("cached", -1 <= self.cached < first, f"Use 0 … {first - 1}: the first pruned scale is {first}.")
        if not 0 <= self.layers[0] <= min(self.layers[1], layout.layers - 1):
            raise BadParameter(f"fastvar: layers = {list(self.layers)} prune in no block of {layout.layers}.",
                               remedy=f"Use the first and the last block that prune, from 0 to {layout.layers - 1}.")
        self.cache_scale = first - 1 if self.cached == -1 else self.cached
        self.generated = scales - sum(share == 1 for share in self.shares)
        self.kept = {scale: layout.scale_tokens[scale] - int(layout.scale_tokens[scale] * share)
                     for scale, share in enumerate(self.shares, first) if share < 1}
        self.pruned_layers = range(self.layers[0], min(self.layers[1] + 1, layout.layers))

    def _check_lists(self) -> None:
        for parameter in ("shares", "base"):
            self.check_range(parameter, isinstance(getattr(self, parameter), list | tuple), "Use a list of shares.")
        numbers = isinstance(self.layers, list | tuple) and len(self.layers) == 2 and all(type(layer) is int for layer in self.layers)
        self.check_range("layers", numbers, "Use a list of the first and the last block.")

    def _check_shares(self, parameter: str, scales: int) -> None:
        shares = getattr(self, parameter)
        numbers = all(isinstance(share, int | float) and 0 < share <= 1 for share in shares)
        self.check_range(parameter, numbers and 0 < len(shares) < scales,
                         f"Use shares above 0 and at most 1 of the last scales, for at most {scales - 1} scales, or a budget such as 1/2.")
        if any(before == 1 > after for before, after in pairwise(shares)):
            raise BadParameter(f"fastvar: {parameter} = {list(shares)} skips a scale before one that is not skipped.",
                               remedy="Only the last scales can be skipped: put the shares of 1 at the end.")

    # -- on paper -----------------------------------------------------------------------------------------------------
    def scales(self, layout: Layout) -> int:
        return self.generated

    def computes(self, site: Site, step: Any, load: Load) -> Load:
        tokens = self._tokens(site, step.index, load.tokens)
        return load._replace(tokens=tokens, mlp=tokens)

    def attended(self, layout: Layout, site: Site, step: Step) -> int:
        return sum(self._tokens(site, scale, tokens) for scale, tokens in enumerate(layout.scale_tokens[: step.scale]))

    def capacity(self, layout: Layout, site: Site) -> int:
        return sum(self._tokens(site, scale, tokens) for scale, tokens in enumerate(layout.scale_tokens[: self.generated - 1]))

    def overhead(self, layout: Layout, site: Site, step: Step) -> MethodOverhead:
        """Return how many numbers each branch moves: scores, selected tokens, stored and merged outputs."""
        width, old = layout.heads * layout.head_dim, layout.scale_tokens[self.cache_scale]
        if site.layer not in self.pruned_layers or step.index not in (*self.kept, self.cache_scale):
            return MethodOverhead()
        moved = 2 * step.count + 3 * self.kept[step.index] + old if step.index in self.kept else old
        return MethodOverhead(numbers=_branches(layout) * width * moved)

    def _tokens(self, site: Site, scale: int, tokens: int) -> int:
        return self.kept.get(scale, tokens) if site.layer in self.pruned_layers else tokens

    # -- one generation -----------------------------------------------------------------------------------------------
    def begin(self, layout: Layout, sites: Sequence[Site], memory: Memory) -> None:
        super().begin(layout, sites, memory)
        shape = (len(self.pruned_layers), _branches(layout), layout.rows, layout.scale_tokens[self.cache_scale])
        reuses = self.kept and self.fill == "cached"
        self.outputs = memory.zeros("outputs", (*shape, layout.heads * layout.head_dim), layout.dtype) if reuses else None
        named = memory.zeros("streams", (2, layout.rows), torch.int64)
        self.seeds, self.row_branches = named.copy_(torch.tensor([layout.seeds, layout.branches]))
        self.selected: Tensor | None = None

    def positions(self) -> Tensor | None:
        return self.selected

    def block(self, site: Site, step: Step, tokens: Tokens, block: Block) -> Tokens:
        """Run the branches one by one, each on the tokens that it selects."""
        storing = step.index == self.cache_scale and self.outputs is not None
        if site.layer not in self.pruned_layers or not (storing or step.index in self.kept):
            return super().block(site, step, tokens, block)
        for number, branch in enumerate(cast(ScaleBlock, block).branches(site, step, self)):
            if step.index in self.kept:
                out = self.pruned(site, step, number, tokens, branch)
            else:
                out = branch.run(tokens)
                self._stored(site, number, out).copy_(out)
            tokens = branch.join(tokens, out)
        return tokens

    def pruned(self, site: Site, step: Step, number: int, tokens: Tokens, branch: Branch) -> Tensor:
        """Return the output of a branch: computed for selected tokens, resized stored outputs for the others."""
        highest_first = self.scored(site, step, number, tokens.x).sort(stable=True, dim=-1, descending=True).indices
        self.selected = highest_first[:, : self.kept[step.index]].sort(-1).values
        places = self.selected[..., None].expand(-1, -1, tokens.x.size(-1))
        out = branch.run(tokens.take(self.selected))
        self.selected = None
        if self.outputs is None:
            return torch.zeros_like(tokens.x).scatter(1, places, out)
        scales = self.layout.scales
        old = F.interpolate(as_map(self._stored(site, number, out), scales[self.cache_scale]), size=scales[step.index], mode="area")
        return old.flatten(2).transpose(1, 2).scatter(1, places, out)

    def scored(self, site: Site, step: Step, number: int, x: Tensor) -> Tensor:
        """Return the score of each token of ``x`` (rows, tokens, width) in a branch, (rows, tokens) fp32.

        The highest are computed.
        """
        if self.score != RANDOM:
            return SCORES[self.score](x.float(), self.layout.scales[step.index])
        rows, inner = x.size(0), site.layer * _branches(self.layout) + number
        key = streams.keys(self.seeds[:rows], "evict", step.first, branch=self.row_branches[:rows], inner=inner)
        return streams.uniform(key, x.size(1))

    def _stored(self, site: Site, number: int, out: Tensor) -> Tensor:
        assert self.outputs is not None
        return self.outputs[site.layer - self.pruned_layers.start, number, : out.size(0)]


def _branches(layout: Layout) -> int:
    return 3 if layout.work is not None and layout.work.text else 2
