"""Jacobi decoding: fixed-point iteration under fixed noise, with the tokens of sequential decoding."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core.spec import TOKENS
from .registry import decoder
from .windowed import Windowed


@decoder("jacobi")
@dataclass
class Jacobi(Windowed):
    """Redraws a window of drafts until they stay: the tokens of sequential decoding, in fewer passes.

    Wiggers and Hoogeboom, "Predictive Sampling with Forecasting Autoregressive Models" (ICML 2020), ARM fixed-point iteration. The token
    of a position is argmax(logits + noise); the noise depends on the sample and the position alone, so the sequential tokens are the only
    fixed point. The first token of a pass is correct, and each further one if all drafts before it were. Tokens generated after the
    accepted ones are the next drafts; ``proposals`` initializes the others. All images of a batch advance by the shortest acceptance.
    """

    title = "Jacobi"
    keeps = TOKENS
    source = "ARM fixed-point iteration, arXiv 2002.09928"

    def judge(self, accepted: int, logits: Tensor, tokens: Tensor) -> int:
        count = logits.size(1)
        fresh = self.draw(logits, accepted, count)
        stop = accepted + count
        right = tokens[:, accepted : stop - 1] == fresh[:, :-1]
        correct = 1 + int(right.cumprod(1).sum(1).min()) if count > 1 else 1
        tokens[:, accepted:stop] = fresh
        self.note_drawn(logits, stop)
        return correct
