"""The table of attention kernels: the first one that accepts a call computes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ...core.errors import Unsupported, unknown
from ..codec import NATIVE, Codec
from ..layout import Layout, RowRun
from .check import distrust, failure, fault, note, replaceable
from .decode import DECODE, DECODE_WITH_MASS
from .flash_infer import FLASHINFER
from .mass import MASS
from .plain import SDPA, WRITTEN_OUT
from .record import APART, ONE, ROWS, Entries, Kernel, Query, flops, lengths_of

if TYPE_CHECKING:
    from .fused import Turn

TABLE: tuple[Kernel, ...] = (DECODE, DECODE_WITH_MASS, MASS, WRITTEN_OUT, FLASHINFER, SDPA)
AUTO = "auto"  # a plan's word for the first kernel that accepts
NOT_CAPTURED = "a CUDA graph cannot contain it; engine = \"eager\" can use it"


class KernelChoice(NamedTuple):
    """A kernel for a call, and why the earlier ones of the table refuse it: (name, reason) each.

    ``distrusted`` are those of them that accept it, but deviate or fail on this device.
    """

    kernel: Kernel
    refused: tuple[tuple[str, str], ...]
    distrusted: tuple[tuple[str, str], ...] = ()


_forced: ContextVar[tuple[str, bool]] = ContextVar("forced kernel, and whether passes are captured", default=(AUTO, False))
_counters: list[Callable[[int], None]] = []


@contextmanager
def forced(name: str, *, captured: bool = False) -> Iterator[None]:
    """Within, try the kernel ``name`` first; calls that it refuses, such as the condition's, take the table's order.

    ``captured``: CUDA graphs replay the passes, so kernels that these cannot contain are passed over.
    """
    token = _forced.set((name, captured))
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
    choice = _choose(query, name, TABLE, checked and _on_a_device(query))
    for kernel, reason in choice.distrusted:
        note(kernel, reason)
    return choice


@lru_cache(maxsize=4096)
def _choose(query: Query, name: str, table: tuple[Kernel, ...], checked: bool) -> KernelChoice:
    refused, distrusted = list[tuple[str, str]](), list[tuple[str, str]]()
    for kernel in sorted(table, key=lambda kernel: kernel.name != name):
        reason = _reason(kernel, query)
        if not reason and checked and kernel.ours and (reason := fault(kernel, query)):
            distrusted.append((kernel.name, reason))
        if not reason:
            return KernelChoice(kernel, tuple(refused), tuple(distrusted))
        refused.append((kernel.name, reason))
    raise Unsupported(f"No kernel computes this attention: {'; '.join(f'{name}: {reason}' for name, reason in refused)}.")


def _reason(kernel: Kernel, query: Query) -> str:
    """Return why a kernel does not compute a call, or ""."""
    return kernel.refuses(query) or (NOT_CAPTURED if query.captured and not kernel.capturable else "")


def _on_a_device(query: Query) -> bool:
    """Return whether kernels are checked and replaced there; on a CPU they only run in tests, interpreted."""
    return query.device != "cpu"


def usual(layout: Layout, codec: Codec = NATIVE, *, mass: bool = False, captured: bool = False) -> Query:
    """Return the call that most passes of a generation make; without a codec or mass, the full cache's."""
    tokens = max(layout.scale_tokens) if layout.scales else layout.line if layout.paradigm == "masked" else 1
    lengths = ROWS if len(layout.runs) > 1 else ONE
    return Query(torch.device(layout.device).type, layout.dtype, layout.heads, layout.kv_heads, layout.head_dim, tokens, mass=mass,
                 codec=codec.name, lengths=lengths, captured=captured)


def refusal(name: str, query: Query) -> str:
    """Return why the kernel of a plan refuses a call, or ""; raise UnknownName if it is not in the table."""
    kernels = {kernel.name: kernel for kernel in TABLE}
    if name not in (AUTO, *kernels):
        raise unknown("kernel", name, [AUTO, *kernels])
    kernel = kernels.get(name)
    reason = "" if kernel is None else _reason(kernel, query)
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
    name, captured = _forced.get()
    query = Query(q.device.type, q.dtype, heads, entries.kv_heads, width, tokens, causal, visible is not None, mass, entries.codec.name,
                  entries.lengths if entries.stored or entries.lengths == ONE else APART, captured)
    kernel = SDPA if torch.is_grad_enabled() and q.requires_grad else choose(query, name, checked=True).kernel
    if _counters and kernel.flops is not None:
        parts = list(entries.parts())
        for part in parts:
            share = query._replace(heads=query.group * part.k.size(1))
            for add in _counters:
                add(kernel.flops(share, part.k.size(0), part.k.size(2)))
    try:
        return kernel.run(q, entries, causal, visible, mass)
    except Exception as error:  # whatever a compiler raises for a shape that the check did not have
        if not (kernel.ours and _on_a_device(query) and replaceable(error)):
            raise
        distrust(kernel, query, error)
        note(kernel.name, failure(error))
        _choose.cache_clear()
    return attend(q, entries, causal=causal, visible=visible, mass=mass)


def attend_turned(
    qkv: Tensor, turn: Turn, k: Tensor, v: Tensor, runs: Sequence[RowRun], live: Sequence[int], asked: bool,
) -> tuple[Tensor, Tensor | None] | None:
    """Rotate, append and attend by the first kernel that accepts a call of one token per row, if it does all; else return None.

    Sizes and results are those of :func:`.fused.attend_turned`; the rows of each run have as many ``live`` entries.
    """
    every, width = qkv.shape[2:]
    name, captured = _forced.get()
    query = Query(qkv.device.type, qkv.dtype, turn.heads, k.size(1), width, 1, captured=captured)
    kernel = choose(query, name, checked=True).kernel
    if kernel.turned is None or every != 3 * turn.heads:
        return None
    try:
        longest, lengths = lengths_of(runs, live, qkv.device)
        results = kernel.turned(qkv, turn, k, v, longest, asked, lengths)
    except Exception as error:
        if not (_on_a_device(query) and replaceable(error)):
            raise
        distrust(kernel, query, error)
        note(kernel.name, failure(error))
        _choose.cache_clear()
        return None
    for add in _counters:
        add(sum(flops(query, run.stop - run.start, n + 1) for run, n in zip(runs, live, strict=True)))
    return results
