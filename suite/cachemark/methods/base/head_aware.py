"""Base of HACK and HACK++: contextual and structural heads, each class cut by its own scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ...cache.attention import attend, fold
from ...cache.kernels.record import HEADS, Entries, Part
from ...cache.layout import Layout, Site, Step
from ...cache.ragged import Extent, Kept, RaggedWorkspace
from ...contract.heads import PerHead
from ...contract.planning import MethodOverhead
from .calibrations import Calibrated, named


@dataclass(frozen=True)
class HeadClasses:
    """Classes of all heads: ``contextual[layer][head]``, else structural."""

    contextual: tuple[tuple[bool, ...], ...]

    @classmethod
    def by_variance(cls, variance: Sequence[Sequence[float]], share: float) -> HeadClasses:
        """Mark the ``share`` of heads with the lowest variance as contextual; ties by layer, then head."""
        pairs = sorted((value, layer, head) for layer, heads in enumerate(variance) for head, value in enumerate(heads))
        few = {pair[1:] for pair in pairs[: round(share * len(pairs))]}
        return cls(tuple(tuple((layer, head) in few for head in range(len(heads))) for layer, heads in enumerate(variance)))

    @property
    def few(self) -> int:
        """Number of contextual heads."""
        return sum(map(sum, self.contextual))

    @property
    def pairs(self) -> int:
        """Number of heads of all layers."""
        return sum(map(len, self.contextual))

    def budgets(self, mean: int, contrast: Fraction, most: int) -> tuple[int, int]:
        """Return the entries of a contextual and of a structural head, whose mean is at most ``mean``.

        A contextual head has ``contrast`` · ``mean``, or more if structural heads reach ``most``.
        """
        many, total = self.pairs - self.few, mean * self.pairs
        large = min(most, (total - self.few * int(contrast * mean)) // many) if many else most
        small = min(most, (total - many * large) // self.few) if self.few else most
        return small, large


class Cut(NamedTuple):
    """Most entries of a head, its own scale included, for attention and for the cache."""

    attention: int
    cache: int


@dataclass
class CalibratedHeads(Calibrated, PerHead):
    """A method that plans the entries of every head from facts measured of the weights."""

    def own_budget(self, layout: Layout) -> Fraction:
        """Return the allocated fraction of the full cache, at these parameters or the published ones."""
        self.resolve(layout)
        allocated = sum(self.entries(layout, Site("decoder", layer)) for layer in range(layout.layers))
        return Fraction(allocated, layout.layers * layout.kv_heads * layout.cacheable)

    def attended(self, layout: Layout, site: Site, step: Step) -> int:
        """Return the mean over the heads, rounded up."""
        return -(-self.attended_by_heads(layout, site, step) // layout.kv_heads)


@dataclass
class HeadAware(CalibratedHeads):
    """Base of methods with two classes of heads, *contextual* and *structural*, each with its own budget.

    The share ``contextual`` of all heads, those with the lowest variance, is contextual. One set of scores selects the entries that a scale
    attends to and the survivors. A subclass defines :meth:`cut`, :meth:`kept_before` and :meth:`scores`; ``structural_asks``: structural
    heads are scored by queries, too.
    """

    structural_asks: ClassVar[bool] = True

    contextual: float = 0.5
    queries: int = 32
    mean: int = 0

    def check_parameters(self, layout: Layout) -> None:
        """Raise BadParameter for values that no model can use."""
        self.check_range("contextual", 0 < self.contextual < 1, "Use a number between 0 and 1.")
        self.check_range("queries", self.queries >= 1, "Use 1 or more.")
        self.check_range("mean", 0 <= self.mean <= layout.visual, f"Use 1 … {layout.visual} tokens.")

    def classed(self, layout: Layout) -> HeadClasses:
        """Return the classes of all heads, by the variances of the calibration."""
        self.facts(layout)
        self.classes = _classed(self.name, self.calibration, self.contextual)
        return self.classes

    def cut(self, site: Site, step: Step, *, contextual: bool) -> Cut:
        """Return the limits of a head of a class."""
        raise NotImplementedError

    def scores(self, site: Site, step: Step, part: Extent, q: Tensor) -> Tensor:
        """Return scores of each position of [live | own], (rows, heads, length); the highest are kept.

        For neighboring heads of one class, at ``part`` of the workspace; ties keep the older entry. ``q``: (rows, heads, queries,
        head_dim).
        """
        raise NotImplementedError

    # -- on paper -----------------------------------------------------------------------------------------------------
    def attended_by_heads(self, layout: Layout, site: Site, step: Step) -> int:
        return sum(min(cut.attention, length) for cut, length in self._lengths(site, step))

    def overhead(self, layout: Layout, site: Site, step: Step) -> MethodOverhead:
        """Count reading and scoring of all keys of cut heads, and moving of the selected entries."""
        group, products, numbers = layout.heads // layout.kv_heads, 0, 0
        for few, (cut, length) in zip(self.classes.contextual[site.layer], self._lengths(site, step), strict=True):
            if length > min(cut):
                products += length * min(self.queries, step.count) * group * (few or self.structural_asks)
                numbers += length + 4 * sum(most for most in {*cut} if most < length)
        return MethodOverhead(layout.head_dim * products, layout.head_dim * numbers)

    def _lengths(self, site: Site, step: Step) -> list[tuple[Cut, int]]:
        """Return, for each head of a site, its limits and the number of candidate entries."""
        return [(self.cut(site, step, contextual=few), self.kept_before(site, step, contextual=few) + step.count)
                for few in self.classes.contextual[site.layer]]

    def kept_before(self, site: Site, step: Step, *, contextual: bool) -> int:
        """Return the entries that a head of a class has from earlier scales."""
        raise NotImplementedError

    # -- one generation -----------------------------------------------------------------------------------------------
    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Select entries, attend to the selection alone, and keep the survivors."""
        slot, workspace = self.ragged[site], self.shown
        workspace.put(slot, step.first, k, v)
        queries = fold(q, k.size(1))
        parts: list[Part] = []
        survivors: dict[int, Kept] = {}
        for part in self._alike(site, step, workspace):
            heads = range(part.first, part.first + part.heads)
            group_queries, keys, values = queries[:, heads.start : heads.stop], part.view(workspace.k), part.view(workspace.v)
            visible, stays = self.chosen(site, step, part, group_queries)
            if visible is not None:
                wide = visible[..., None].expand(-1, -1, -1, k.size(-1))
                keys, values = keys.gather(2, wide), values.gather(2, wide)
            everything = [range(part.length)]
            survivors |= dict.fromkeys(heads, everything) if stays is None else zip(heads, stays.unbind(1), strict=True)
            parts.append(Part(slice(None), heads, keys, values))
        if not step.last:
            slot.absorb(workspace, [survivors[head] for head in sorted(survivors)])
        return attend(q, Entries(k.size(1), lambda: parts, lengths=HEADS))[0]

    def chosen(self, site: Site, step: Step, part: Extent, q: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return positions of [live | own] that heads attend to and that they keep; None for all.

        Each (rows, heads, n), ascending.
        """
        cut = self.cut(site, step, contextual=self.is_contextual(site, part.first))
        if part.length <= min(cut):
            return None, None
        order = self.scores(site, step, part, q).sort(dim=-1, descending=True, stable=True).indices
        visible, survivors = ((order[..., :most].sort(-1).values if most < part.length else None) for most in cut)
        return visible, survivors

    def _alike(self, site: Site, step: Step, workspace: RaggedWorkspace) -> Iterator[Extent]:
        """Yield extents of neighboring heads with equal lengths that are cut alike."""
        limits = {few: min(self.cut(site, step, contextual=few)) for few in {*self.classes.contextual[site.layer]}}
        contextual = self.classes.contextual[site.layer]
        for extent in workspace.extents:
            cut = {few: extent.length > limit and (few,) for few, limit in limits.items()}  # heads that are not cut are alike
            yield from extent.alike([cut[few] for few in contextual].__getitem__)

    def is_contextual(self, site: Site, head: int) -> bool:
        return self.classes.contextual[site.layer][head]

    def subset_attention(self, q: Tensor, k: Tensor, step: Step) -> Tensor:
        """Return attention weights of a few evenly spaced queries over all keys.

        (rows, heads, queries, keys) fp32.
        """
        scoring = min(self.queries, step.count)
        places = (torch.arange(scoring, device=q.device) * 2 + 1) * step.count // (2 * scoring)
        few = q.unflatten(2, (-1, step.count)).index_select(3, places).flatten(2, 3)
        return (few.float() @ k.float().mT * q.size(-1) ** -0.5).softmax(-1)


@cache
def _classed(method: str, calibration: str, share: float) -> HeadClasses:
    return HeadClasses.by_variance(named(method, calibration)[1]["variance"], share)
