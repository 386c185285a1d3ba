"""R-KV: importance and redundancy, adapted to lines of an image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache.kernels.selection import Pool
from ..cache.layout import Layout
from ..core.errors import BadParameter
from .base.observing import Observing
from .registry import method

SIMILAR = 0.5  # cosine above which two keys count as copies of each other
POOL = 7  # width of the max-pool over importance


@method("rkv")
@dataclass
class RKV(Observing):
    """Evicts the entries of lowest λ·importance − (1 − λ)·redundancy, a line of them at each line's end.

    Cai et al., "R-KV: Redundancy-aware KV Cache Compression for Reasoning Models" (2025), §3. Adapted: the buffer is one line, the last
    ``alpha`` entries always stay, and importance and redundancy are taken over visual keys. Differs from the authors' code: their λ
    (``mix_lambda``) defaults to 0.07; for a row without a similar key theirs still clears the first column, here nothing is cleared.
    """

    title = "R-KV"
    source = "Cai et al. 2025, §3"
    authors_code = "yes: Zefan-Cai/R-KV"
    similarities = 1

    mix_lambda: float = 0.1

    def resolve(self, layout: Layout) -> None:
        if not 0 <= self.mix_lambda <= 1 or self.alpha < 1:
            raise BadParameter(f"rkv: mix_lambda = {self.mix_lambda} with alpha = {self.alpha} cannot be used.",
                               remedy="mix_lambda is λ, in [0, 1]; alpha is at least 1.")
        super().resolve(layout)

    def scored(self, q: Tensor, k: Tensor) -> Tensor:
        older = k.size(2) - self.alpha
        return self.mix_lambda * importance(q, k[:, :, :older]) - (1 - self.mix_lambda) * redundancy(k)[..., :older]

    def pooling(self) -> Pool | None:
        """Return the pooling; of heads that share keys the maximum of logits counts, which kernels do not compute."""
        return Pool(POOL, SIMILAR, self.mix_lambda) if self.layout.heads == self.layout.kv_heads else None


def importance(q: Tensor, k: Tensor) -> Tensor:
    """Return the attention of the latest queries to each key, (rows, kv_heads, m).

    ``q`` (rows, heads, α, d), ``k`` (rows, kv_heads, m, d). Logits are max-pooled over the heads that share a key; then softmax over these
    keys, mean over queries, and max-pooling along positions.
    """
    grouped = q.unflatten(1, (k.size(1), -1))
    logits = (grouped @ k.mT[:, :, None] * q.size(-1) ** -0.5).amax(2)
    return F.max_pool1d(logits.softmax(-1).mean(2), POOL, 1, POOL // 2)


def redundancy(k: Tensor) -> Tensor:
    """Return the redundancy of each key as a softmax, (rows, kv_heads, m).

    ``k`` (rows, kv_heads, m, d) in position order. In each row of the cosine matrix the newest similar key is spared.
    """
    unit = F.normalize(k, dim=-1)
    cosine = unit @ unit.mT
    cosine.diagonal(dim1=-2, dim2=-1).zero_()
    rank = torch.arange(1, k.size(2) + 1, device=k.device, dtype=torch.int16)  # a matrix of these takes most of the time
    newest = ((cosine > SIMILAR) * rank).amax(-1, keepdim=True)
    return cosine.masked_fill_(newest == rank, 0).mean(-2).softmax(-1)
