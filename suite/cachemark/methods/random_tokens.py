"""Random tokens: LazyMAR's token cache without its choice."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..cache.masked_layout import MaskedStep
from .base.lazy_schedule import Scheduled
from .registry import method


@method("random_tokens")
@dataclass
class RandomTokens(Scheduled):
    """As many tokens as LazyMAR keeps, in the same passes and blocks, but random ones beside those of this pass and the one before.

    The reference that a clever choice has to beat, as in Table 3 of LazyMAR (arXiv 2503.12450); all rows and the encoder are
    computed in every pass. Drawn for each row from the sample's own stream, so a sample is treated alike in any batch.
    """

    source = "the random caching of LazyMAR (arXiv 2503.12450), Table 3"

    def scores(self, step: MaskedStep, v: Tensor) -> Tensor:
        return self.lots(step, len(v))
