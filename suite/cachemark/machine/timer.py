"""Clocks for one generation: the host's on CPU, events on GPU, without synchronization while timing."""

from __future__ import annotations

from collections.abc import Collection
from time import perf_counter_ns

import torch


class HostClock:
    """Timestamps of a generation by ``perf_counter_ns``: on a CPU, operations are synchronous."""

    def __init__(self, watched: Collection[int]) -> None:
        self._watched = frozenset(watched)
        self._at: dict[int, int] = {}
        self._start = 0

    def start(self) -> None:
        """Start, after all earlier work has finished."""
        self._at.clear()
        self._start = perf_counter_ns()

    def mark(self, index: int) -> None:
        """Record that token ``index`` was generated, if it is watched."""
        if index in self._watched:
            self._at[index] = perf_counter_ns()

    def stop(self) -> float:
        """Wait for all work and return the seconds since the start."""
        return (perf_counter_ns() - self._start) / 1e9

    def marks(self) -> dict[int, float]:
        """Return the seconds from the start to each watched token."""
        return {index: (at - self._start) / 1e9 for index, at in self._at.items()}


class EventClock:
    """A :class:`HostClock` of CUDA events, read after the end."""

    def __init__(self, watched: Collection[int]) -> None:
        self._events = {index: torch.cuda.Event(enable_timing=True) for index in watched}
        self._begin = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)

    def start(self) -> None:
        torch.cuda.synchronize()
        self._begin.record()

    def mark(self, index: int) -> None:
        if index in self._events:
            self._events[index].record()

    def stop(self) -> float:
        self._end.record()
        torch.cuda.synchronize()
        return self._begin.elapsed_time(self._end) / 1e3

    def marks(self) -> dict[int, float]:
        return {index: self._begin.elapsed_time(event) / 1e3 for index, event in self._events.items()}


def clock(device: str, watched: Collection[int]) -> HostClock | EventClock:
    """Return the clock for a device."""
    return HostClock(watched) if device == "cpu" else EventClock(watched)
