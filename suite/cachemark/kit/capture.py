"""Operations that a CUDA graph cannot hold, and an emulator of CUDA graphs on a CPU.

Refused are reads on the host (``item``, ``tolist``, ``bool(tensor)``, ``numpy``, a copy to the host) and operations whose result has a
shape that depends on values (``nonzero``, ``masked_select``, indexing by a boolean tensor, ``unique``). The emulator tests everything above
CUDA graphs without a device: capturing logs every operation with its arguments and leaves no effect; replaying runs the operations in order
on the captured tensors, without the Python code that made them. It also refuses numbers that Python writes into a tensor, and tensors that
no longer exist when the capture is replayed.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from types import EllipsisType, NoneType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..cache.arena import Memory
from ..cache.engines import Graph
from ..cache.layout import Site, Step
from ..contract.method import Method
from ..roofline.flops import UncompiledMode
from .driver import Onlooker

READS = {"_local_scalar_dense", "item", "is_nonzero", "equal", "allclose"}
SHAPED = {"nonzero", "nonzero_numpy", "argwhere", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive",
          "unique_dim_consecutive", "bincount"}  # fmt: skip
# These read on the host without an operation that a dispatch mode sees.
UNSEEN = {"tolist", "numpy", "cpu", "__array__", "__bool__", "__int__", "__float__", "__index__", "__contains__"}
FROM_THE_HOST = {"lift_fresh", "lift", "scalar_tensor"}

Operation = tuple[str, tuple[tuple[int, ...], ...]]


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run functions of ``torch.compile`` eagerly: a dispatch mode does not see into compiled kernels."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


class NotCapturable(AssertionError):
    """An operation that a captured step cannot hold."""


class Capture(UncompiledMode, Onlooker):
    """Logs every operation of ``passes`` as (name, input shapes); with ``refuses``, raises NotCapturable.

    As an onlooker it is on from the first site of a step to ``end_step``. Views are not logged: they launch nothing, and a full-length
    slice is another operation than a shorter one.
    """

    def __init__(self, passes: Container[int] = (), *, refuses: bool = True) -> None:
        super().__init__()
        self.passes, self.refuses, self.step = passes, refuses, -1
        self._open = ExitStack()
        self.log: dict[int, list[Operation]] = defaultdict(list)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.refuses and (reason := refusal(func, args)):
            raise NotCapturable(f"step {self.step}: {reason}")
        if all(result.alias_info is None or result.alias_info.is_write for result in func._schema.returns):
            self.log[self.step].append((str(func), tuple(tuple(t.shape) for t in tensors((args, kwargs)))))
        return func(*args, **kwargs)

    def before(self, method: Method, site: Site, step: Step) -> None:
        if step.index in self.passes and self.step != step.index:
            self.step = step.index
            if self.refuses:
                self._open.enter_context(HostReads())
            self._open.enter_context(self)

    def after_end(self, method: Method, step: Step) -> None:
        self._open.close()


class HostReads(TorchFunctionMode):
    """Refuses reads on the host that a dispatch mode does not see."""

    error: type[Exception] = NotCapturable

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in UNSEEN:
            raise self.error(f"{func.__name__} reads a tensor on the host")
        return func(*args, **(kwargs or {}))


def tensors(value: Any) -> list[Tensor]:
    """Return all tensors in nested lists, tuples and dictionaries, in order."""
    if isinstance(value, Tensor):
        return [value]
    flat: list[Tensor] = []
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        if isinstance(part, Tensor):
            flat.append(part)
        elif isinstance(part, list | tuple | dict):
            flat += tensors(part)
    return flat


def refusal(func: Any, args: Any) -> str:
    """Return why a graph cannot hold an operation; empty if it can."""
    name = func.overloadpacket.__name__
    if name in READS:
        return f"{name} reads a tensor on the host"
    if name in SHAPED or str(func) == "aten.repeat_interleave.Tensor":
        return f"the shape of {name} depends on values"
    if name.startswith(("index", "_index_put", "_unsafe_index")):
        indices = tensors([arg for arg in args[1:] if isinstance(arg, list | tuple)])
        if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
            return f"{name} by a boolean tensor; its shape depends on values"
    return ""


@contextmanager
def capturing(passes: Container[int], *, refuses: bool = True) -> Iterator[Capture]:
    """Yield a capture of these steps. ``refuses`` is false for a method that reads on the host."""
    capture = Capture(passes, refuses=refuses)
    try:
        yield capture
    finally:
        capture._open.close()


# -- the emulator -------------------------------------------------------------------------------------------------------
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
            if part.dim():  # a value for a single element is copied there
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
    emulator = CpuGraphs(lambda: [*weights, *memory.allocated(), *engine.storage])
    engine = memory.engine = Graph(emulator)
    return memory
