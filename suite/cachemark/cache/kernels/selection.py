"""Selection of the entries that go: scores, the choice of the lowest, and moves into their places, in one launch each for all layers.

Plain operations remain on a CPU. The kernels are part of the fused passes: one switch, compared with plain operations on a device first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from . import fused
from .fused import CHECKS, PASSES, launch, off, power

TIE = 2.0**-16  # difference of scores, as a fraction, that rounding in another batch may cause
MOST = 4096  # entries that one program selects from
POOLED = "pooled scores"
PART = 32  # entries that a program moves


def lowest(score: Tensor, age: Tensor, count: int) -> Tensor:
    """Return the positions of the ``count`` lowest scores along the last axis; ties by smaller ``age``.

    ``score`` (…, n) fp32 with +inf for protected entries; ``age`` (…, n) int16, the index among visual tokens. Scores tie with the next
    one up to the fraction ``TIE``: those of equal tokens differ in the last bits, which depend on the batch. Several are selected by one
    partial sort of integers that combine rank and age.
    """
    if count == 1:
        least = score.amin(-1, keepdim=True)
        oldest = torch.iinfo(age.dtype).max
        return age.masked_fill(_below(least, score), oldest).argmin(-1, keepdim=True)
    ordered, places = score.sort(-1)
    ranks = F.pad(_below(ordered[..., :-1], ordered[..., 1:]), (1, 0)).cumsum(-1)
    return (torch.empty_like(ranks).scatter_(-1, places, ranks) * 2**16 + age.long()).topk(count, dim=-1, largest=False).indices


def _below(first: Tensor, second: Tensor) -> Tensor:
    """Return where ``first`` is lower than ``second`` by more than a tie, or one is NaN.

    Infinite scores tie with each other alone.
    """
    return ~(first >= second * (1 - TIE * second.sign()))


def selects(device: torch.device, dtype: torch.dtype, entries: int) -> bool:
    """Return whether kernels select among ``entries`` entries."""
    return entries <= MOST and fused.runs(device, dtype)


def pools(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether kernels pool the scores of :func:`attended`; they are compared on a device before their first use."""
    return fused.runs(device, dtype) and not (device.type != "meta" and fused.faults(device, dtype, POOLED))


class Pool(NamedTuple):
    """Pooling of scores over ``width`` neighbors in the order of age: their mean or, with ``similar``, R-KV's score.

    That is ``mix`` · their maximum − (1 − ``mix``) · the redundancy of the key, by cosines above ``similar``.
    """

    width: int
    similar: float = 0.0
    mix: float = 1.0


def attended(
    q: Tensor, k: Tensor, visual: Tensor, lengths: Tensor | None, middle: range, *, line: int = 0, ends: int = 0, pool: Pool | None = None,
) -> Tensor:
    """Return the mean over queries of softmax over the ``middle`` keys, +inf for others: (sites, rows, kv_heads, live) fp32.

    ``q`` (sites, rows, heads, queries, head_dim); ``k`` (sites, rows, kv_heads, live, head_dim); ``visual`` (sites, rows, kv_heads, live)
    int16; ``lengths`` (rows,) int32, or None for ``live``. ``ends``: the last tokens of lines of ``line`` are 0 like others, 1
    not scored, 2 −inf. ``pool``: of scores, none by default.
    """
    sites, rows, heads, live, head_dim = k.shape
    score = torch.empty(sites, rows, heads, live, device=k.device)
    flat = [x.flatten(0, 1) for x in (q, k, visual)]
    strides = [stride for x in flat for stride in x.stride()[: x.dim() - 1]]
    numbers = rows, heads, q.size(3), live, middle.start, middle.stop, max(1, line), head_dim**-0.5 * 1.4426950408889634
    spare = score.new_empty(2, *score.shape) if pool else score
    width, similar, mix = pool or (0, 0.0, 1.0)
    tensors = *flat, score, spare, visual if lengths is None else lengths
    launch("attended", (sites * rows * heads,), tensors, *strides, *numbers, similar, mix,
           touched=(*tensors, spare) if pool else (*tensors[:4], *tensors[5:]),
           GROUP=q.size(2) // heads, QUERIES=16, KEYS=64, WIDTH=max(16, power(head_dim)), HEAD_DIM=head_dim, ENDS=ends,
           LENGTHS=int(lengths is not None), POOL=width, SIMILAR=int(similar > 0))
    return score


