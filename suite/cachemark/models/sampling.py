"""From logits to tokens: guidance, truncation, and sampling with noise keyed by the sample."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..cache import random_streams as streams
from ..cache.kernels.fused import fuses, random_numbers, runs, sample
from ..core.errors import Unsupported
from ..core.spec import Sampling


def guided(sampling: Sampling, position: int) -> bool:
    """Return True if the token at ``position`` is guided."""
    return not -1 < sampling.cfg_interval < position - 1


def guide(logits: Tensor, sampling: Sampling, position: int) -> Tensor:
    """Apply classifier-free guidance to fp32 logits: u + (c − u)·s; c is the first half of the rows.

    Without guidance (scale ≤ 1) rows are unchanged. With ``cfg_interval`` = i > −1, tokens 0 … i+1 are guided and later ones take c alone
    (rows stay doubled), as in LlamaGen's sampler.
    """
    if sampling.cfg_schedule != "constant":
        raise Unsupported(f"Guidance schedule {sampling.cfg_schedule!r} is not one of this family.", remedy="Known: constant.")
    if sampling.cfg_scale <= 1:
        return logits
    c, u = logits.chunk(2)
    if not guided(sampling, position):
        return c
    return u + (c - u) * sampling.cfg_scale


def guide_window(logits: Tensor, sampling: Sampling, positions: Sequence[int]) -> Tensor:
    """Guide several tokens by their ascending positions: (rows, tokens, vocab) → (batch, tokens, vocab)."""
    inside = sum(guided(sampling, position) for position in positions)  # those come first
    if not 0 < inside < len(positions):
        return guide(logits, sampling, positions[0])
    parts = (logits[:, :inside], positions[0]), (logits[:, inside:], positions[inside])
    return torch.cat([guide(part, sampling, first) for part, first in parts], 1)


def guide_scale(logits: Tensor, sampling: Sampling, index: int, total: int) -> Tensor:
    """Apply VAR's guidance to fp32 logits (rows, tokens, vocab) of scale ``index``: (1 + t)·c − t·u.

    t = cfg_scale·index/(total − 1): the first scale is not guided, the last fully. With scale 0 rows are unchanged.
    """
    if sampling.cfg_schedule != "linear":
        raise Unsupported(f"Guidance schedule {sampling.cfg_schedule!r} is not one of this family.", remedy="Known: linear.")
    if sampling.cfg_scale <= 0:
        return logits
    c, u = logits.chunk(2)
    return c + (c - u) * (sampling.cfg_scale * index / (total - 1))


def filter_logits(logits: Tensor, sampling: Sampling) -> Tensor:
    """Apply temperature, then top-k, then top-p, on (…, vocab); dropped logits become −inf.

    Ties at the k-th largest logit all survive. Top-p drops a token whose *preceding* cumulative mass exceeds p, so the token that crosses
    p survives.
    """
    logits = logits / max(sampling.temperature, 1e-5)
    if sampling.top_k > 0:
        kth = logits.topk(min(sampling.top_k, logits.size(-1)), dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < kth, float("-inf"))
    if sampling.top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        mass = ordered.softmax(-1)
        dropped = mass.cumsum(-1) - mass > sampling.top_p
        logits = logits.masked_fill(torch.zeros_like(dropped).scatter(-1, order, dropped), float("-inf"))
    return logits


def draw_fused(
    logits: Tensor, sampling: Sampling, seeds: Tensor, place: Tensor, position: int, lined: tuple[int, int, int, int] | None = None,
) -> Tensor | None:
    """Draw tokens (batch,) from unguided logits (rows, vocab) in one kernel, or return None.

    The tokens are those of :func:`guide` and :func:`draw`, of ``lined`` ones among those allowed. Top-p stays in plain operations, since
    which token crosses p depends on the order in which a cumulative sum is rounded.
    """
    if sampling.top_p < 1 or sampling.temperature == 0 or sampling.cfg_schedule != "constant" or not fuses(logits):
        return None
    scale = sampling.cfg_scale if sampling.cfg_scale > 1 and guided(sampling, position) else None
    return sample(logits, seeds, place, streams.PURPOSES["token"], max(sampling.temperature, 1e-5), scale, sampling.top_k, lined)


def token_keys(seeds: Tensor, places: Tensor) -> Tensor | None:
    """Return the keys of the noise at all places, (places, rows), or None where a fused pass makes them from the seeds."""
    return None if runs(seeds.device, torch.float32) else streams.keys(seeds, "token", places[:, None])


def draw(logits: Tensor, sampling: Sampling, seeds: Tensor, position: int | Tensor, key: Tensor | None = None) -> Tensor:
    """Sample one token per row by Gumbel-max in fp32: argmax(filtered logits + Gumbel noise).

    (rows, vocab) → (rows,) int64, or (rows, tokens, vocab) → (rows, tokens) with ``seeds`` (rows, 1) and ``position`` (tokens,). Noise is
    keyed by (seed, position), so candidates that share a seed share their noise; ``key`` (rows,), if known, is that of the
    position. Temperature 0 is greedy.
    """
    if sampling.temperature == 0:
        return logits.argmax(-1)
    vocab = logits.size(-1)
    noise = random_numbers(seeds, "token", position, vocab, gumbel=True) if key is None else streams.gumbel(key, vocab)
    return (filter_logits(logits, sampling) + noise).argmax(-1)
