"""Difference of tokens to the full cache's at the same seeds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .base import FidelityMetric, ImageBatch

if TYPE_CHECKING:
    from torch import Tensor


class TokenAgreement(FidelityMetric):
    """Fraction of positions with the full cache's token, among positions that both sample."""

    name = "token_agreement"
    title = "Token agreement"
    heading = "Agreement"
    unit = "share"
    within = (0.0, 1.0)
    tokens = "indices"
    paired = True

    def measure(self, batch: ImageBatch) -> Tensor:
        drawn = (batch.tokens >= 0) & (batch.reference_tokens >= 0)  # −1: in a scale that was not generated
        same = drawn & (batch.tokens == batch.reference_tokens)
        return same.float().sum(1) / drawn.sum(1)


class ForcedMetric(FidelityMetric):
    """A divergence along the full cache's own tokens, which go through the method once more."""

    better = "lower"
    within = (0.0, math.inf)
    forced = True
    generations = 0.3

    def measure(self, batch: ImageBatch) -> Tensor:
        assert batch.forced is not None
        return batch.forced()


class TokenDivergence(ForcedMetric):
    """KL(full || method) under the full cache's tokens, mean over positions."""

    name = "kl"
    title = "KL"
    heading = "KL"
    tip = "KL(full || method) in nat per token."
    unit = "nat/token"
    tokens = "indices"


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return KL(p ‖ q) in nats of log-probabilities (…, vocab), (…); rounding may make it negative."""
    return (log_p.exp() * (log_p - log_q)).sum(-1)


class TokenDistance(FidelityMetric):
    """Root mean square difference to the full cache's continuous tokens at the same seed."""

    name = "token_distance"
    title = "Token distance"
    heading = "Distance"
    tip = "Root mean square difference of the tokens, which have unit variance."
    better = "lower"
    within = (0.0, math.inf)
    tokens = "vectors"

    def measure(self, batch: ImageBatch) -> Tensor:
        return (batch.tokens.double() - batch.reference_tokens.double()).square().flatten(1).mean(1).sqrt()


class ForcedDistance(ForcedMetric):
    """The distance of tokens that are sampled along the full cache's own."""

    name = "forced_distance"
    title = "Forced distance"
    meaning = ("The same, each token sampled with the same noise after the full cache's own tokens: an upper bound of the "
               "2-Wasserstein distance of the distributions.")
    heading = "Forced"
    tip = "The same, each token sampled after the full model's own tokens."
    tokens = "vectors"