def choose(score: Tensor, visual: Tensor, lengths: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """Return the places of the ``count`` lowest scores, ascending, and the entries that move there, (sites, rows, kv_heads, count) int16.

    The places among the last ``count`` entries come last; nothing moves there. ``visual`` is moved. Negative numbers, the condition, go
    last, after +inf; else as in :func:`lowest`.
    """
    sites, rows, heads, live = score.shape
    holes, sources = (torch.empty(sites, rows, heads, count, dtype=torch.int16, device=score.device) for _ in range(2))
    flat = [x.flatten(0, 1) for x in (score, visual)]
    strides = [stride for x in flat for stride in x.stride()[:2]]
    launch("choose", (sites * rows * heads,), (*flat, holes, sources, visual if lengths is None else lengths), *strides, rows, heads, live,
            count, ENTRIES=max(16, power(live)), ONE=int(count == 1), LENGTHS=int(lengths is not None), warps=4 if live <= 1024 else 8,
            exact=True)
    return holes, sources


def move(tensors: Sequence[Tensor], holes: Tensor, sources: Tensor, lengths: Tensor | None, live: int) -> None:
    """Move entries of one or two tensors of equal strides, (sites, rows, kv_heads, capacity, width), as :func:`choose` says."""
    sites, rows, heads, count = holes.shape
    first, second = (x.flatten(0, 1) for x in (tensors[0], tensors[-1]))
    width, touched = first.size(3), [x.flatten(0, 1)[:, :, :count] for x in tensors]
    launch("move", (sites * rows * heads, -(-count // PART)), (first, second, holes, sources, holes if lengths is None else lengths),
            *first.stride()[:3], rows, heads, live, count, BLOCK=min(PART, power(count)), WIDTH=width, PADDED=power(width),
            BOTH=int(len(tensors) > 1), LENGTHS=int(lengths is not None), touched=(*touched, *touched, holes, sources))


# -- their check ------------------------------------------------------------------------------------------------------
def _check(device: torch.device, dtype: torch.dtype) -> Iterator[float]:
    """Compare the scores of keys with the plain operations', and entries that go with the lowest ones."""
    live, count, counts = 70, 20, (70, 61, 70)
    lengths = torch.tensor(counts, dtype=torch.int32, device=device)
    q, k = (torch.randn(2, 3, *sizes, 48, device=device).to(dtype) for sizes in ((4, 9), (2, live + 3)))
    visual = torch.rand(2, 3, 2, live, device=device).argsort(-1).to(torch.int16) - 1
    middle = (visual >= 5) & (visual < 60) & (torch.arange(live, device=device) < lengths[:, None, None])
    logits = q.flatten(2, 3).unflatten(2, (2, -1)).float() @ k[..., :live, :].float().mT * 48**-0.5
    right = logits.masked_fill(~middle[..., None, :], float("-inf")).softmax(-1).mean(-2).masked_fill(~middle, float("inf"))
    score = attended(q, k[..., :live, :], visual, lengths, range(5, 60))
    apart = float((score - right)[middle].abs().max() / right[middle].max())
    yield 0.0 if apart <= 1e-3 else apart
    ages, parts, places = visual.clone(), k.clone(), lowest(score, visual, count).sort(-1).values
    holes, sources = choose(score, visual, lengths, count)
    yield off(holes.long(), places, exact=True)
    move([parts, parts.clone()], holes, sources, lengths, live)
    order = (ages + 1).long().argsort(-1)
    came = order.gather(-1, (visual + 1).long())[..., None].expand(-1, -1, -1, -1, 48)  # where the entries lay
    for row, left in enumerate(n - count for n in counts):
        yield off(parts[:, row, :, :left], k.gather(3, came)[:, row, :, :left], exact=True)
        yield float((ages.gather(-1, places)[:, row, :, :, None] == visual[:, row, :, None, :left]).any())


def _check_pooled(device: torch.device, dtype: torch.dtype) -> Iterator[float]:
    """Compare scores that are pooled over neighbors, and less the redundancy of keys, with plain operations."""
    live, latest, similar, mix = 70, 8, 0.4, 0.4
    q, k = (torch.randn(1, 2, 3, tokens, 48, device=device).to(dtype) for tokens in (latest, live))
    visual = torch.rand(1, 2, 3, live, device=device).argsort(-1).to(torch.int16)
    order = visual.argsort(-1)
    keys = k.gather(3, order[..., None].expand_as(k)).float()
    weights = (q.float() @ keys[..., :-latest, :].mT * 48**-0.5).softmax(-1).mean(-2).flatten(0, 1)
    unit, rank = F.normalize(keys, dim=-1), torch.arange(1, live + 1, device=device)
    cosine = (unit @ unit.mT).masked_fill(torch.eye(live, dtype=torch.bool, device=device), 0)
    newest = ((cosine > similar) * rank).amax(-1, keepdim=True)
    redundancy = cosine.masked_fill(newest == rank, 0).mean(-2).softmax(-1)[..., :-latest].flatten(0, 1)
    for pool, right in ((Pool(5), F.avg_pool1d(weights, 5, 1, 2)),
                        (Pool(7, similar, mix), mix * F.max_pool1d(weights, 7, 1, 3) - (1 - mix) * redundancy)):
        score = attended(q, k, visual, None, range(live - latest), pool=pool).gather(-1, order)[..., :-latest].flatten(0, 1)
        apart = float((score - right).abs().max() / right.abs().max())
        yield 0.0 if apart <= 1e-3 else apart


CHECKS[PASSES]["selection"] = _check
CHECKS[POOLED] = {"scores": _check_pooled}  # apart, since only some methods pay for compiling them
