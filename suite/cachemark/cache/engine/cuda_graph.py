"""Capture of passes as CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch


class CudaGraphs:
    """CUDA graphs that share one memory pool.

    One of them runs at a time and none keeps a result in the pool. ``nbytes`` counts what the pool has taken from the device; the driver's
    own storage for graph nodes is invisible to the allocator and not counted.
    """

    def __init__(self, device: torch.device | str, stream: torch.cuda.Stream | None = None) -> None:
        self._device = torch.device(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = stream or torch.cuda.Stream(self._device)
        self.nbytes = 0

    def another(self) -> CudaGraphs:
        """Return a backend with its own pool on the same stream, to which library workspaces belong."""
        return type(self)(self._device, self._stream)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Capture ``work`` without computing it; return its replay."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        before = torch.cuda.memory_reserved(self._device)
        with _nothing_collected(), torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                self._abandon(graph)
                raise
            graph.capture_end()
        self.nbytes += max(0, torch.cuda.memory_reserved(self._device) - before)
        return graph.replay

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a failed capture without hiding its error, and release the pool from the allocator."""
        try:
            graph.capture_end()
        except RuntimeError:
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Disable garbage collection: freeing an old graph would break the capture."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
