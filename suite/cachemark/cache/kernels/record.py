"""Records of the kernel table: a kernel, an attention call, and the keys and values of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..codec import NATIVE, Codec, Parts
from ..layout import RowRun

ONE, ROWS, HEADS, APART = "one length", "a length per row", "a length per head", "separate storages"


class Query(NamedTuple):
    """The facts of an attention call that decide which kernels accept it.

    ``device``: cpu or cuda. ``tokens``: queries of a row and head. ``causal``: query t sees the keys before it. ``masked``: each query sees
    other keys. ``mass``: the attention mass of each key is returned. ``codec``: name of the codec of the keys. ``lengths``: ``ONE``,
    ``ROWS``, ``HEADS``, or ``APART`` if they are not one storage. ``captured``: the pass runs in a CUDA graph.
    """

    device: str
    dtype: torch.dtype
    heads: int
    kv_heads: int
    head_dim: int
    tokens: int
    causal: bool = False
    masked: bool = False
    mass: bool = False
    codec: str = NATIVE.name
    lengths: str = ONE
    captured: bool = False

    @property
    def group(self) -> int:
        """Query heads that share a key."""
        return self.heads // self.kv_heads


class Part(NamedTuple):
    """Decoded keys and values of one length, (rows, heads, keys, head_dim) each.

    ``rows`` of the call that they belong to, and its K/V ``heads``; None for all of them.
    """

    rows: slice
    heads: Sequence[int] | None
    k: Tensor
    v: Tensor


class Ranges(NamedTuple):
    """Ranges that keys share among tokens: see :class:`~cachemark.cache.grouped_keys.GroupedBank`."""

    step: Tensor
    least: Tensor
    newest: Tensor
    arrived: Tensor


class Stored(NamedTuple):
    """Keys and values where they are stored, for kernels that read codes, or several lengths, in place.

    ``k``, ``v``: parts of the codec, (rows, kv_heads, capacity, width). With ``starts``, heads lie one after the other: (rows, 1, entries,
    width). ``longest``: the most keys of a row and head. ``lengths`` (rows or 1, kv_heads or 1) int32 on the device: keys of each; None if
    all have ``longest``. ``starts`` (1, kv_heads) int32: the first entry of each head.
    """

    k: Parts
    v: Parts
    longest: int
    lengths: Tensor | None = None
    starts: Tensor | None = None
    ranges: Ranges | None = None


@dataclass(frozen=True)
class Entries:
    """The keys and values of an attention call.

    ``parts()`` yields them decoded, one part for each length; ``stored()`` says where they are stored, if they are one storage.
    """

    kv_heads: int
    parts: Callable[[], Iterable[Part]]
    stored: Callable[[], Stored] | None = None
    codec: Codec = NATIVE
    lengths: str = ONE

    @classmethod
    def of(cls, k: Tensor, v: Tensor) -> Entries:
        """Return the entries of keys and values (rows, kv_heads, keys, head_dim), all of one length."""
        return cls(k.size(1), lambda: (Part(slice(None), None, k, v),), lambda: Stored((k,), (v,), k.size(2)))


Run = Callable[..., tuple[Tensor, Tensor | None]]
"""``run(q, entries, causal, visible, mass)``: output in the shape of ``q``, and the mass of each key or None."""


@dataclass(frozen=True)
class Kernel:
    """An attention kernel.

    ``refuses(query)`` returns why it does not compute a call, or "". ``flops(query, rows, keys)`` counts a call whose products torch does
    not dispatch, so that a counter cannot see them; None for the others. ``capturable``: a CUDA graph may contain it. ``fused``: it does
    not write out scores, so times under it may be compared. ``in_place``: it reads codes and several lengths where they are stored.
    ``ours``: it is not torch's, so it is checked on a device before it is used. ``turned``: rotates, appends and attends in one call, as
    :func:`.fused.attend_turned`.
    """

    name: str
    refuses: Callable[[Query], str]
    run: Run
    flops: Callable[[Query, int, int], int] | None = None
    capturable: bool = True
    fused: bool = True
    in_place: bool = False
    ours: bool = False
    turned: Callable[..., tuple[Tensor, Tensor | None]] | None = None


def flops(query: Query, rows: int, keys: int) -> int:
    """Return the FLOPs of attention of all queries to ``keys`` keys, two per multiplication and addition."""
    return 4 * rows * query.heads * query.tokens * keys * query.head_dim


def fold(q: Tensor, kv_heads: int) -> Tensor:
    """Place queries of the heads that share a key side by side: (rows, kv_heads, group·tokens, head_dim)."""
    return q.reshape(q.size(0), kv_heads, -1, q.size(-1))


@cache
def on_device(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Return host numbers as an int32 tensor of a device, made once: a captured graph refers to it."""
    return torch.tensor(values, dtype=torch.int32, device=device)


def lengths_of(runs: Sequence[RowRun], live: Sequence[int], device: torch.device) -> tuple[int, Tensor | None]:
    """Return the most keys of a row, and the keys of each row (rows, 1); None if all rows have as many."""
    if len(runs) == 1:
        return live[0], None
    by_row = tuple(n for run, n in zip(runs, live, strict=True) for _ in range(run.start, run.stop))
    return max(live), on_device(by_row, device)[:, None]
