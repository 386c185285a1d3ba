"""Engines that run the passes of a generation: eagerly, or captured once and replayed without Python.

The generation loops pass every step to the engine of their :class:`~cachemark.cache.arena.Memory`, with a key of everything that the host
knows about it. Steps with the same key differ only in their inputs (tensors or numbers).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from ..core.errors import Unsupported

AUTO, GRAPH = "auto", "graph"  # the former is a plan's word: its cases have the engine that it becomes
Replay = Callable[[], object]
PLAIN = (int, float, str, bool, tuple, type(None))
UNSET = object()
Work = Callable[..., tuple[Tensor, ...]]
"""One pass: takes the inputs it is run with and gives its outputs. It may read tensors that live as long as the engine, change those
of the memory, and move the host's own state, :attr:`HostState.lengths`; nothing else may outlast it."""


class HostState(Protocol):
    """Host state of a generation: a method."""

    @property
    def lengths(self) -> tuple[tuple[int, ...], ...]:
        """Live entries of every bank's runs of rows."""

    @lengths.setter
    def lengths(self, lengths: tuple[tuple[int, ...], ...]) -> None: ...


class Engine:
    """Runs the passes of the generations of one case, each as it is written."""

    def hold(self, name: str, tensor: Tensor) -> Tensor:
        """Return a tensor in lasting storage, for values read by every pass but not passed as inputs."""
        return tensor

    def run(self, key: Hashable, work: Work, inputs: tuple[Any, ...], state: HostState) -> tuple[Tensor, ...]:
        """Run a pass with its ``inputs``. The outputs are valid until the next pass."""
        return work(*inputs)

    def another(self) -> Engine:
        """Return an engine of this kind for another case."""
        return self


EAGER = Engine()


class TurnEngine(Engine):
    """The ``engine`` of models that take turns, as one sees it: keys and constants have its name."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine, self.name = engine, name

    def hold(self, name: str, tensor: Tensor) -> Tensor:
        return self.engine.hold(f"{self.name}.{name}", tensor)

    def run(self, key: Hashable, work: Work, inputs: tuple[Any, ...], state: HostState) -> tuple[Tensor, ...]:
        return self.engine.run((self.name, key), work, inputs, state)


class GraphBackend(Protocol):
    """Captures work for replay: CUDA graphs, or their CPU emulator in tests."""

    def capture(self, work: Callable[[], None]) -> Replay:
        """Capture ``work`` without a lasting effect and return its replay.

        Raises RuntimeError for work that cannot be repeated, and torch.OutOfMemoryError.
        """

    @property
    def nbytes(self) -> int:
        """Bytes of the captured graphs' intermediate results."""

    def another(self) -> GraphBackend:
        """Return an independent backend of this kind."""


