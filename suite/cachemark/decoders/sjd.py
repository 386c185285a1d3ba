"""Speculative Jacobi decoding: drafts are accepted by a coin against the law that they were drawn from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache import random_streams as streams
from ..cache.arena import Memory
from ..cache.layout import Layout
from ..core.spec import LAW
from .base.windowed import Windowed
from .registry import decoder

ANOTHER = "Its tokens follow the law of sequential decoding and are others: images are compared by their quality, not seed by seed."


@decoder("sjd")
@dataclass
class SJD(Windowed):
    """Accepts each draft with probability min(1, p/q), p its law now and q the one it was drawn from: the same law, other images.

    "Accelerating Auto-regressive Text-to-Image Generation with Training-free Speculative Jacobi Decoding" (ICLR 2025, arXiv 2410.01699).
    From the left, the first draft that fails is drawn anew from max(p − q, 0) and ends what the pass keeps; the places
    behind it are drawn anew from p, independently of what stood there. ``proposals`` stand where no pass has drawn yet; all but
    ``newest`` are taken as certain, q = 1, as in the authors' code.

    Differs from the authors' code, which serves one image: images of a batch advance by the shortest, and tokens that a longer one has
    accepted stay accepted. (Their code tests these again against the old q, which changes the law.) The window reaches from the first token
    to the last; theirs starts and ends a few tokens inside the image.
    """

    keeps = LAW
    source = "Speculative Jacobi decoding, arXiv 2410.01699"
    footnotes = (ANOTHER,)

    proposals: str = "uniform"

    def begin(self, layout: Layout, seeds: Tensor, greedy: bool, memory: Memory) -> None:
        super().begin(layout, seeds, greedy, memory)
        self.laws: Tensor | None = None
        self.draws = 0
        self.final = torch.zeros_like(seeds)  # places of each image that are decided

    def judge(self, accepted: int, laws: Tensor, tokens: Tensor) -> int:
        behind = accepted + laws.size(1)
        places, drafts = self.places(accepted, behind), tokens[:, accepted:behind]
        p, q = self._probabilities(laws), self._drawn_from(places, laws.size(-1))
        right = self._accepted(places, p, q, drafts)
        accepts = right[:, :-1].cumprod(1).sum(1)
        self.final = torch.maximum(self.final, accepted + (accepts + 1).clamp_max(self.most))
        coupled = torch.where(right, drafts, self._residual(places, p, q))
        tokens[:, accepted:behind] = torch.where(places < self.final[:, None], coupled, self.next_drafts(laws, coupled, accepted))
        self._laws(laws.size(-1))[:, places % self.window] = self.remembered(p, q, right)
        self.note_drawn(laws, behind)
        return 1 + int(accepts.min())

    def next_drafts(self, laws: Tensor, coupled: Tensor, first: int) -> Tensor:
        """Drafts (batch, count) for the next pass at the places from ``first`` on, from their ``laws``; ``coupled`` are those of which each
        is the draft before it as often as both laws allow."""
        return self.draw(laws, first, laws.size(1))

    def remembered(self, p: Tensor, q: Tensor, right: Tensor) -> Tensor:
        """The law that the draft of each place has now, (batch, count, vocab): of one that was kept too it is ``p``, since it was kept by
        a test against ``q``."""
        return p

    def draw(self, laws: Tensor, first: int, count: int) -> Tensor:
        """Tokens as :meth:`Windowed.draw` gives them, with noise that no other call has."""
        if self.greedy:
            return super().draw(laws, first, count)
        self.draws += 1
        key = streams.keys(self.seeds[:, None], "draft", self.places(first, first + count), inner=self.draws)
        return (laws + streams.gumbel(key, laws.size(-1))).argmax(-1)

    def fill(self, start: int, stop: int, tokens: Tensor) -> None:
        super().fill(start, stop, tokens)
        certain = F.one_hot(tokens[:, start:stop], self.newest.size(-1)).float()
        laws = self._probabilities(self.newest) if self.proposals == "newest" else certain
        self._laws(laws.size(-1))[:, self.places(start, stop) % self.window] = laws.expand_as(certain)

    # -- the test -----------------------------------------------------------------------------------------------------
    def _accepted(self, places: Tensor, p: Tensor, q: Tensor, drafts: Tensor) -> Tensor:
        """Drafts that a coin of their own keeps, (batch, count), and those that are decided. At the last place stands no draft."""
        coin = streams.uniform(streams.keys(self.seeds[:, None], "coin", places, inner=len(self.kept)), 1)
        now, then = (law.gather(-1, drafts[..., None]) for law in (p, q))
        right = (coin * then < now)[..., 0]
        right[:, -1] = False
        return right | (places < self.final[:, None])

    def _residual(self, places: Tensor, p: Tensor, q: Tensor) -> Tensor:
        """Tokens (batch, count) drawn from what ``p`` has more of than ``q``, and from ``p`` where there is no draft."""
        more = (p - q).clamp_min(0)
        more = torch.where(more.sum(-1, keepdim=True) > 0, more, p)  # two laws that are equal up to rounding
        key = streams.keys(self.seeds[:, None], "residual", places, inner=len(self.kept))
        return (more.log() + streams.gumbel(key, p.size(-1))).argmax(-1)

    def _drawn_from(self, places: Tensor, vocab: int) -> Tensor:
        """The law of the draft at each place, (batch, count, vocab); at the last one, where none stands, nothing."""
        q = self._laws(vocab)[:, places % self.window]
        q[:, -1] = 0
        return q

    def _probabilities(self, laws: Tensor) -> Tensor:
        """Laws as probabilities; of greedy decoding, the most probable token."""
        return F.one_hot(laws.argmax(-1), laws.size(-1)).float() if self.greedy else laws.softmax(-1)

    def _laws(self, vocab: int) -> Tensor:
        """A ring over the window with the law of each draft, (batch, window, vocab)."""
        if self.laws is None:
            self.laws = self.memory.zeros("decoder.laws", (len(self.seeds), self.window, vocab), torch.float32)
        return self.laws
