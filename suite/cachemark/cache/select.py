"""Choosing what goes: the lowest scores, the older entry first where scores are equal."""

from __future__ import annotations

import torch
from torch import Tensor


def lowest(score: Tensor, age: Tensor, count: int) -> Tensor:
    """Places of the ``count`` lowest scores along the last axis; of equal scores the one with the smaller ``age`` goes first.

    ``score`` (…, n) fp32 with +inf where an entry may not go; ``age`` (…, n) integer, the index among visual tokens.
    """
    if count == 1:
        tied = score == score.amin(-1, keepdim=True)
        oldest = torch.iinfo(age.dtype).max
        return age.masked_fill(~tied, oldest).argmin(-1, keepdim=True)
    by_age = age.argsort(dim=-1, stable=True)
    by_score = score.gather(-1, by_age).argsort(dim=-1, stable=True)
    return by_age.gather(-1, by_score[..., :count])
