"""CPU graph emulator: the interface of CUDA graphs, to test everything above them without a device.

Capturing logs every operation with its arguments and leaves no effect. Replaying runs the operations in order on the captured
tensors, without the Python code that made them. It refuses operations that a CUDA graph cannot hold: reads on the host, shapes that
depend on values, numbers that Python writes into a tensor, and tensors that no longer exist when the capture is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from types import EllipsisType, NoneType
from typing import Any

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.engines import Graph
from ..roofline.flops import UncompiledMode
from .capture import HostReads, refusal, tensors

FROM_THE_HOST = {"lift_fresh", "lift", "scalar_tensor"}


class NotReplayable(RuntimeError):
    """An operation that cannot be captured."""


class CpuGraphs:
    """An emulator. ``lasting()`` returns the outside tensors that a capture may read; default: any."""

    def __init__(self, lasting: Callable[[], Iterable[Tensor]] | None = None) -> None:
        self._lasting = lasting
        self.nbytes = 0

    def another(self) -> CpuGraphs:
        return CpuGraphs(self._lasting)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        captured = _Captured({_place(t) for t in self._lasting()} if self._lasting else None)
        try:
            with _Reads(), captured:
                work()
        finally:
            captured.undo()
        self.nbytes = max(self.nbytes, sum(t.untyped_storage().nbytes() for t in captured.made.values()))
        return captured.replay


class _Reads(HostReads):
    """Writes a number into a slice without a temporary tensor.

    torch up to 2.11 makes a tensor of the number first. CUDA graphs capture its value, but here it looks like any tensor from Python.
    """

    error = NotReplayable

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "__setitem__" and isinstance(args[2], int | float) and _sliced(args[1]):
            part = args[0][args[1]]
            if part.dim():  # what goes into a single element is copied there
                part.fill_(args[2])
                return None
        return super().__torch_function__(func, types, args, kwargs)


def _sliced(index: Any) -> bool:
    """True where an index takes a view."""
    return all(type(part) in (int, slice, EllipsisType, NoneType) for part in (index if isinstance(index, tuple) else (index,)))


class _Captured(UncompiledMode):
    """Runs operations on the tensors themselves; :meth:`undo` restores overwritten tensors."""

    def __init__(self, lasting: set[int] | None) -> None:
        super().__init__()
        self._lasting = lasting
        self._operations: list[tuple[Any, Any, Any, list[tuple[int, Tensor]]]] = []
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self.made: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = tensors((args, kwargs))
        places = {_place(t) for t in inputs}
        self._check(func, args, inputs)
        written = [t for i, name in _written(func) for t in tensors(args[i] if i < len(args) else kwargs.get(name))]
        for tensor in written:
            self._save(tensor)
        out = func(*args, **kwargs)
        results = [(i, t) for i, t in enumerate(tensors(out)) if _place(t) not in places]
        self.made.update({_place(t): t for _, t in results})
        if results or written:
            self._operations.append((func, args, kwargs, results))
        return out

    def _check(self, func: Any, args: Any, inputs: list[Tensor]) -> None:
        name = func.overloadpacket.__name__
        if reason := refusal(func, args):
            raise NotReplayable(reason)
        if name in FROM_THE_HOST:
            raise NotReplayable(f"{name} copies numbers of the host into a tensor")
        for tensor in inputs if self._lasting is not None else ():
            if _place(tensor) not in (self._lasting or ()) and _place(tensor) not in self.made and tensor.numel():
                raise NotReplayable(f"{name} reads a tensor of shape {tuple(tensor.shape)} that exists in this generation only")

    def _save(self, tensor: Tensor) -> None:
        storage, place = tensor.untyped_storage(), _place(tensor)
        if place not in self.made and place not in self._before:
            self._before[place] = storage, storage.clone()

    def undo(self) -> None:
        """Restore overwritten tensors."""
        for storage, before in self._before.values():
            storage.copy_(before)

    def replay(self) -> None:
        """Run all operations again and write results into the tensors that were returned; views need nothing."""
        for func, args, kwargs, results in self._operations:
            again = tensors(func(*args, **kwargs))
            for i, result in results:
                result.copy_(again[i])


@cache
def _written(func: Any) -> tuple[tuple[int, str], ...]:
    """Return the arguments that an operation writes, by position and name."""
    return tuple((i, a.name) for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write)


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def capture_on_cpu(memory: Memory, lasting: Iterable[Tensor]) -> Memory:
    """Set the memory's engine to the CPU graph emulator. ``lasting``: the tensors of the model."""
    if isinstance(memory.engine, Graph):
        return memory
    weights = list(lasting)
    emulator = CpuGraphs(lambda: [*weights, *(tensor for _, tensor in memory.tensors.values()), *engine.storage])
    engine = memory.engine = Graph(emulator)
    return memory
