"""Acceptance rules of GSD (token groups) and SJD++ (reused drafts).

p is a position's current distribution, and q the distribution that its draft was drawn from.
"""

from __future__ import annotations

import torch
from torch import Tensor


def group_of(scores: Tensor, p: Tensor, drafts: Tensor, size: int, gap: float) -> Tensor:
    """Return which tokens form the group of each draft, (…, vocab) bool.

    A group has the ``size`` tokens around the draft in the ranking by ``scores`` (…, vocab): half of them below it, then the draft and the
    next ones. Tokens whose p differs from the draft's by ``gap`` or more are excluded. A draft with fewer tokens below it is alone.
    """
    ranks, half = scores.argsort(dim=-1, stable=True).argsort(-1), size // 2
    own = ranks.gather(-1, drafts[..., None])
    near = (ranks >= own - half) & (ranks < own + half) & ((p - p.gather(-1, drafts[..., None])).abs() < gap)
    alone = torch.zeros_like(near).scatter_(-1, drafts[..., None], True)
    return torch.where(own >= half, near | alone, alone)


def group_accepted(coins: Tensor, p: Tensor, q: Tensor, group: Tensor) -> Tensor:
    """Return which drafts are accepted with probability min(1, Σp/Σq), both summed over the ``group``."""
    now, then = ((probabilities * group).sum(-1) for probabilities in (p, q))
    return coins * then < now


def reused(p: Tensor, q: Tensor, drafts: Tensor, ratio: float) -> Tensor:
    """Return which drafts have p/q > ``ratio``."""
    now, then = (probabilities.gather(-1, drafts[..., None])[..., 0] for probabilities in (p, q))
    return now > ratio * then


def reused_distribution(p: Tensor, q: Tensor, ratio: float) -> Tensor:
    """Return the distribution of a draft that is kept if :func:`reused`, and otherwise drawn from p."""
    staying = torch.where(p > ratio * q, q, 0)
    return staying + p * (1 - staying.sum(-1, keepdim=True)).clamp_min(0)
