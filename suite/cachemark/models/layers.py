"""Layers that several model families share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x · rsqrt(mean(x²) + eps) in fp32, cast back to the dtype of x, and only then multiplied by the weight."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """(…, dim) → (…, dim)."""
        if x.dtype == torch.float32:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return F.rms_norm(x, self.weight.shape, eps=self.eps) * self.weight  # computed in fp32 and rounded once


class SwiGLU(nn.Module):
    """w2(silu(w1·x) ⊙ w3·x), no biases."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(…, dim) → (…, dim)."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


def rotate_pairs(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate channel pairs (2p, 2p+1) of x (rows, tokens, heads, head_dim) by ``angles`` (tokens, head_dim/2) complex64.

    Computed in fp32 and cast back. A zero entry of ``angles`` maps the pair to zero; it is not the identity.
    """
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * angles[:, None]).flatten(-2).to(x.dtype)
