"""Random tokens: LazyMAR's token cache with a random selection."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..cache.masked_layout import MaskedStep
from .base.lazy_schedule import Scheduled
from .registry import method


@method("random_tokens")
@dataclass
class RandomTokens(Scheduled):
    """Computes as many tokens as LazyMAR in the same passes and blocks, selected at random.

    The control of LazyMAR (arXiv 2503.12450), Table 3. Tokens of this pass and the previous one are always computed, all rows and the
    encoder in every pass. Each row has its sample's own random stream, so a sample is the same in any batch.
    """

    title = "random tokens"
    source = "the random caching of LazyMAR (arXiv 2503.12450), Table 3"

    def scores(self, step: MaskedStep, v: Tensor) -> Tensor:
        return self.lots(step, len(v))
