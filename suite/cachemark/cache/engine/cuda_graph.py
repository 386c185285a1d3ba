"""Records passes as CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch


class CudaGraphs:
    """CUDA graphs that share one pool: only one of them runs at a time and none keeps a result in it, so each may use all of it.

    ``nbytes`` counts what the pool has taken from the device; what the driver keeps for a graph's nodes is not seen by the allocator
    and not counted.
    """

    def __init__(self, device: torch.device | str, stream: torch.cuda.Stream | None = None) -> None:
        self._device = torch.device(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = stream or torch.cuda.Stream(self._device)
        self.nbytes = 0

    def another(self) -> CudaGraphs:
        """With a pool of its own, recorded on the same stream: the libraries' workspaces belong to a stream."""
        return type(self)(self._device, self._stream)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Nothing is computed while a graph is recorded. The recording stream waits for what was queued before."""
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
        """End a recording that has failed; what went wrong first is the reason, so nothing new is raised. Where ending it fails as well,
        the allocator still has to be told that nobody allocates for the pool any more."""
        try:
            graph.capture_end()
        except RuntimeError:
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """The collector must not free an old graph meanwhile: that is a call which a recording does not survive."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
