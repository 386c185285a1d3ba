"""Base of decoders that accept drafts at random, given the distributions that these were drawn from."""

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
    """A tested window of drafts.

    ``first``: position of the first draft. ``logits`` (batch, count, vocab): output of the pass. ``p``: the distributions given by the
    logits; ``q``: the distributions that the ``drafts`` (batch, count) were drawn from, 0 at the last position, which has no draft.
    ``right``: which drafts are accepted, regardless of the previous ones. ``coupled``: the accepted drafts, and
    tokens drawn from max(p − q, 0) in place of the others, so that each has the distribution p. ``accepts`` (batch,): length of the
    accepted prefix.
    """

    first: int
    logits: Tensor
    p: Tensor
    q: Tensor
    drafts: Tensor
    right: Tensor
    coupled: Tensor
    accepts: Tensor


@dataclass
class Speculative(Windowed):
    """Accepts each draft with probability min(1, p/q), for its current distribution p and earlier one q.

    The leftmost rejected draft is redrawn from max(p − q, 0) and is the last token that the pass keeps. ``proposals`` initializes
    positions that no pass has drawn yet; except with ``newest``, these drafts count as certain (q = 1).

    ``branches`` is 1: one draft per position. Cases have it in their keys from when there were trees of drafts.
    """

    keeps = DISTRIBUTION
    footnotes = (ANOTHER,)

    proposals: str = "uniform"
    branches: int = 1

    def check(self) -> None:
        super().check()
        self.check_range("branches", self.branches == 1, "Use 1, or leave it out: there are no trees of drafts any more.")

    def begin(self, layout: Layout, seeds: Tensor, greedy: bool, memory: Memory) -> None:
        super().begin(layout, seeds, greedy, memory)
        self.draft_probabilities: Tensor | None = None
        self.draws = 0
        self.final = torch.zeros_like(seeds)  # accepted tokens of each image

    def judge(self, accepted: int, logits: Tensor, tokens: Tensor) -> int:
        stop = accepted + logits.size(1)
        positions = self.positions(accepted, stop)
        tested = self._tested(accepted, logits, tokens[:, accepted:stop])
        self.final = torch.maximum(self.final, accepted + (tested.accepts + 1).clamp_max(self.most))
        tokens[:, accepted:stop] = torch.where(positions < self.final[:, None], tested.coupled, self.next_drafts(tested))
        self._ring(logits.size(-1))[:, positions % self.window] = self.remembered(tested)
        self.note_drawn(tested.logits, stop)
        return 1 + int(tested.accepts.min())

    def passes(self, coins: Tensor, p: Tensor, q: Tensor, drafts: Tensor) -> Tensor:
        """Return which drafts (batch, count) pass the test with these ``coins``, uniform numbers in (0, 1)."""
        now, then = (probabilities.gather(-1, drafts[..., None])[..., 0] for probabilities in (p, q))
        return coins * then < now

    def next_drafts(self, tested: DraftWindow) -> Tensor:
        """Return the drafts (batch, count) of the next pass."""
        return self.draw(tested.logits, tested.first, tested.logits.size(1))

    def remembered(self, tested: DraftWindow) -> Tensor:
        """Return the current distribution of each draft, (batch, count, vocab).

        Accepted drafts have p too, since they were tested against q.
        """
        return tested.p

    def draw(self, logits: Tensor, first: int, count: int) -> Tensor:
        """Draw tokens like :meth:`Windowed.draw`, with new noise in each call."""
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
    def _tested(self, accepted: int, logits: Tensor, drafts: Tensor) -> DraftWindow:
        positions = self.positions(accepted, accepted + drafts.size(1))
        p, q = self._probabilities(logits), self._drawn_from(positions, logits.size(-1))
        right = self._accepted(positions, p, q, drafts)
        coupled = torch.where(right, drafts, self._redrawn(positions, p, q))
        return DraftWindow(accepted, logits, p, q, drafts, right, coupled, right[:, :-1].cumprod(1).sum(1))

    def _accepted(self, positions: Tensor, p: Tensor, q: Tensor, drafts: Tensor) -> Tensor:
        """Return which drafts (batch, count) are accepted, now or before. The last position has no draft."""
        coin = streams.uniform(streams.keys(self.seeds[:, None], "coin", positions, inner=len(self.kept)), 1)
        right = self.passes(coin[..., 0], p, q, drafts)
        right[:, -1] = False
        return right | (positions < self.final[:, None])

    def _redrawn(self, positions: Tensor, p: Tensor, q: Tensor) -> Tensor:
        """Draw tokens (batch, count) from max(p − q, 0).

        A position without a draft has q = 0, so its token is drawn from p.
        """
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
