"""A window of drafts: how wide it is, what stands at a place that no pass has drawn yet, and noise that belongs to the place."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...cache import random_streams as streams
from ...cache.arena import Memory
from ...cache.layout import Layout
from ...contract.decoder import Decoder
from ...core.errors import BadKnob

PROPOSALS = ("newest", "left", "above", "uniform")
WIDEST = 1024


@dataclass
class Windowed(Decoder):
    """A decoder whose passes draw up to ``window`` tokens each.

    ``proposals`` says what stands where no pass has drawn yet: a token of the ``newest`` law of the window, the token to the ``left``, the
    one ``above``, or any token, ``uniform``. ``look_ahead``: where the method evicts at the end of a line, the window goes on behind it.
    Nothing of that stays; what it draws, before the eviction, are drafts of the next line.
    """

    later = ("look_ahead",)

    window: int = 16
    proposals: str = "newest"
    look_ahead: bool = False

    def check(self) -> None:
        if not 1 <= self.window <= WIDEST:
            raise BadKnob(f"{self.name}: window = {self.window} cannot be used.", remedy=f"Give 1 … {WIDEST} tokens that a pass draws.")
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
        self.noised = self.drawn = 0  # places that noise was drawn for, and tokens

    def propose(self, accepted: int, count: int, tokens: Tensor) -> None:
        start, stop = max(self.drawn, accepted), accepted + count - 1
        if start < stop:
            self.fill(start, stop, tokens)

    def fill(self, start: int, stop: int, tokens: Tensor) -> None:
        """Write drafts to the places ``start`` … ``stop`` − 1, which hold none."""
        if self.proposals == "newest":
            tokens[:, start:stop] = self.draw(self.newest, start, stop - start)
            return
        if self.proposals == "uniform":
            key = streams.keys(self.seeds[:, None], "draft", self.places(start, stop), branch=1)
            tokens[:, start:stop] = streams.below(key, 1, self.newest.size(-1))[..., 0]
            return
        back = self.layout.line if self.proposals == "above" and start >= self.layout.line else 1
        for at in range(start, stop, back):
            end = min(at + back, stop)
            tokens[:, at:end] = tokens[:, at - back : end - back]

    def note_drawn(self, laws: Tensor, behind: int) -> None:
        """Note that a pass has drawn the places before ``behind`` from ``laws`` (batch, count, vocab)."""
        self.newest, self.drawn = laws[:, -1:], max(self.drawn, behind)

    def draw(self, laws: Tensor, first: int, count: int) -> Tensor:
        """Tokens (batch, count) of the places from ``first`` on, each with the noise of its place; ``laws`` (batch, count or 1, vocab)."""
        if self.greedy:
            return laws.argmax(-1).expand(-1, count)
        return (laws + self.place_noise(first, first + count, laws.size(-1))).argmax(-1)

    def places(self, first: int, stop: int) -> Tensor:
        """Indices (stop − first,) of places."""
        return torch.arange(first, stop, device=self.seeds.device)

    def place_noise(self, first: int, stop: int, vocab: int) -> Tensor:
        """Noise of the places ``first`` … ``stop`` − 1, (batch, places, vocab): drawn when the window reaches a place, and kept in a ring
        until it has passed."""
        if self.noise is None:
            self.noise = self.memory.zeros("decoder.noise", (len(self.seeds), self.window, vocab), torch.float32)
        if stop > self.noised:
            places = self.places(self.noised, stop)
            self.noise[:, places % self.window] = streams.gumbel(streams.keys(self.seeds[:, None], "token", places), vocab)
            self.noised = stop
        return self.noise[:, self.places(first, stop) % self.window]
