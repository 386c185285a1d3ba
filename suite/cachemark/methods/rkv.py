"""R-KV: importance and redundancy, adapted to lines of an image."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache.arena import Memory
from ..cache.bank import SlotBank, chunks
from ..cache.layout import Layout, Site, Step
from ..cache.slot import Slot
from ..contract.planning import MethodOverhead
from ..core.errors import BadBudget, BadParameter
from .base.evicting import Evicting, lowest, ring
from .registry import method

SIMILAR = 0.5  # cosine above which two keys count as copies of each other
POOL = 7  # width of the max-pool over importance


@method("rkv")
@dataclass
class RKV(Evicting):
    """Evicts the entries of lowest λ·importance − (1 − λ)·redundancy, a line of them at each line's end.

    Cai et al., "R-KV: Redundancy-aware KV Cache Compression for Reasoning Models" (2025), §3. Adapted: the buffer is one line, the last
    ``alpha`` entries always stay, and importance and redundancy are taken over visual keys. Differs from the authors' code: their λ
    (``mix_lambda``) defaults to 0.07; for a row without a similar key theirs still clears the first column, here nothing is cleared.
    """

    source = "Cai et al. 2025, §3"
    evict_after = "line"

    alpha: int = 8
    mix_lambda: float = 0.1

    def resolve(self, layout: Layout) -> None:
        super().resolve(layout)
        if not 0 <= self.mix_lambda <= 1 or self.alpha < 1:
            raise BadParameter(f"rkv: mix_lambda = {self.mix_lambda} with alpha = {self.alpha} cannot be used.",
                               remedy="mix_lambda is λ, in [0, 1]; alpha is at least 1.")
        if self.B % layout.line or self.B - self.alpha < layout.line:
            raise BadBudget(f"rkv: B = {self.B} with alpha = {self.alpha} does not fit lines of {layout.line}.",
                            remedy=f"B must be a multiple of {layout.line} and at least {layout.line} + alpha.")

    def prepare(self, slots: SlotBank, memory: Memory) -> None:
        self.queries = ring(memory, slots, self.alpha)

    def observe(self, site: Site, step: Step, slot: Slot, q: Tensor, mass: Tensor | None) -> None:
        if step.count == 1:
            self.queries[slot.index, :, :, step.first % self.alpha] = q[:, :, 0]
        elif step.count:  # a rejected draft's query stands where that of the token in its place comes, before the line ends
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
        return MethodOverhead(queries * (self.B - self.alpha) + keys * self.B, query + moved + queries + keys)

    def evict(self, step: Step, slots: SlotBank) -> None:
        if slots.live_visual < self.B or step.line == self.layout.lines:
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

    def _lowest(self, q: Tensor, k: Tensor, order: Tensor) -> Tensor:
        """Return ranks, in position order, of the evicted entries of a line; ties by age."""
        k = k.gather(2, order[..., None].expand(-1, -1, -1, k.size(-1))).float()
        older = k.size(2) - self.alpha
        score = self.mix_lambda * importance(q.float(), k[:, :, :older]) - (1 - self.mix_lambda) * redundancy(k)[..., :older]
        return lowest(score, torch.arange(older, dtype=torch.int16, device=score.device).expand_as(score), self.layout.line)


def importance(q: Tensor, k: Tensor) -> Tensor:
    """Return the attention of the latest queries to each key, (rows, kv_heads, m).

    ``q`` (rows, heads, α, d), ``k`` (rows, kv_heads, m, d). Logits are max-pooled over the heads that share a key; then softmax over these
    keys, mean over queries, and max-pooling along positions.
    """
    grouped = q.unflatten(1, (k.size(1), -1))
    logits = (grouped @ k.mT[:, :, None] * q.size(-1) ** -0.5).amax(2)
    return F.max_pool1d(logits.softmax(-1).mean(2), POOL, 1, POOL // 2)


def redundancy(k: Tensor) -> Tensor:
    """Return the redundancy of each key as a softmax, (rows, kv_heads, m).

    ``k`` (rows, kv_heads, m, d) in position order. In each row of the cosine matrix the newest similar key is spared.
    """
    unit = F.normalize(k, dim=-1)
    cosine = unit @ unit.mT
    cosine.diagonal(dim1=-2, dim2=-1).zero_()
    rank = torch.arange(1, k.size(2) + 1, device=k.device, dtype=torch.int16)  # a matrix of these is what takes the time
    newest = ((cosine > SIMILAR) * rank).amax(-1, keepdim=True)
    return cosine.masked_fill_(newest == rank, 0).mean(-2).softmax(-1)
