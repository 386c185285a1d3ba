"""LineAR: a few lines of cache, evicted line by line under the guidance of the line just written."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.bank import SlotBank, chunks
from ..cache.kernels.selection import attended
from ..cache.layout import Layout, Site, Step
from ..cache.slot import Slot
from ..contract.planning import MethodOverhead
from ..core.errors import BadBudget, BadParameter
from .base.evicting import Evicting, lowest, ring, table
from .registry import method

MEMBER, PINNED, EXCLUDED = "member", "pinned", "excluded"  # treatments of end-of-line tokens, in models that have them


@method("linear")
@dataclass
class Linear(Evicting):
    """Evicts the least-attended middle entries, as many as a line has, after each line.

    Qin et al., "Autoregressive Image Generation Needs Only a Few Lines of Cached Tokens", §3.3, Eq. 5–10; no code is published. Eviction
    starts once ``B`` visual entries are live. The first ``anchor`` visual tokens and the last ``recent_lines`` lines stay; the paper states
    neither number. ``score = "accumulated"`` is its ablation (Table 6): the attention mass since the key entered instead of the inter-line
    score.

    For models whose lines end in an end-of-line token (Lumina-mGPT) that token is a ``member`` of its line: the paper's budgets there, 8·49
    and 6·49 for lines of 48 codes, count it. ``line_end = "pinned"`` never evicts such tokens, as attention sinks; ``"excluded"`` evicts
    them first and leaves their queries out of the guidance.
    """

    title = "LineAR"
    source = "LineAR §3.3, Eq. 5–10"
    authors_code = "none"
    unstated = {
        "anchor": "ours (docs/adr/0003-linear-defaults.md): the paper gives the size of its anchor a name and no number",
        "recent_lines": "ours (docs/adr/0003-linear-defaults.md): the paper gives the number of recent lines a name and no value",
    }
    evict_after = "line"
    footnotes = (
        "The paper states neither anchor nor recent_lines; the defaults are ours (docs/adr/0003-linear-defaults.md).",
    )

    anchor: int = 0
    recent_lines: int = 1
    score: str = "inter-line"
    line_end: str = MEMBER

    @classmethod
    def parameters_for(cls, budget: Fraction, layout: Layout) -> dict[str, Any]:
        parameters = super().parameters_for(budget, layout)
        spare = parameters["B"] - 3 * layout.line  # in addition to a recent line, and two lines that lose one
        return {**parameters, "anchor": min(layout.line, max(0, spare)), "recent_lines": 1}

    @property
    def needs_mass(self) -> bool:
        return self.score == "accumulated"

    def resolve(self, layout: Layout) -> None:
        super().resolve(layout)
        n = layout.line
        self.check_choice("score", "inter-line", "accumulated")
        self.check_choice("line_end", MEMBER, PINNED, EXCLUDED)
        if self.line_end != MEMBER and not layout.line_ends:
            raise BadParameter(f"linear: line_end = {self.line_end!r}: the lines of this model have no end-of-line token.",
                               remedy=f"Leave it out, or use {MEMBER!r}.")
        if self.B % n or self.recent_lines < 1 or self.anchor < 0:
            raise BadBudget(f"linear: B = {self.B}, recent_lines = {self.recent_lines}, anchor = {self.anchor} do not fit lines of {n}.",
                            remedy=f"B must be a multiple of {n}, recent_lines at least 1, anchor at least 0.")
        pinned = layout.lines if self.line_end == PINNED else 0
        if self.B - self.anchor - self.recent_lines * n - pinned < n:
            fixed = f"anchor = {self.anchor} and {self.recent_lines} recent lines" + (f" and {pinned} ends of lines" if pinned else "")
            raise BadBudget(f"linear: B = {self.B} leaves no line to evict besides {fixed}.",
                            remedy=f"B − anchor − recent_lines·{n}{f' − {pinned}' if pinned else ''} must be at least {n}.")

    def prepare(self, slots: SlotBank, memory: Memory) -> None:
        if self.needs_mass:
            self.mass = table(memory, slots, "mass")
        else:
            self.guide = ring(memory, slots, self.layout.line)

    def observe(self, site: Site, step: Step, slot: Slot, q: Tensor, mass: Tensor | None) -> None:
        if mass is not None:
            self.mass[slot.index, ..., : mass.size(-1)] += mass
        elif step.count:  # the accepted token's query overwrites a rejected draft's
            column = step.first % self.layout.line
            self.guide[slot.index, :, :, column : column + step.staying] = q[:, :, : step.staying]

    def horizon(self, first: int) -> int:
        """Return the rest of the line, at whose end entries are evicted; 1 for the accumulated mass."""
        return 1 if self.needs_mass else self.layout.line - first % self.layout.line

    def beyond(self, first: int) -> int:
        """Return all remaining tokens: the ring of queries ends with the line."""
        return 0 if self.needs_mass else self.layout.visual - first

    def graph_key(self, step: Step) -> Hashable:
        """Return the position in the ring of queries."""
        return None if self.needs_mass else step.first % self.layout.line

    def overhead(self, layout: Layout, site: Site, step: Step) -> MethodOverhead:
        """Count storing the guide queries of a line and, at its end, scoring all live keys and moving entries."""
        moved = super().overhead(layout, site, step).numbers
        attended = self.attended(layout, site, step)
        if self.needs_mass:
            return MethodOverhead(0, moved + 2 * layout.kv_heads * attended)
        query = layout.heads * layout.head_dim * step.staying
        if not moved:
            return MethodOverhead(0, query)
        guides = layout.line * layout.heads * layout.head_dim
        return MethodOverhead(guides * attended, query + moved + guides + layout.kv_heads * layout.head_dim * attended)

    def evict(self, step: Step, slots: SlotBank) -> None:
        if slots.live_visual < self.B or step.line == self.layout.lines:
            return
        n = self.layout.line
        if slots.selects and not self.needs_mass:
            slots.evict_lowest(n, partial(self._attended_by_kernel, step, slots))
            return
        visual = slots.table()
        sites, rows, heads, live = visual.shape
        places = torch.empty(sites, rows, heads, n, dtype=torch.int64, device=visual.device)
        for some, rows_at_once in chunks(sites, rows, heads * live * self._bytes()):
            is_visual = visual[some, rows_at_once]
            middle = (is_visual >= self.anchor) & (is_visual < (step.line - self.recent_lines) * n)
            ends = is_visual % n == n - 1
            scored = middle if self.line_end == MEMBER else middle & ~ends
            score = self.mass[some, rows_at_once, :, :live] if self.needs_mass else self._attended(slots, some, rows_at_once, scored)
            if self.line_end == EXCLUDED:
                score = score.masked_fill(middle & ends, float("-inf"))
                scored = middle
            places[some, rows_at_once] = lowest(score.masked_fill(~scored, float("inf")), is_visual, n)
        slots.evict(places)

    def _attended_by_kernel(self, step: Step, slots: SlotBank, sites: slice, rows: slice, lengths: Tensor | None) -> Tensor:
        """Return the scores of :meth:`evict` of a portion."""
        n, k = self.layout.line, slots.keys(sites, rows)
        guide = self.guide[sites, rows, :, : n - (self.line_end == EXCLUDED)]
        middle = range(self.anchor, (step.line - self.recent_lines) * n)
        ends = (MEMBER, PINNED, EXCLUDED).index(self.line_end)
        return attended(guide, k, slots.visual[sites, rows, :, : k.size(3)], lengths, middle, line=n, ends=ends)

    def _bytes(self) -> int:
        """Return the temporary bytes for scoring one entry: fp32 key, logits of all queries, indices."""
        layout = self.layout
        return 4 * layout.head_dim + 12 * layout.line * layout.heads // layout.kv_heads + 64

    def _attended(self, slots: SlotBank, sites: slice, rows: slice, middle: Tensor) -> Tensor:
        """Return the mean over the line's queries of softmax over the middle keys (Eq. 9).

        (sites, rows, kv_heads, live). All queries of the heads that share a key have equal weight.
        """
        k, guides = slots.keys(sites, rows).float(), self.layout.line - (self.line_end == EXCLUDED)
        q = self.guide[sites, rows, :, :guides].flatten(2, 3).unflatten(2, (k.size(2), -1)).float()
        scores = (q @ k.mT * q.size(-1) ** -0.5).masked_fill(~middle[..., None, :], float("-inf"))
        return scores.softmax(-1).mean(-2)
