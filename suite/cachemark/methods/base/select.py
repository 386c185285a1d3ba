"""Choosing what goes: the lowest scores, the older entry first where scores are equal."""

from __future__ import annotations

import torch
from torch import Tensor


def lowest(score: Tensor, age: Tensor, count: int) -> Tensor:
    """Places of the ``count`` lowest scores along the last axis; of equal scores the one with the smaller ``age`` goes first.

    ``score`` (…, n) fp32 with +inf where an entry may not go; ``age`` (…, n) int16, the index among visual tokens. Several are found in
    one partial sort of integers that hold both.
    """
    if count == 1:
        tied = score == score.amin(-1, keepdim=True)
        oldest = torch.iinfo(age.dtype).max
        return age.masked_fill(~tied, oldest).argmin(-1, keepdim=True)
    bits = (score + 0.0).view(torch.int32).long()  # in the order of the numbers where they are not negative; −0 becomes 0
    bits ^= (bits >> 31) & 0x7FFFFFFF  # and of negative ones too
    return (bits * 2**16 + age.long()).topk(count, dim=-1, largest=False).indices
