"""Clocks for one generation: the host's on a CPU, events on a GPU. Neither synchronises inside the timed region."""

from __future__ import annotations

import time
from collections.abc import Collection

import torch


class HostClock:
    """Marks moments of a generation by ``perf_counter_ns``: on a CPU an operation has ended when its call returns."""

    def __init__(self, watched: Collection[int]) -> None:
        self._watched = frozenset(watched)
        self._at: dict[int, int] = {}
        self._start = 0

    def start(self) -> None:
        """Begin; work queued before is finished."""
        self._at.clear()
        self._start = time.perf_counter_ns()

    def mark(self, index: int) -> None:
        """Token ``index`` has been drawn. Only watched tokens are recorded."""
        if index in self._watched:
            self._at[index] = time.perf_counter_ns()

    def stop(self) -> float:
        """Wait for all work; seconds since the start."""
        return (time.perf_counter_ns() - self._start) / 1e9

    def marks(self) -> dict[int, float]:
        """Seconds since the start at each watched token."""
        return {index: (at - self._start) / 1e9 for index, at in self._at.items()}


class EventClock:
    """A :class:`HostClock` by CUDA events, recorded into the stream and read after the end."""

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
    """The clock for a device."""
    return HostClock(watched) if device == "cpu" else EventClock(watched)
