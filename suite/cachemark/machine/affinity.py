"""Processors and threads of a CPU trial: one processor per thread, exclusive if possible."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

from .lease import lock


@contextmanager
def processors(threads: int) -> Iterator[tuple[int, ...]]:
    """Lease ``threads`` processors for the block and yield their numbers.

    All allowed processors if fewer are free, or if the system cannot pin."""
    if not hasattr(os, "sched_getaffinity"):
        yield ()
        return
    allowed = sorted(os.sched_getaffinity(0))
    if threads >= len(allowed):
        yield tuple(allowed)
        return
    with ExitStack() as stack:
        free: list[int] = []
        for number in allowed:
            lease = lock(f"cpu-{number}") if len(free) < threads else None
            if lease is not None:
                stack.enter_context(lease)
                free.append(number)
        yield tuple(free if len(free) == threads else allowed)


def near(nodes: Sequence[frozenset[int]], threads: int) -> list[tuple[int, ...]]:
    """Return the processors for each of several GPUs: the allowed ones of its NUMA node.

    GPUs of one node divide its processors if each gets at least ``threads``, else they share them. ``nodes``: the processors of each GPU's
    node; empty if unknown. Empty for a GPU without a restriction."""
    allowed = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset[int]()
    local = [node & allowed or allowed for node in nodes]
    pinned = []
    for number, own in enumerate(local):
        alike = [other for other, processors in enumerate(local) if processors == own]
        size = len(own) // len(alike)
        first = size * alike.index(number)
        if len(alike) > 1 and size >= threads:
            pinned.append(tuple(sorted(own)[first : first + size]))
        else:
            pinned.append(() if own == allowed else tuple(sorted(own)))
    return pinned


def pin(numbers: tuple[int, ...]) -> None:
    """Restrict this process and its threads to these processors, if there are any."""
    if numbers and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, numbers)


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Set torch to ``count`` threads inside this context; None or 0 changes nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
