"""S of AMS-KV: the similarity of the keys of two successive scales."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def inter_scale(k: Tensor, before: Tensor) -> Tensor:
    """S of AMS-KV's Eq. 3: minus the mean, over rows, heads, tokens and channels, of (k − k̂)², a scalar fp32 tensor.

    ``k`` (rows, heads, side², head_dim): keys of a scale as the cache holds them, after a normalisation where the model has one.
    ``before``: those of the scale before it, **all** of them, here resized bilinearly to the side of ``k`` (corners not aligned).
    0 is equal, smaller is less alike. The paper gives thresholds near −0.01 and no normalisation; this reading fits them.
    """
    with torch.autocast(k.device.type, enabled=False):
        resized = F.interpolate(_maps(before), size=(math.isqrt(k.size(2)),) * 2, mode="bilinear", align_corners=False)
        return -(_maps(k) - resized).square().mean()


def _maps(k: Tensor) -> Tensor:
    """(rows, heads, side², head_dim) to (rows·heads, head_dim, side, side) fp32."""
    return k.flatten(0, 1).transpose(1, 2).unflatten(2, (math.isqrt(k.size(2)), -1)).float()
