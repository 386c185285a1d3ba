"""Peak memory of one generation above its start, and a limit on a trial's allocations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from ..core.errors import out_of_memory
from ..roofline.flops import UncompiledMode


class TensorPeak(UncompiledMode):
    """Peak bytes of simultaneously alive tensor storages, without those in ``excluded`` (the weights).

    Exact and repeatable for tensors returned by operations; scratch memory inside operations is not counted. For CPUs, whose resident set
    size includes memory cached by the allocator."""

    def __init__(self, excluded: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self._known = {t.untyped_storage()._cdata for t in excluded}
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self._total = self.peak = 0

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._see(tensor.untyped_storage())
        return out

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        entry = self._alive.get(key)
        if entry is not None:
            if not entry[0].expired():
                return
            self._total -= entry[1]  # the address was given to a new storage
        self._alive[key] = (StorageWeakRef(storage), storage.nbytes())
        self._total += storage.nbytes()
        if self._total > self.peak:
            for freed in [k for k, (ref, _) in self._alive.items() if ref.expired()]:
                self._total -= self._alive.pop(freed)[1]
            self.peak = max(self.peak, self._total)


def allocated(device: str) -> int:
    """Return the allocated bytes of a CUDA device; 0 for a CPU."""
    return 0 if device == "cpu" else torch.cuda.memory_allocated()


def peak_bytes(device: str, work: Callable[[], object], excluded: Iterable[Tensor]) -> int:
    """Return the peak bytes that ``work`` adds: the CUDA allocator's, or :class:`TensorPeak` on a CPU."""
    if device == "cpu":
        with TensorPeak(excluded) as watch:
            work()
        return watch.peak
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def exhausted(error: BaseException) -> bool:
    """Return whether an error means that memory ran out, in any allocator."""
    return isinstance(error, torch.OutOfMemoryError) or out_of_memory(error)


def cap(device: str, nbytes: int) -> None:
    """Limit this process to ``nbytes`` more bytes, like a device of that size.

    CUDA: of torch's allocator, model included. CPU, if the system supports it: data above the current amount; the model is loaded later
    and counts too."""
    if device != "cpu":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, nbytes / total))
        return
    import resource

    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    mapped = next(int(words[1]) * 1024 for words in lines if words[0] == "VmData:")
    resource.setrlimit(resource.RLIMIT_DATA, (mapped + nbytes,) * 2)
