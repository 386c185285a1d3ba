"""Base of decoders with a window of drafts: its width, draft initialization, and noise by position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..cache import random_streams as streams
from ..cache.arena import Memory
from ..cache.kernels.fused import random_numbers
from ..cache.layout import Layout
from ..contract.decoder import Decoder
from ..core.errors import BadParameter

PROPOSALS = ("newest", "left", "above", "uniform")
WIDEST = 1024


@dataclass
class Windowed(Decoder):
    """Base of decoders whose passes generate up to ``window`` tokens each.

    ``proposals`` initializes drafts of positions that no pass has generated yet: a token from the ``newest`` distribution of the window,
    the token to the ``left``, the token ``above``, or a ``uniform`` one. With ``look_ahead`` the window continues after the end of a line
    even if the method evicts there; its tokens in the next line are drafts.
    """

    window: int = 16
    proposals: str = "newest"
    look_ahead: bool = False

    def check(self) -> None:
        if not 1 <= self.window <= WIDEST:
            raise BadParameter(f"{self.name}: window = {self.window} is out of range.", remedy=f"Use 1 … {WIDEST} tokens per pass.")
        self.check_choice("proposals", *PROPOSALS)

    @property
    def reach(self) -> int:
        return self.window

    @property
    def ahead(self) -> int:
        return self.reach - 1 if self.look_ahead else 0

    def begin(self, layout: Layout, seeds: Tensor, greedy: bool, memory: Memory) -> None:
        super().begin(layout, seeds, greedy, memory)
        self.noise: Tensor | None = None
        self.noised = self.drawn = 0  # positions that have noise, and positions that have tokens

    def propose(self, accepted: int, count: int, tokens: Tensor) -> None:
        start, stop = max(self.drawn, accepted), accepted + count - 1
        if start < stop:
            self.fill(start, stop, tokens)

    def fill(self, start: int, stop: int, tokens: Tensor) -> None:
        """Write drafts to the positions ``start`` … ``stop`` − 1."""
        if self.proposals == "newest":
            tokens[:, start:stop] = self.draw(self.newest, start, stop - start)
            return
        if self.proposals == "uniform":
            key = streams.keys(self.seeds[:, None], "draft", self.positions(start, stop), branch=1)
            tokens[:, start:stop] = streams.below(key, 1, self.newest.size(-1))[..., 0]
            return
        back = self.layout.line if self.proposals == "above" and start >= self.layout.line else 1
        for at in range(start, stop, back):
            end = min(at + back, stop)
            tokens[:, at:end] = tokens[:, at - back : end - back]

    def note_drawn(self, logits: Tensor, stop: int) -> None:
        """Record that a pass generated the positions before ``stop`` from ``logits`` (batch, count, vocab)."""
        self.newest, self.drawn = logits[:, -1:], max(self.drawn, stop)

    def draw(self, logits: Tensor, first: int, count: int) -> Tensor:
        """Draw tokens (batch, count) from ``first`` on, with the noise of each position.

        ``logits``: (batch, count or 1, vocab).
        """
        if self.greedy:
            return logits.argmax(-1).expand(-1, count)
        return (logits + self.position_noise(first, first + count, logits.size(-1))).argmax(-1)

    def positions(self, first: int, stop: int) -> Tensor:
        """Return the positions ``first`` … ``stop`` − 1 as a tensor."""
        return torch.arange(first, stop, device=self.seeds.device)

    def position_noise(self, first: int, stop: int, vocab: int) -> Tensor:
        """Return Gumbel noise (batch, positions, vocab) of ``first`` … ``stop`` − 1, from a ring buffer."""
        if self.noise is None:
            self.noise = self.memory.zeros("decoder.noise", (len(self.seeds), self.window, vocab), torch.float32)
        if stop > self.noised:
            positions = self.positions(self.noised, stop)
            self.noise[:, positions % self.window] = random_numbers(self.seeds[:, None], "token", positions, vocab, gumbel=True)
            self.noised = stop
        return self.noise[:, self.positions(first, stop) % self.window]