@dataclass(frozen=True)
class CapturedPass:
    """A captured pass: its inputs, its outputs, and the host state after it."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    lengths: tuple[tuple[int, ...], ...]
    replay: Replay


class Graph(Engine):
    """Engine that runs a pass eagerly when its key is new, then captures it; later passes replay it.

    Two passes have one key if the caller's key, the live lengths and the input shapes are equal. Inputs are copied to storage shared by all
    captured graphs, numbers as 0-dim tensors; outputs are copied from the pool to shared storage, so that any order of replay is safe.

    Once memory runs out during a capture, further passes run eagerly (counted in ``missed``). If not even one can be captured, the case is
    out of memory.
    """

    def __init__(self, backend: GraphBackend, device: torch.device | str = "cpu") -> None:
        self._backend = backend
        self._device = torch.device(device)
        self._captured: dict[Hashable, CapturedPass] = {}
        self._buffers: dict[Hashable, Tensor] = {}
        self._constants: dict[str, Tensor] = {}
        self._full = False
        self.missed = 0
        self.seconds = 0.0

    @property
    def captured(self) -> int:
        """Number of captured passes."""
        return len(self._captured)

    @property
    def nbytes(self) -> int:
        """Bytes of the pool and of the storage of inputs and outputs."""
        return self.pool_bytes + sum(tensor.nbytes for tensor in self.storage)

    @property
    def pool_bytes(self) -> int:
        """Bytes of the pool alone, which the allocator reports as free but nothing else can use."""
        return self._backend.nbytes

    @property
    def storage(self) -> Iterable[Tensor]:
        """All tensors that feed captured passes or receive their outputs."""
        return [*self._constants.values(), *self._buffers.values()]

    def another(self) -> Graph:
        return Graph(self._backend.another(), self._device)

    def hold(self, name: str, tensor: Tensor) -> Tensor:
        """Store the first tensor of a name and copy later ones into it; raise ValueError for another shape."""
        constant = self._constants.get(name)
        if constant is None:
            constant = self._constants[name] = tensor
        elif constant.shape != tensor.shape or constant.dtype != tensor.dtype:
            raise ValueError(f"{name} was {tuple(constant.shape)} {constant.dtype}, now {tuple(tensor.shape)}: one engine serves one case")
        else:
            constant.copy_(tensor)
        return constant

    def run(self, key: Hashable, work: Work, inputs: tuple[Any, ...], state: HostState) -> tuple[Tensor, ...]:
        capture_key = key, state.lengths, *(x.shape if isinstance(x, Tensor) else None for x in inputs)
        captured = self._captured.get(capture_key)
        if captured is None:
            return self._first(capture_key, work, inputs, state)
        self._feed(captured.inputs, inputs)
        captured.replay()
        state.lengths = captured.lengths
        return captured.outputs

    @staticmethod
    def _feed(places: tuple[Tensor, ...], inputs: tuple[Any, ...]) -> None:
        for place, value in zip(places, inputs, strict=True):
            place.copy_(value) if isinstance(value, Tensor) else place.fill_(value)

    def _first(self, key: Hashable, work: Work, inputs: tuple[Any, ...], state: HostState) -> tuple[Tensor, ...]:
        """Run a pass eagerly on the shared inputs, then capture it."""
        fed = tuple(self._input(i, value) for i, value in enumerate(inputs))
        self._feed(fed, inputs)
        before, saved = state.lengths, _state(state)
        out = work(*fed)
        _check(state, saved)
        if self._full:
            self.missed += 1
            return out
        results = tuple(self._buffer("out", i, x) for i, x in enumerate(out))
        self._feed(results, out)
        lengths, state.lengths = state.lengths, before
        replay = self._capture(lambda: self._feed(results, work(*fed)), state)
        state.lengths = lengths
        if replay is not None:
            self._captured[key] = CapturedPass(fed, results, lengths, replay)
        return results

    def _capture(self, once: Callable[[], None], state: HostState) -> Replay | None:
        began = perf_counter()
        try:
            return self._backend.capture(once)
        except torch.OutOfMemoryError as error:
            if not self._captured:
                raise torch.OutOfMemoryError(f"The memory does not fit one captured pass: {_first_line(error)}. Lower the batch, or "
                                             f"use engine = \"eager\".") from error
            self._full = True
            self.missed += 1
            return None
        except RuntimeError as error:
            raise Unsupported(f"{type(state).__name__}: a pass cannot be captured: {_first_line(error)}",
                              remedy="Use engine = \"eager\".") from error
        finally:
            self.seconds += perf_counter() - began

    def _input(self, number: int, value: Any) -> Tensor:
        if not isinstance(value, Tensor):
            value = torch.zeros((), dtype=torch.float32 if isinstance(value, float) else torch.int64, device=self._device)
        return self._buffer("in", number, value)

    def _buffer(self, kind: str, number: int, like: Tensor) -> Tensor:
        key = kind, number, like.shape, like.dtype
        if key not in self._buffers:
            self._buffers[key] = torch.empty_like(like, memory_format=torch.contiguous_format)
        return self._buffers[key]


def _state(state: HostState) -> dict[str, Any]:
    """Return the host attributes of a method, with lists and dictionaries copied."""
    return {name: dict(enumerate(value)) if isinstance(value, list) else dict(value) if isinstance(value, dict) else value
            for name, value in vars(state).items()}


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    return a is b or (type(a) is type(b) and isinstance(a, PLAIN) and a == b)


def _check(state: HostState, saved: dict[str, Any]) -> None:
    """Raise Unsupported if the pass has changed host attributes, which a replay would not."""
    now = _state(state)
    changed = sorted(name for name in saved.keys() | now.keys() if not _same(saved.get(name, UNSET), now.get(name, UNSET)))
    if changed:
        raise Unsupported(f"{type(state).__name__}: a pass changes {', '.join(changed)} on the host, which a captured pass would not.",
                          remedy="Derive host attributes from the step, or store them in a tensor from memory.")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class CudaGraphs:
    """CUDA graphs that share one memory pool.

    One of them runs at a time and none keeps a result in the pool. ``nbytes`` is the device memory of the pool; the driver's own storage
    for graph nodes is invisible to the allocator and not counted.
    """

    def __init__(self, device: torch.device | str, stream: torch.cuda.Stream | None = None) -> None:
        self._device = torch.device(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = stream or torch.cuda.Stream(self._device)
        self.nbytes = 0

    def another(self) -> CudaGraphs:
        """Return a backend with its own pool on the same stream, which owns the library workspaces."""
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


# -- engines by their names in plans ------------------------------------------------------------------------------------
def refused(name: str, device: str) -> str:
    """Return why an engine does not run on a device, or ""."""
    return f"the graph engine captures CUDA graphs, and the device is {device!r}" if name == GRAPH and device == "cpu" else ""


def engine(name: str, device: str) -> Engine:
    """Return a new engine for one case.

    ``eager`` and ``reference`` run passes as written; the latter differs by its methods and models. Raises Unsupported.
    """
    if name != GRAPH:
        return EAGER
    if reason := refused(name, device):
        raise Unsupported(f"{reason[0].upper()}{reason[1:]}.", remedy='Use engine = "eager".')
    return Graph(CudaGraphs(device), torch.device(device))
