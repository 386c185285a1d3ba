"""HeadKV for images: types of heads from the image itself, and eviction from two strata."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.attention import attention
from ..cache.bank import HIDDEN, SlotBank, chunks
from ..cache.layout import Layout, Site, Step
from ..contract.planning import MethodOverhead
from ..core.errors import BadBudget
from .base.evicting import Evicting, lowest
from .base.observing import Observing
from .registry import method

LOGITS, SOFTMAX = "logits", "softmax"
THRESHOLD = Fraction(100, 576)  # of an image, after which the paper finds the types of LlamaGen's and Janus-Pro's heads


@method("headkv")
@dataclass
class HeadKV(Observing):
    """Keeps the latest lines in *local* heads, the most-attended of two strata in *global* ones.

    Liang et al. (arXiv 2605.20600), §4. Once ``start`` visual tokens are stored, the token just fed finds the types: a head is local if its
    latest ``window`` lines, less a token, hold ``tau`` of the attention. From then on local heads read ``window`` lines and the condition.
    Global heads evict a line of entries at each line's end: half from the oldest ``share`` of the history, half from the rest of it, of
    each the entries that the latest ``alpha`` queries score lowest. ``grouped = False`` is this eviction in all heads.

    Differs from the paper, whose code was not available: types are found and entries evicted at the ends of lines; each row of guidance
    has its own types; of heads that share keys all must be local. Local heads have the storage of global ones and mask the part that they
    may not read, since no size may depend on an image: the 1 to 2 % of the cache that the paper saves in them are not saved here.
    """

    title = "HeadKV"
    source = "Liang et al. 2026 (arXiv 2605.20600), §4 and A.2; no code found"
    authors_code = "none"
    neutral = {"grouped": False}
    unstated = {
        "window": "two lines: the paper says typically of the recent window, and calls the window that defines local heads predefined",
        "score": "Eq. 6 as printed, without the softmax of Eq. 1; both are offered",
        "alpha": "ours: a line; the paper's P has no number",
        "start": "100 of 576 tokens, as in the paper for LlamaGen and Janus-Pro; elsewhere that share of an image, at least a line more "
                 "than the window, and at most B",
        "grouped": "each row of guidance by itself, and only where all heads that share keys are local: the paper states neither",
    }
    footnotes = ("headkv is our reading of a paper without code; it stores as much in local heads as in global ones.",)

    alpha: int = 0
    window: int = 2
    tau: float = 0.9
    share: float = 0.5
    score: str = LOGITS
    start: int = 0
    grouped: bool = True

    # -- planning -----------------------------------------------------------------------------------------------------
    @classmethod
    def parameters_for(cls, budget: Fraction, layout: Layout) -> dict[str, Any]:
        parameters = super().parameters_for(budget, layout)
        return {**parameters, "window": max(1, min(2, parameters["B"] // layout.line - 1))}

    def resolve(self, layout: Layout) -> None:
        n = layout.line
        self.alpha = self.alpha or n
        super().resolve(layout)
        self.check_choice("score", LOGITS, SOFTMAX)
        self.check_range("tau", 0 < self.tau <= 1, "Use a number above 0, at most 1.")
        self.check_range("share", 0 <= self.share <= 1, "Use a number from 0 to 1.")
        most = self.B // n - 1
        if not 1 <= self.window <= most:
            raise BadBudget(f"headkv: window = {self.window} does not fit B = {self.B}: a line of {n} must remain to evict.",
                            remedy=f"Use a window of 1 … {most} lines.")
        self.start = self.start or min(self.B, max((self.window + 1) * n, int(THRESHOLD * layout.visual)))
        self.check_range("start", 1 <= self.start <= self.B, f"Use 1 … {self.B} visual tokens: types are found before B entries are full.")

    def overhead(self, layout: Layout, site: Site, step: Step) -> MethodOverhead:
        """Count storing queries, finding types, and at a line's end scores of the history and moves."""
        moved, across = Evicting.overhead(self, layout, site, step).numbers, layout.heads * layout.head_dim
        tokens, query = step.first + step.staying, across if step.count else 0
        ends = step.count and "line" in step.edges and step.line < layout.lines
        types = across * (layout.longest_condition + tokens) if ends and self.grouped and 0 <= tokens - self.start < layout.line else 0
        if not moved:
            return MethodOverhead(types, query)
        older, width = self.B - self.window * layout.line, layout.kv_heads * layout.head_dim
        queries = self.alpha * across if self.score == SOFTMAX else width
        return MethodOverhead(types + queries * older, query + moved + self.alpha * across + self.B * width)

    # -- one generation -----------------------------------------------------------------------------------------------
    def prepare(self, slots: SlotBank, memory: Memory) -> None:
        """Allocate the ring of queries, and which heads are local: (sites, rows, kv_heads, 1)."""
        super().prepare(slots, memory)
        shape = (len(slots.sites), slots.layout.rows, slots.layout.kv_heads, 1)
        self.local = memory.zeros(f"local.{slots.sites[0]}", shape, torch.bool)

    def hides(self, step: Step) -> bool:
        """Return whether heads have types when this pass runs."""
        return self.grouped and step.first >= -(-self.start // self.layout.line) * self.layout.line

    def graph_key(self, step: Step) -> Hashable:
        """Return the position in the ring of queries, and whether entries are masked."""
        return super().graph_key(step), self.hides(step)

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend as any method until heads have types, then without the hidden entries of local heads."""
        if not self.hides(step):
            return super().attend(site, step, q, k, v)
        slot = self.slots[site]
        earlier = torch.cat([slot.visual[run.rows, :, None, run.condition : n] >= 0 for run, n in zip(slot.runs, slot.live, strict=True)])
        own = torch.ones(step.count, step.count, dtype=torch.bool, device=q.device).tril() if step.visible is None else step.visible
        visible = torch.cat((earlier.expand(-1, -1, step.count, -1), own.expand(*earlier.shape[:2], -1, -1)), -1)
        slot.append(k, v)
        out, _ = attention(q, slot, visible=visible, buffer=self.workspace)
        self.observe(site, step, slot, q, None)
        return out

    def evict(self, step: Step, slots: SlotBank) -> None:
        tokens, n = step.line * self.layout.line, self.layout.line
        if tokens < self.start or step.line == self.layout.lines:
            return
        recent, visual = tokens - self.window * n, slots.table()
        if self.grouped:
            if tokens - n < self.start:
                self._find_types(tokens, slots)
            hidden = self.local & (visual >= 0) & (visual < recent)
            slots.visual[..., : visual.size(-1)].masked_fill_(hidden, HIDDEN)
            visual = visual.masked_fill(hidden, HIDDEN)
        if slots.live_visual < self.B:
            return
        sites, rows, heads, _ = visual.shape
        places = torch.empty(sites, rows, heads, n, dtype=torch.int64, device=visual.device)
        older, youngest = self.B - self.window * n, torch.iinfo(visual.dtype).max
        each = heads * self.B * (12 * self.alpha * self.layout.heads // heads + 8 * self.layout.head_dim)
        for i in range(sites):
            for _, some in chunks(1, rows, each):
                age = visual[i, some].masked_fill((visual[i, some] == -1) | (visual[i, some] >= recent), youngest)
                order = age.argsort(dim=-1, stable=True)[..., :older]  # the history by position, after hidden entries
                k = slots.keys(slice(i, i + 1), some)[0]
                k = k.gather(2, order[..., None].expand(-1, -1, -1, k.size(-1)))
                ranks = stratified(self.queries[i, some].float(), k.float(), self.share, n, softmax=self.score == SOFTMAX)
                ranks = torch.where(self.local[i, some], torch.arange(n, device=ranks.device), ranks)
                places[i, some] = order.gather(-1, ranks)
        slots.evict(places)

    def _find_types(self, tokens: int, slots: SlotBank) -> None:
        """Decide which heads are local, by the query of the last of ``tokens`` visual tokens."""
        visual, longest = slots.table(), max(slots.live)
        place = torch.arange(longest, device=visual.device)
        live = (place < slots.length[:, None])[:, None]
        near = visual > tokens - self.window * self.layout.line
        for i in range(len(slots.sites)):
            for _, some in chunks(1, self.layout.rows, self.layout.kv_heads * longest * (8 * self.layout.head_dim + 16)):
                q, k = self.queries[i, some, :, (tokens - 1) % self.alpha].float(), slots.keys(slice(i, i + 1), some)[0].float()
                self.local[i, some] = local_heads(q, k, live[some], near[i, some], self.tau)[..., None]


def local_heads(q: Tensor, k: Tensor, live: Tensor, near: Tensor, tau: float) -> Tensor:
    """Return which K/V heads give ``tau`` of their attention to ``near`` keys, (rows, kv_heads) bool.

    ``q`` (rows, heads, head_dim), of one token; ``k`` (rows, kv_heads, m, head_dim); ``live`` and ``near`` broadcast to (rows, kv_heads,
    m), the keys that exist and those that count. Of heads that share a key all must. With the latest window − 1 keys as ``near`` this is
    the paper's rule that fewer keys than the window hold ``tau``, counted from the newest.
    """
    scores = (q.unflatten(1, (k.size(1), -1)) @ k.mT * q.size(-1) ** -0.5).masked_fill(~live[:, :, None], float("-inf"))
    return ((scores.softmax(-1) * near[:, :, None]).sum(-1) >= tau).all(-1)


def stratified(q: Tensor, k: Tensor, share: float, count: int, *, softmax: bool) -> Tensor:
    """Return the ranks of the entries that leave a history, (rows, kv_heads, count).

    ``q`` (rows, heads, queries, head_dim); ``k`` (rows, kv_heads, m, head_dim) by position. The oldest ⌊m · share⌋ are one stratum and
    the rest another; of each, half of ``count`` leave, the odd one and what the other lacks included: those with the lowest mean of
    q·k/√d, or of its ``softmax`` within the stratum. Ties by age.
    """
    m, far = k.size(2), int(k.size(2) * share)
    of_far = min(far, max(count - count // 2, count - (m - far)))
    grouped, ranks = q.unflatten(1, (k.size(1), -1)).flatten(2, 3), list[Tensor]()
    if not softmax:
        grouped = grouped.mean(2, keepdim=True)
    for part, few in ((slice(far), of_far), (slice(far, m), count - of_far)):
        if few:
            scores = grouped @ k[:, :, part].mT * q.size(-1) ** -0.5
            score = (scores.softmax(-1) if softmax else scores).mean(2)
            age = torch.arange(score.size(-1), dtype=torch.int16, device=k.device).expand_as(score)
            ranks.append(lowest(score, age, few) + (part.start or 0))
    return torch.cat(ranks, -1)
