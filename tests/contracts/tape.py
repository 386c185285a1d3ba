"""A graph for the CPU: what CUDA graphs do, so that everything above them is tested without a device.

Recording notes every operation with its arguments and leaves no effect. Replaying runs the operations, in order and on the very
tensors that were recorded, and none of the Python that made them. Refused is what a CUDA graph could not hold: reads by the host,
shapes that depend on values, numbers that Python puts into a tensor, and tensors that will be gone when the tape is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .capture import READS, SHAPED, UNSEEN, HostReads, indices

FROM_THE_HOST = {"lift_fresh", "lift", "scalar_tensor"}


class NotRecordable(RuntimeError):
    """An operation that a recording cannot hold."""


class Tape:
    """A recorder. ``lasting()``: tensors that live as long as the recordings, beside those that a recording makes itself."""

    def __init__(self, lasting: Callable[[], Iterable[Tensor]]) -> None:
        self._lasting = lasting
        self.nbytes = 0

    def another(self) -> Tape:
        return Tape(self._lasting)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        recording = _Recording({_place(t) for t in self._lasting()})
        try:
            with _Reads(), recording:
                work()
        finally:
            recording.undo()
        self.nbytes = max(self.nbytes, sum(t.untyped_storage().nbytes() for t in recording.made.values()))
        return recording.replay


class _Reads(HostReads):
    error = NotRecordable


class _Recording(TorchDispatchMode):
    """Runs the operations as they come, on the tensors themselves; what they overwrite is kept and put back."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else the first operation would import the whole compiler, which takes seconds."""
        return False

    def __init__(self, lasting: set[int]) -> None:
        super().__init__()
        self._lasting = lasting
        self._operations: list[tuple[Any, Any, Any, list[tuple[int, Tensor]]]] = []
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self.made: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._check(func, args, kwargs)
        self._keep(func, args, kwargs)
        given = {_place(t) for t in _tensors((args, kwargs))}
        out = func(*args, **kwargs)
        results = [(i, t) for i, t in enumerate(_tensors(out)) if _place(t) not in given]
        self.made.update({_place(t): t for _, t in results})
        if results or _written(func, args, kwargs):
            self._operations.append((func, args, kwargs, results))
        return out

    def _check(self, func: Any, args: Any, kwargs: Any) -> None:
        name = func.overloadpacket.__name__
        if name in READS:
            raise NotRecordable(f"{name} reads a tensor on the host")
        if name in SHAPED or str(func) == "aten.repeat_interleave.Tensor":
            raise NotRecordable(f"the shape of {name} depends on values")
        if name.startswith(("index", "_index_put", "_unsafe_index")) and any(t.dtype in (torch.bool, torch.uint8) for t in indices(args)):
            raise NotRecordable(f"{name} by a boolean tensor; its shape depends on values")
        if name in FROM_THE_HOST:
            raise NotRecordable(f"{name} copies numbers of the host into a tensor")
        for tensor in _tensors((args, kwargs)):
            if tensor.numel() and _place(tensor) not in self._lasting and _place(tensor) not in self.made:
                raise NotRecordable(f"{name} reads a tensor of shape {tuple(tensor.shape)} that this generation alone has")

    def _keep(self, func: Any, args: Any, kwargs: Any) -> None:
        for tensor in _written(func, args, kwargs):
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
            again = _tensors(func(*args, **kwargs))
            for i, result in results:
                result.copy_(again[i])


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Tensors that an operation changes in place, by its schema."""
    arguments = func._schema.arguments
    named = [*zip(arguments, args, strict=False), *((a, kwargs[a.name]) for a in arguments if a.name in kwargs)]
    return [t for argument, value in named if argument.alias_info is not None and argument.alias_info.is_write for t in _tensors(value)]
