"""Fixed-point iteration on the tokens of a window, under noise that does not change: several tokens a pass, and the sequential ones."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core.spec import TOKENS
from .base.windowed import Windowed
from .registry import decoder


@decoder("jacobi")
@dataclass
class Jacobi(Windowed):
    """Redraws a window of drafts until they stay: the tokens of sequential decoding, in fewer passes.

    Wiggers and Hoogeboom, "Predictive Sampling with Forecasting Autoregressive Models" (ICML 2020), ARM fixed-point iteration. The token
    of a place is argmax(law + noise), and the noise belongs to the sample and the place. So the sequential tokens are the only ones of
    which each is drawn again from those before it. A pass redraws a window: its first token is right, and every further one as long as the
    drafts before it were. Drafts may be anything, they only decide how many passes it takes: what a pass has drawn behind the kept tokens
    are the next ones, and ``proposals`` says what stands where no pass has drawn yet. All images of a batch advance by the shortest.
    """

    keeps = TOKENS
    source = "ARM fixed-point iteration, arXiv 2002.09928"

    def judge(self, accepted: int, laws: Tensor, tokens: Tensor) -> int:
        count = laws.size(1)
        fresh = self.draw(laws, accepted, count)
        behind = accepted + count
        right = tokens[:, accepted : behind - 1] == fresh[:, :-1]
        correct = 1 + int(right.cumprod(1).sum(1).min()) if count > 1 else 1
        tokens[:, accepted:behind] = fresh
        self.note_drawn(laws, behind)
        return correct
