"""Nearness of tokens to the full cache's at the same seeds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .base import ImageMetric, Shown

if TYPE_CHECKING:
    from torch import Tensor


class TokenAgreement(ImageMetric):
    """Share of positions with the full cache's token."""

    name = "token_agreement"
    title = "Token agreement"
    heading = "Agreement"
    unit = "share"
    kind = "fidelity"
    within = (0.0, 1.0)
    deterministic = True
    tokens = "indices"
    paired = True

    def measure(self, shown: Shown) -> Tensor:
        from .compute.fidelity import agreement

        return agreement(shown.tokens, shown.reference_tokens)


class TokenDivergence(ImageMetric):
    """KL(full || method) under the full cache's tokens, mean over positions."""

    name = "kl"
    title = "KL"
    heading = "KL"
    tip = "KL(full || method) in nat per token."
    unit = "nat/token"
    better = "lower"
    kind = "fidelity"
    within = (0.0, math.inf)
    deterministic = True
    tokens = "indices"
    forced = True
    price = 0.3  # the passes of the full cache's tokens through the method

    def measure(self, shown: Shown) -> Tensor:
        assert shown.forced is not None
        return shown.forced()


class TokenDistance(ImageMetric):
    """Root mean square difference to the full cache's continuous tokens at the same seed."""

    name = "token_distance"
    title = "Token distance"
    heading = "Distance"
    tip = "Root mean square difference of the tokens, which have unit variance."
    better = "lower"
    kind = "fidelity"
    within = (0.0, math.inf)
    deterministic = True
    tokens = "vectors"

    def measure(self, shown: Shown) -> Tensor:
        from .compute.fidelity import distance

        return distance(shown.tokens, shown.reference_tokens)


class ForcedDistance(ImageMetric):
    """The distance of tokens that are drawn along the full cache's own."""

    name = "forced_distance"
    title = "Forced distance"
    meaning = ("The same, each token drawn with the same noise from what the full cache's own tokens give: an upper bound of the "
               "2-Wasserstein distance of what is drawn from.")
    heading = "Forced"
    tip = "The same, each token drawn after the full model's own tokens."
    better = "lower"
    kind = "fidelity"
    within = (0.0, math.inf)
    deterministic = True
    tokens = "vectors"
    forced = True
    price = 0.3

    def measure(self, shown: Shown) -> Tensor:
        assert shown.forced is not None
        return shown.forced()
