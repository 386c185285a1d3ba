"""A dispatch mode that logs all operations and refuses those that a CUDA graph cannot hold.

It refuses reads on the host (``item``, ``tolist``, ``bool(tensor)``, ``numpy``, a copy to the host) and operations whose
result has a shape that depends on values (``nonzero``, ``masked_select``, indexing by a boolean tensor, ``unique``).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Container, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..cache.layout import Site, Step
from ..contract.method import Method
from ..roofline.flops import UncompiledMode
from .driver import Onlooker

READS = {"_local_scalar_dense", "item", "is_nonzero", "equal", "allclose"}
SHAPED = {"nonzero", "nonzero_numpy", "argwhere", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive",
          "unique_dim_consecutive", "bincount"}  # fmt: skip
# These read on the host without an operation that a dispatch mode sees.
UNSEEN = {"tolist", "numpy", "cpu", "__array__", "__bool__", "__int__", "__float__", "__index__", "__contains__"}

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
    """Logs every operation of ``passes``, as (name, shapes of inputs); with ``refuses``, raises NotCapturable.

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
