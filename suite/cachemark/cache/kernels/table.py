"""The table of attention kernels: the first one that accepts a call computes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ...core.errors import Unsupported, unknown
from ..codec import NATIVE, Codec
from ..layout import Layout
from .check import fault
from .decode import DECODE, DECODE_WITH_MASS
from .mass import MASS
from .plain import SDPA, WRITTEN_OUT
from .record import APART, ONE, ROWS, Entries, Kernel, Query

TABLE: tuple[Kernel, ...] = (DECODE, DECODE_WITH_MASS, MASS, WRITTEN_OUT, SDPA)
AUTO = "auto"  # a plan's word for the first kernel that accepts


class KernelChoice(NamedTuple):
    """A kernel for a call, and why the earlier ones of the table refuse it: (name, reason) each."""

    kernel: Kernel
    refused: tuple[tuple[str, str], ...]


_forced: ContextVar[str] = ContextVar("forced kernel", default=AUTO)
_counters: list[Callable[[int], None]] = []


@contextmanager
def forced(name: str) -> Iterator[None]:
    """Within, try the kernel ``name`` first; calls that it refuses, such as the condition's, take the table's order."""
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)


@contextmanager
def counted(add: Callable[[int], None]) -> Iterator[None]:
    """Within, pass the FLOPs of kernels that dispatch nothing countable to ``add``."""
    _counters.append(add)
    try:
        yield
    finally:
        _counters.remove(add)


def choose(query: Query, name: str = AUTO, *, checked: bool = False) -> KernelChoice:
    """Return the first kernel that accepts a call, with the kernel ``name`` before all others.

    ``checked``: run our own kernels on the device once, and pass over one that deviates or fails there.
    """
    return _choose(query, name, TABLE, checked and query.device != "cpu")


@lru_cache(maxsize=4096)
def _choose(query: Query, name: str, table: tuple[Kernel, ...], checked: bool) -> KernelChoice:
    refused = list[tuple[str, str]]()
    for kernel in sorted(table, key=lambda kernel: kernel.name != name):
        reason = kernel.refuses(query) or (fault(kernel, query) if checked and kernel.ours else "")
        if not reason:
            return KernelChoice(kernel, tuple(refused))
        refused.append((kernel.name, reason))
    raise Unsupported(f"No kernel computes this attention: {'; '.join(f'{name}: {reason}' for name, reason in refused)}.")


def usual(layout: Layout, codec: Codec = NATIVE, *, mass: bool = False) -> Query:
    """Return the call that most passes of a generation make; without a codec or mass, the full cache's."""
    tokens = max(layout.scale_tokens) if layout.scales else layout.line if layout.paradigm == "masked" else 1
    lengths = ROWS if len(layout.runs) > 1 else ONE
    return Query(torch.device(layout.device).type, layout.dtype, layout.heads, layout.kv_heads, layout.head_dim, tokens, mass=mass,
                 codec=codec.name, lengths=lengths)


def refusal(name: str, query: Query) -> str:
    """Return why the kernel of a plan refuses a call, or ""; raise UnknownName if it is not in the table."""
    kernels = {kernel.name: kernel for kernel in TABLE}
    if name not in (AUTO, *kernels):
        raise unknown("kernel", name, [AUTO, *kernels])
    reason = "" if name == AUTO else kernels[name].refuses(query)
    return f"the kernel {name} does not compute the full cache's attention here: {reason}" if reason else ""


def attend(
    q: Tensor, entries: Entries, *, causal: bool = False, visible: Tensor | None = None, mass: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute softmax(q·kᵀ/√d)·v by the first kernel of the table that accepts the call.

    ``q`` (rows, heads, tokens, head_dim). ``causal``: query t sees the keys before it; the last keys are its pass's own. ``visible``
    (tokens, the last keys) bool, or (rows, kv_heads, tokens, the last keys): each query sees the other keys and these. Returns the
    output in the shape of ``q`` and, with ``mass``, each key's weight summed over queries and over the heads that share it, (rows,
    kv_heads, longest) fp32, zero after a shorter row.
    """
    _, heads, tokens, width = q.shape
    causal = causal and tokens > 1
    query = Query(q.device.type, q.dtype, heads, entries.kv_heads, width, tokens, causal, visible is not None, mass, entries.codec.name,
                  entries.lengths if entries.stored or entries.lengths == ONE else APART)
    kernel = SDPA if torch.is_grad_enabled() and q.requires_grad else choose(query, _forced.get(), checked=True).kernel
    if _counters and kernel.flops is not None:
        parts = list(entries.parts())
        for part in parts:
            share = query._replace(heads=query.group * part.k.size(1))
            for add in _counters:
                add(kernel.flops(share, part.k.size(0), part.k.size(2)))
    return kernel.run(q, entries, causal, visible, mass)
