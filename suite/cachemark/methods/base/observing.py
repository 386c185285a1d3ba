"""Base of methods that score keys by the attention of the latest queries."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ...cache.arena import Memory
from ...cache.bank import SlotBank, chunks
from ...cache.kernels.selection import Pool, attended, pools
from ...cache.layout import Layout, Site, Step
from ...cache.slot import Slot
from ...contract.planning import MethodOverhead
from ...core.errors import BadBudget
from .evicting import Evicting, lowest, ring


@dataclass
class Observing(Evicting):
    """Base of methods that evict a line of entries at each line's end by the latest tokens' queries.

    The ``alpha`` latest tokens are used, and stay. A subclass defines :meth:`scored`; entries with the lowest scores are evicted.
    """

    evict_after = "line"
    similarities = 0  # matrices of keys by keys that `scored` makes

    alpha: int = 8

    def scored(self, q: Tensor, k: Tensor) -> Tensor:
        """Return fp32 scores (rows, kv_heads, m − alpha) of all keys but the latest.

        ``q`` (rows, heads, alpha, head_dim); ``k`` (rows, kv_heads, m, head_dim): the visual keys of a layer by position, both fp32.
        """
        raise NotImplementedError

    def resolve(self, layout: Layout) -> None:
        super().resolve(layout)
        self.check_range("alpha", self.alpha >= 1, "Use 1 or more queries.")
        if self.B % layout.line or self.B - self.alpha < layout.line:
            raise BadBudget(f"{self.name}: B = {self.B} with alpha = {self.alpha} does not fit lines of {layout.line}.",
                            remedy=f"B must be a multiple of {layout.line} and at least {layout.line} + alpha.")

    def prepare(self, slots: SlotBank, memory: Memory) -> None:
        self.queries = ring(memory, slots, self.alpha)

    def observe(self, site: Site, step: Step, slot: Slot, q: Tensor, mass: Tensor | None) -> None:
        if step.count == 1:
            self.queries[slot.index, :, :, step.first % self.alpha] = q[:, :, 0]
        elif step.count:  # the accepted token's query overwrites a rejected draft's before the line ends
            latest = range(max(0, step.staying - self.alpha), step.staying)
            places = torch.arange(step.first + latest.start, step.first + latest.stop, device=q.device)
            self.queries[slot.index][:, :, places % self.alpha] = q[:, :, latest.start : latest.stop]

    def horizon(self, first: int) -> int:
        """Return the rest of the line: entries are evicted at its end, by the queries of its last tokens."""
        return self.layout.line - first % self.layout.line

    def beyond(self, first: int) -> int:
        """Return all remaining tokens: their queries are not stored."""
        return self.layout.visual - first

    def graph_key(self, step: Step) -> Hashable:
        """Return the position in the ring of queries."""
        return step.first % self.alpha

    def overhead(self, layout: Layout, site: Site, step: Step) -> MethodOverhead:
        """Count storing the latest queries and, at a line's end, the scores of keys by queries and by keys."""
        moved = super().overhead(layout, site, step).numbers
        query = layout.heads * layout.head_dim if step.count else 0
        if not moved:
            return MethodOverhead(0, query)
        queries, keys = self.alpha * layout.heads * layout.head_dim, self.B * layout.kv_heads * layout.head_dim
        return MethodOverhead(queries * (self.B - self.alpha) + self.similarities * keys * self.B, query + moved + queries + keys)

    def evict(self, step: Step, slots: SlotBank) -> None:
        if slots.live_visual < self.B or step.line == self.layout.lines:
            return
        pool = self.pooling()
        if pool and slots.selects and pools(slots.visual.device, self.layout.dtype):
            each = 8 * self.layout.kv_heads * max(slots.live)
            slots.evict_lowest(self.layout.line, partial(self._scored_by_kernel, pool, step, slots), each)
            return
        visual = slots.table()
        sites, rows, heads, _ = visual.shape
        places = torch.empty(sites, rows, heads, self.layout.line, dtype=torch.int64, device=visual.device)
        each = heads * self.B * (12 * self.B + 8 * self.layout.head_dim)  # three matrices of cosines; keys in their order, twice
        for i in range(sites):
            for _, some in chunks(1, rows, each):
                order = visual[i, some].argsort(dim=-1, stable=True)[..., -self.B :]  # by position; the condition sorts first
                keys = slots.keys(slice(i, i + 1), some)[0]
                places[i, some] = order.gather(-1, self._lowest(self.queries[i, some], keys, order))
        slots.evict(places)

    def pooling(self) -> Pool | None:
        """Return how kernels compute :meth:`scored` from attention, or None if they do not."""
        return None

    def _scored_by_kernel(self, pool: Pool, step: Step, slots: SlotBank, sites: slice, rows: slice, lengths: Tensor | None) -> Tensor:
        """Return the scores of a portion, from keys as they are stored."""
        k, older = slots.keys(sites, rows), range(step.line * self.layout.line - self.alpha)
        return attended(self.queries[sites, rows], k, slots.visual[sites, rows, :, : k.size(3)], lengths, older, pool=pool)

    def _lowest(self, q: Tensor, k: Tensor, order: Tensor) -> Tensor:
        """Return ranks, in position order, of the evicted entries of a line; ties by age."""
        score = self.scored(q.float(), k.gather(2, order[..., None].expand(-1, -1, -1, k.size(-1))).float())
        return lowest(score, torch.arange(score.size(-1), dtype=torch.int16, device=score.device).expand_as(score), self.layout.line)
