"""Redundancy between the passes of a masked model, which is what a cache can save."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ...cache.layout import Site, Step, Tokens
from ...cache.masked_layout import MaskedLayout, MaskedStep
from ...contract.method import Block, Method

CLASSES = ("buffer", "known", "caching", "generating", "masked")
WHAT = ("k", "v", "feature")
BRANCHES = ("conditional", "unconditional", "residual")


class Redundancy(Method):
    """The full model, which measures how similar successive passes are.

    Cosine similarity of keys, values and features (block outputs) of the decoder, and of its output on either branch of the guidance and of
    their difference, as in MARché's Figure 1 and LazyMAR's Figures 1 and 2. A token's class is that in the later pass: ``caching`` was
    predicted by the previous pass, ``generating`` is predicted now, ``known`` was predicted earlier, ``masked`` will be later. One instance
    serves many generations of one layout. Not a method to benchmark.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int, int], Tensor] = {}
        self._counts: dict[int, Tensor] = {}
        self._before: dict[tuple[str, int], Tensor] = {}
        self._classes = torch.empty(0)

    # -- observing ----------------------------------------------------------------------------------------------------
    def stack(self, name: str, step: Step, tokens: Tokens, run: Callable[[Tokens], Tensor]) -> Tensor:
        if name != "decoder":
            return run(tokens)
        self._classes = self._one_hot(cast(MaskedStep, step))
        if step.index:
            self._counts[step.index] = self._counts.get(step.index, 0) + self._classes.sum((0, 1))
        out = run(tokens)
        rows = self.shape.batch
        guided = len(out) > rows
        branches = (out[:rows], out[rows:], out[rows:] - out[:rows]) if guided else (out,)
        for branch, x in zip(BRANCHES, branches, strict=False):
            self._note(branch, 0, step, x[:, :, None])
        return out

    def block(self, site: Site, step: Step, tokens: Tokens, block: Block) -> Tokens:
        tokens = super().block(site, step, tokens, block)
        if site.stack == "decoder":
            self._note("feature", site.layer, step, tokens.x[:, :, None])
        return tokens

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if site.stack == "decoder":
            for name, x in (("k", k), ("v", v)):
                self._note(name, site.layer, step, x.transpose(1, 2))
        return super().attend(site, step, q, k, v)

    @property
    def shape(self) -> MaskedLayout:
        return cast(MaskedLayout, self.layout)

    def _one_hot(self, step: MaskedStep) -> Tensor:
        """Return the class of every token, (rows, places, classes) fp64."""
        names, at = torch.full((len(step.known), self.shape.places), CLASSES.index("masked")), self.shape.buffer
        names[:, :at] = CLASSES.index("buffer")
        for name, places in (("known", step.known), ("caching", step.previous), ("generating", step.generating)):
            names.scatter_(1, places.cpu() + at, CLASSES.index(name))
        return F.one_hot(names, len(CLASSES)).double()

    def _note(self, name: str, layer: int, step: Step, x: Tensor) -> None:
        """Compare ``x`` (rows, places, heads, width) with that of the previous pass."""
        if step.index:
            alike = F.cosine_similarity(x.double(), self._before[name, layer].double(), dim=-1)
            by_class = torch.einsum("rp,rpc->c", alike.flatten(2).mean(2).cpu(), self._classes[: len(x)])
            key = name, layer, step.index
            self._sums[key] = self._sums.get(key, 0) + by_class
        self._before[name, layer] = x

    # -- what was found -----------------------------------------------------------------------------------------------
    def profile(self) -> dict[str, Any]:
        """Return means by pass from the second on: by class, by layer, and by guidance branch.

        A class without tokens in a pass has None there.
        """
        passes = sorted(self._counts)
        layers = range(self.shape.layers)

        def by_class(what: str, index: int) -> list[float | None]:
            counted = [(sum(self._sums[what, layer, p][index] for layer in layers), self._counts[p][index] * len(layers)) for p in passes]
            return [float(total / n) if n else None for total, n in counted]

        def whole(name: str, layer: int, share: float = 1) -> list[float]:
            return [float(self._sums[name, layer, p].sum() / (self._counts[p].sum() * share)) for p in passes]

        half = 1 / (self.shape.rows // self.shape.batch)
        return {
            "passes": [p + 1 for p in passes],
            "classes": {c: {what: by_class(what, i) for what in WHAT} for i, c in enumerate(CLASSES)},
            "layers": {what: [whole(what, layer) for layer in layers] for what in WHAT},
            "branches": {branch: whole(branch, 0, half) for branch in BRANCHES if (branch, 0, passes[0]) in self._sums},
        }
