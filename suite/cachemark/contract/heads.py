"""Methods whose K/V heads keep different numbers of entries: :class:`HeadGroups` and :class:`PerHead`.

The former is for next-token models, the latter for next-scale models.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.attention import by_length
from ..cache.layout import HeadSite, Layout, Site, Step
from ..cache.ragged import Kept, RaggedSlot, RaggedWorkspace, workspace_entries
from ..core.errors import BadParameter
from ..core.spec import canonical
from .method import Method, graph_key
from .planning import MethodOverhead


@dataclass
class HeadGroup:
    """The heads served by one uniform ``method``, equally many at each of its sites.

    ``layout`` has these heads alone.
    """

    method: Method
    layout: Layout
    heads: dict[Site, tuple[int, ...]] = field(default_factory=dict)


@dataclass
class HeadGroups(Method):
    """A next-token method that assigns each K/V head a uniform method with its own budget.

    A subclass overrides :meth:`served`, which may depend on sizes, parameters and calibrations but not on tensors. Heads of a site with the
    same method and parameters attend in one call, on exactly their entries, in storage allocated for their budget.
    """

    paradigms = ("next-token",)
    evicts = True
    groups: ClassVar[Sequence[HeadGroup]] = ()  # of an instance since it was resolved; no parameter

    def served(self, layout: Layout, site: Site) -> Sequence[Method]:
        """Return the method of each K/V head of a site, such as ``Window(B=32)``."""
        return [Method()] * layout.kv_heads

    def resolve(self, layout: Layout) -> None:
        """Group the heads. Call it after the subclass's own resolution."""
        share, groups = layout.heads // layout.kv_heads, dict[tuple[type[Method], str, int], HeadGroup]()
        for site in (Site("decoder", layer) for layer in range(layout.layers)):
            served, alike = self.served(layout, site), dict[tuple[type[Method], str], list[int]]()
            if len(served) != layout.kv_heads:
                raise BadParameter(f"{self.name}: {len(served)} methods for the heads of layer {site.layer}.",
                                   remedy=f"served must return one for each of the {layout.kv_heads} K/V heads.")
            for head, method in enumerate(served):
                alike.setdefault((type(method), canonical(method.parameters())), []).append(head)
            for (cls, parameters), heads in alike.items():
                count = len(heads)
                few = replace(layout, heads=share * count, kv_heads=count)
                group = groups.setdefault((cls, parameters, count), HeadGroup(copy(served[heads[0]]), few))
                group.heads[site] = tuple(heads)
        for group in groups.values():
            group.method.resolve(group.layout)
        self.groups = list(groups.values())  # type: ignore[misc]  # a ClassVar, which is neither a field nor a parameter

    # -- on paper -----------------------------------------------------------------------------------------------------
    def at(self, site: Site) -> list[HeadGroup]:
        """Return the groups that have heads at a site, after :meth:`resolve`."""
        return [group for group in self.groups if site in group.heads]

    def entries(self, layout: Layout, site: Site) -> int:
        """Return the entries allocated per row for all K/V heads of a site."""
        return sum(group.layout.kv_heads * group.method.capacity(group.layout, site) for group in self.at(site))

    def capacity(self, layout: Layout, site: Site) -> int:
        """Return the mean over the heads of a site, rounded up, for comparisons on paper."""
        return -(-self.entries(layout, site) // layout.kv_heads)

    def kind(self, layout: Layout, site: Site) -> tuple[tuple[int, int], ...]:
        """Return the capacity of each group with its number of heads, sorted."""
        return tuple(sorted((group.method.capacity(group.layout, site), group.layout.kv_heads) for group in self.at(site)))

    def attended(self, layout: Layout, site: Site, step: Step) -> int:
        """Return the mean over the heads, rounded up."""
        return -(-self.attended_by_heads(layout, site, step) // layout.kv_heads)

    def attended_by_heads(self, layout: Layout, site: Site, step: Step) -> int:
        return sum(group.method.attended_by_heads(group.layout, site, step) for group in self.at(site))

    def overhead(self, layout: Layout, site: Site, step: Step) -> MethodOverhead:
        costs = [group.method.overhead(group.layout, site, step) for group in self.at(site)]
        return MethodOverhead(sum(cost.products for cost in costs), sum(cost.numbers for cost in costs))

    # -- one generation -----------------------------------------------------------------------------------------------
    def begin(self, layout: Layout, sites: Sequence[Site], memory: Memory) -> None:
        memory.begin()
        self.layout = layout
        self.resolve(layout)
        def staged(group: HeadGroup) -> int:
            return group.layout.kv_heads * max(group.method.capacity(group.layout, site) for site in group.heads)

        largest_first = sorted(self.groups, key=staged, reverse=True)
        parts = memory.parts(f"group {number}" for number in range(len(largest_first)))
        for group, part in zip(largest_first, parts, strict=True):
            group.method.begin(group.layout, list(group.heads), part)
        self.banks = [bank for group in self.groups for bank in group.method.banks]
        self.slots = {HeadSite(*site, heads): group.method.slots[site] for group in self.groups for site, heads in group.heads.items()}
        self.workspace = largest_first[0].method.workspace  # which the others share

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Run the attention of each group with its own method and heads."""
        share, outs = q.size(1) // k.size(1), dict[int, Tensor]()
        for group in self.at(site):
            heads = group.heads[site]
            if len(heads) == k.size(1):
                return group.method.attend(site, step, q, k, v)
            asking = query_heads(heads, share)
            out = group.method.attend(site, step, select_heads(q, asking), select_heads(k, heads), select_heads(v, heads))
            outs |= zip(asking, out.unbind(1), strict=True)
        return torch.stack([outs[head] for head in sorted(outs)], 1)

    def end_step(self, step: Step) -> None:
        """Close the pass in every group."""
        for group in self.groups:
            group.method.end_step(step)

    # -- how a pass may be run ----------------------------------------------------------------------------------------
    @property
    def needs_mass(self) -> bool:
        return any(group.method.needs_mass for group in self.groups)

    @property
    def capturable(self) -> bool:
        return all(group.method.capturable for group in self.groups)

    def graph_key(self, step: Step) -> tuple[object, ...]:
        """Return the graph keys of the groups' methods."""
        return tuple(graph_key(group.method, step) for group in self.groups)


def query_heads(heads: Sequence[int], share: int) -> list[int]:
    """Return the query heads of K/V ``heads`` that serve ``share`` of them each."""
    return [head * share + number for head in heads for number in range(share)]


def select_heads(x: Tensor, heads: Sequence[int]) -> Tensor:
    """Return some heads of (rows, heads, tokens, head_dim); a view if they are contiguous."""
    if heads[-1] - heads[0] == len(heads) - 1:
        return x[:, heads[0] : heads[-1] + 1]
    return torch.stack([x[:, head] for head in heads], 1)


@dataclass
class PerHead(Method):
    """A next-scale method that chooses per head which entries survive a scale, in ragged storage.

    A subclass overrides :meth:`entries` and :meth:`select`. Both may depend on sizes and calibrations; :meth:`select` also on tensors, as
    long as the number of survivors does not.
    """

    paradigms = ("next-scale",)
    evicts = True

    def entries(self, layout: Layout, site: Site) -> int:
        """Return the allocated entries per row of a site: the most entries of all K/V heads after any pass."""
        return layout.stored * layout.kv_heads

    def select(self, site: Site, step: Step, slot: RaggedSlot, workspace: RaggedWorkspace, q: Tensor) -> Sequence[Kept]:
        """Return the positions of [live | own] to keep, for each head. Not called after the last scale."""
        return [[range(n + step.count)] for n in slot.lengths]

    # -- on paper -----------------------------------------------------------------------------------------------------
    def capacity(self, layout: Layout, site: Site) -> int:
        """Return the mean entries per head of a site, rounded up, for comparisons on paper."""
        return -(-self.entries(layout, site) // layout.kv_heads)

    # -- one generation -----------------------------------------------------------------------------------------------
    def begin(self, layout: Layout, sites: Sequence[Site], memory: Memory) -> None:
        memory.begin()
        self.layout = layout
        self.resolve(layout)
        self.banks, self.slots, self.workspace = [], {}, None
        sizes = {site: self.entries(layout, site) for site in sites}
        self.ragged = {site: RaggedSlot(layout, site, size, memory) for site, size in sizes.items()}
        self.shown = RaggedWorkspace(layout, max(workspace_entries(layout, size) for size in sizes.values()), memory)
        self._before = self.lengths
        self._fullest, self._peak = 0, 0

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        slot, workspace = self.ragged[site], self.shown
        workspace.put(slot, step.first, k, v)
        out = by_length(q, workspace)
        if not step.last:
            slot.absorb(workspace, self.select(site, step, slot, workspace, q))
        return out

    def end_step(self, step: Step) -> None:
        """Close a pass and update the peak from lengths alone, since a captured pass runs no Python."""
        entries = sum(map(sum, self._before))
        for before, now in zip(self._before, self.lengths, strict=True):
            entries += sum(now) - sum(before)
            self._peak = max(self._peak, entries)
        self._fullest = max(self._fullest, entries)
        self._before = self.lengths

    @property
    def lengths(self) -> tuple[tuple[int, ...], ...]:
        """Live entries of each head of every site."""
        return tuple(tuple(slot.lengths) for slot in self.ragged.values())

    @lengths.setter
    def lengths(self, lengths: tuple[tuple[int, ...], ...]) -> None:
        for slot, live in zip(self.ragged.values(), lengths, strict=True):
            slot.lengths[:] = live

    @property
    def logical_bytes(self) -> int:
        return self._bytes(self._fullest)

    @property
    def peak_live_bytes(self) -> int:
        """Peak bytes of live keys and values between two layers of a pass.

        A layer grows before the next one shrinks.
        """
        return self._bytes(self._peak)

    @property
    def live_bytes(self) -> int:
        return self._bytes(sum(map(sum, self.lengths)))

    def _bytes(self, entries: int) -> int:
        codec = next(iter(self.ragged.values())).codec
        return entries * self.layout.rows * codec.pair_bytes(self.layout.head_dim, self.layout.dtype)
