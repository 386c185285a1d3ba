"""The side of a method that arithmetic on paper sees: what it computes, reads and adds in every pass, before anything runs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ..cache.layout import Layout, Site, Step

if TYPE_CHECKING:
    from ..cache.masked_layout import Load, MaskedLayout, MaskedStep


class MethodOverhead(NamedTuple):
    """Work of a method beside the model: multiplications of matrix ``products``, and ``numbers`` of the layout's dtype that it reads
    and writes (entries that it moves, keys that it scores)."""

    products: int = 0
    numbers: int = 0


class Denoising(NamedTuple):
    """Some ``tokens`` of a masked pass, which the diffusion head draws in so many ``passes``."""

    tokens: int
    passes: int


class PaperCosts:
    """FLOPs and bytes of the full cache, or in a masked model of no cache. All are asked after :meth:`Planning.resolve`."""

    def passes(self, asked: int) -> int:
        """Masked: number of passes where the sampling asks for ``asked``."""
        return asked

    def paced(self, layout: MaskedLayout) -> MaskedLayout:
        """Masked: the layout with the passes that are made, and how many tokens each of them predicts."""
        return replace(layout, steps=self.passes(layout.steps))

    def denoising(self, step: MaskedStep, asked: int) -> Sequence[Denoising]:
        """Masked: in how many passes the head draws the tokens of this pass where the sampling asks for ``asked``: parts of them, in the
        order of :meth:`~.method.Method.ranked`."""
        return (Denoising(step.count, asked),)

    def computes(self, site: Site, step: MaskedStep, load: Load) -> Load:
        """Masked: the part of ``load`` that a block computes in this pass; without a cache it computes all of it."""
        return load

    def attended(self, layout: Layout, site: Site, step: Step) -> int:
        """Next-token, next-scale: entries that a query of this pass looks at, its own among them."""
        return layout.longest_condition + step.first + step.count

    def attended_by_heads(self, layout: Layout, site: Site, step: Step) -> int:
        """Entries that a query of this pass looks at, summed over K/V heads. Methods whose heads keep different numbers define it."""
        return layout.kv_heads * self.attended(layout, site, step)

    def kind(self, layout: Layout, site: Site) -> Hashable:
        """Sites of one capacity and one kind hold and read as many entries in every pass. Methods whose heads differ define it."""
        return None

    def overhead(self, layout: Layout, site: Site, step: Step) -> MethodOverhead:
        """Work of this site in a pass beside the model itself, for one row."""
        return MethodOverhead()
