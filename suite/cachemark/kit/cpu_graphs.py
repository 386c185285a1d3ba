"""CPU graph emulator: does what CUDA graphs do, so that everything above them is tested without a device.

Recording notes every operation with its arguments and leaves no effect. Replaying runs the operations, in order and on the very
tensors that were recorded, and none of the Python that made them. Refused is what a CUDA graph could not hold: reads by the host,
shapes that depend on values, numbers that Python puts into a tensor, and tensors that will be gone when the recording is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from types import EllipsisType, NoneType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..cache.arena import Memory
from ..cache.engine.graph import Graph
from .capture import READS, SHAPED, HostReads, indices, tensors

FROM_THE_HOST = {"lift_fresh", "lift", "scalar_tensor"}


class NotRecordable(RuntimeError):
    """An operation that a recording cannot hold."""


class CpuGraphs:
    """A recorder. ``lasting()``: tensors that live as long as the recordings, beside those that a recording makes itself; without it a
    recording may read anything."""

    def __init__(self, lasting: Callable[[], Iterable[Tensor]] | None = None) -> None:
        self._lasting = lasting
        self.nbytes = 0

    def another(self) -> CpuGraphs:
        return CpuGraphs(self._lasting)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        recording = _Recording({_place(t) for t in self._lasting()} if self._lasting else None)
        try:
            with _Reads(), recording:
                work()
        finally:
            recording.undo()
        self.nbytes = max(self.nbytes, sum(t.untyped_storage().nbytes() for t in recording.made.values()))
        return recording.replay


class _Reads(HostReads):
    """Puts a number into a part of a tensor as a number. Older torch, 2.11 too, makes a tensor of it first: on a CUDA device that one is
    read without a copy and its number is part of the recording, but here it looks like any tensor that Python has made."""

    error = NotRecordable

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


class _Recording(TorchDispatchMode):
    """Runs the operations as they come, on the tensors themselves; what they overwrite is kept and put back."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else the first operation would import the whole compiler, which takes seconds."""
        return False

    def __init__(self, lasting: set[int] | None) -> None:
        super().__init__()
        self._lasting = lasting
        self._operations: list[tuple[Any, Any, Any, list[tuple[int, Tensor]]]] = []
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self.made: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        kind, given = _kind(func), tensors((args, kwargs))
        places = {_place(t) for t in given}
        self._check(kind, args, given)
        written = [t for argument in kind.written for t in tensors(_argument(argument, args, kwargs))]
        for tensor in written:
            self._keep(tensor)
        out = func(*args, **kwargs)
        results = [(i, t) for i, t in enumerate(tensors(out)) if _place(t) not in places]
        self.made.update({_place(t): t for _, t in results})
        if results or written:
            self._operations.append((func, args, kwargs, results))
        return out

    def _check(self, kind: _Kind, args: Any, given: list[Tensor]) -> None:
        if kind.refused:
            raise NotRecordable(kind.refused)
        if kind.indexes and any(t.dtype in (torch.bool, torch.uint8) for t in indices(args)):
            raise NotRecordable(f"{kind.name} by a boolean tensor; its shape depends on values")
        for tensor in given if self._lasting is not None else ():
            if _place(tensor) not in (self._lasting or ()) and _place(tensor) not in self.made and tensor.numel():
                raise NotRecordable(f"{kind.name} reads a tensor of shape {tuple(tensor.shape)} that this generation alone has")

    def _keep(self, tensor: Tensor) -> None:
        storage, place = tensor.untyped_storage(), _place(tensor)
        if place not in self.made and place not in self._before:
            self._before[place] = storage, storage.clone()

    def undo(self) -> None:
        """Put back what was there before."""
        for storage, before in self._before.values():
            storage.copy_(before)

    def replay(self) -> None:
        """All operations once more. What one has returned is overwritten where it stands; a view needs nothing."""
        for func, args, kwargs, results in self._operations:
            again = tensors(func(*args, **kwargs))
            for i, result in results:
                result.copy_(again[i])


@dataclass(frozen=True)
class _Kind:
    """The schema of an operation: why it cannot be recorded, and which arguments it changes, by place and name."""

    name: str
    refused: str
    indexes: bool
    written: tuple[tuple[int, str], ...]


@cache
def _kind(func: Any) -> _Kind:
    name, refused = func.overloadpacket.__name__, ""
    if name in READS:
        refused = f"{name} reads a tensor on the host"
    elif name in SHAPED or str(func) == "aten.repeat_interleave.Tensor":
        refused = f"the shape of {name} depends on values"
    elif name in FROM_THE_HOST:
        refused = f"{name} copies numbers of the host into a tensor"
    changed = (a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)
    written = tuple((i, a.name) for i, (a, writes) in enumerate(zip(func._schema.arguments, changed, strict=True)) if writes)
    return _Kind(name, refused, name.startswith(("index", "_index_put", "_unsafe_index")), written)


def _argument(argument: tuple[int, str], args: Any, kwargs: Any) -> Any:
    place, name = argument
    return args[place] if place < len(args) else kwargs.get(name)


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def record_on_cpu(memory: Memory, lasting: Iterable[Tensor]) -> Memory:
    """Return the memory with an engine that records with the CPU graph emulator. ``lasting``: tensors that a model keeps."""
    if isinstance(memory.engine, Graph):
        return memory
    kept = list(lasting)
    recorder = CpuGraphs(lambda: [*kept, *(tensor for _, tensor in memory.tensors.values()), *engine.storage])
    engine = memory.engine = Graph(recorder)
    return memory
