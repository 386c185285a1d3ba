"""Base of decoders that accept drafts at random, each against the distribution that it was drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache import random_streams as streams
from ..cache.arena import Memory
from ..cache.layout import Layout
from ..core.spec import DISTRIBUTION
from .windowed import Windowed

ANOTHER = "Its tokens follow the distribution of sequential decoding but differ from them: compare the quality of images, not single seeds."


class DraftWindow(NamedTuple):
    """A window of drafts behind its test.

    ``first``: its first position. ``logits``, ``p`` and ``q``: (batch, count, vocab), what the pass has computed, its distributions, and
    those that the ``drafts`` (batch, count) were drawn from, 0 at the last position, which has none. ``right``: which drafts are accepted,
    ignoring those before them. ``coupled``: the drafts that are right, and else tokens drawn from max(p − q, 0).
    """

    first: int
    logits: Tensor
    p: Tensor
    q: Tensor
    drafts: Tensor
    right: Tensor
    coupled: Tensor


@dataclass
class Speculative(Windowed):
    """Accepts each draft with probability min(1, p/q): p is its distribution now, q its earlier one.

    From the left, the first rejected draft is redrawn from max(p − q, 0) and is the last token that the pass keeps. ``proposals``
    initializes positions that no pass has drawn; all but ``newest`` are taken as certain, q = 1.
    """

    keeps = DISTRIBUTION
    footnotes = (ANOTHER,)

    proposals: str = "uniform"

    def begin(self, layout: Layout, seeds: Tensor, greedy: bool, memory: Memory) -> None:
        super().begin(layout, seeds, greedy, memory)
        self.draft_probabilities: Tensor | None = None
        self.draws = 0
        self.final = torch.zeros_like(seeds)  # accepted tokens of each image

    def judge(self, accepted: int, logits: Tensor, tokens: Tensor) -> int:
        behind = accepted + logits.size(1)
        positions, drafts = self.positions(accepted, behind), tokens[:, accepted:behind]
        p, q = self._probabilities(logits), self._drawn_from(positions, logits.size(-1))
        right = self._accepted(positions, p, q, drafts)
        accepts = right[:, :-1].cumprod(1).sum(1)
        self.final = torch.maximum(self.final, accepted + (accepts + 1).clamp_max(self.most))
        tested = DraftWindow(accepted, logits, p, q, drafts, right, torch.where(right, drafts, self._residual(positions, p, q)))
        tokens[:, accepted:behind] = torch.where(positions < self.final[:, None], tested.coupled, self.next_drafts(tested))
        self._ring(logits.size(-1))[:, positions % self.window] = self.remembered(tested)
        self.note_drawn(logits, behind)
        return 1 + int(accepts.min())

    def passes(self, coins: Tensor, p: Tensor, q: Tensor, drafts: Tensor) -> Tensor:
        """Return which drafts (batch, count) pass the test with these ``coins``, uniform numbers in (0, 1)."""
        now, then = (probabilities.gather(-1, drafts[..., None])[..., 0] for probabilities in (p, q))
        return coins * then < now

    def next_drafts(self, tested: DraftWindow) -> Tensor:
        """Return the drafts (batch, count) of the next pass."""
        return self.draw(tested.logits, tested.first, tested.logits.size(1))

    def remembered(self, tested: DraftWindow) -> Tensor:
        """Return the distribution of each draft now, (batch, count, vocab).

        p also for accepted drafts, since they were tested against q.
        """
        return tested.p

    def draw(self, logits: Tensor, first: int, count: int) -> Tensor:
        """Draw tokens as :meth:`Windowed.draw` does, with new noise in each call."""
        if self.greedy:
            return super().draw(logits, first, count)
        self.draws += 1
        key = streams.keys(self.seeds[:, None], "draft", self.positions(first, first + count), inner=self.draws)
        return (logits + streams.gumbel(key, logits.size(-1))).argmax(-1)

    def fill(self, start: int, stop: int, tokens: Tensor) -> None:
        super().fill(start, stop, tokens)
        certain = F.one_hot(tokens[:, start:stop], self.newest.size(-1)).float()
        p = self._probabilities(self.newest) if self.proposals == "newest" else certain
        self._ring(p.size(-1))[:, self.positions(start, stop) % self.window] = p.expand_as(certain)

    # -- the test -----------------------------------------------------------------------------------------------------
    def _accepted(self, positions: Tensor, p: Tensor, q: Tensor, drafts: Tensor) -> Tensor:
        """Return which drafts (batch, count) are accepted, now or before. The last position has no draft."""
        coin = streams.uniform(streams.keys(self.seeds[:, None], "coin", positions, inner=len(self.kept)), 1)
        right = self.passes(coin[..., 0], p, q, drafts)
        right[:, -1] = False
        return right | (positions < self.final[:, None])

    def _residual(self, positions: Tensor, p: Tensor, q: Tensor) -> Tensor:
        """Draw tokens (batch, count) from max(p − q, 0), and from ``p`` where there is no draft."""
        more = (p - q).clamp_min(0)
        more = torch.where(more.sum(-1, keepdim=True) > 0, more, p)  # p and q may be equal up to rounding
        key = streams.keys(self.seeds[:, None], "residual", positions, inner=len(self.kept))
        return (more.log() + streams.gumbel(key, p.size(-1))).argmax(-1)

    def _drawn_from(self, positions: Tensor, vocab: int) -> Tensor:
        """Return the distribution of each draft, (batch, count, vocab); zeros at the last position."""
        q = self._ring(vocab)[:, positions % self.window]
        q[:, -1] = 0
        return q

    def _probabilities(self, logits: Tensor) -> Tensor:
        return F.one_hot(logits.argmax(-1), logits.size(-1)).float() if self.greedy else logits.softmax(-1)

    def _ring(self, vocab: int) -> Tensor:
        """Return the ring buffer with the distribution of each draft in the window, (batch, window, vocab)."""
        if self.draft_probabilities is None:
            self.draft_probabilities = self.memory.zeros("decoder.probabilities", (len(self.seeds), self.window, vocab), torch.float32)
        return self.draft_probabilities
