"""Memory of one generation: all tensors it keeps, by name and kind."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ..core.errors import BadPlugin
from .codec import NATIVE, Codec, Parts
from .engines import EAGER, Engine, TurnEngine

KINDS = ("slots", "workspace", "state")
"""What tensors of a memory count as: keys and values, the buffer that layers share, and a method's own state."""


class Memory:
    """Allocator for all tensors kept during a generation; byte counts are taken from it.

    It includes the engine that runs the passes. A second generation of the same case gets the same storage, zeroed, so that captured graphs
    stay valid.
    """

    def __init__(self, device: torch.device | str = "cpu", codec: Codec = NATIVE, engine: Engine = EAGER) -> None:
        self.device = torch.device(device)
        self.codec = codec
        self.engine = engine
        self.tensors: dict[str, tuple[str, Tensor]] = {}
        self._given: set[str] = set()
        self.constants: dict[int, Parts] = {}  # the codec's, by head_dim; not counted
        self._turns: dict[str, Memory] = {}
        self._freed: dict[str, int] = {}

    def another(self) -> Memory:
        """Return an empty memory for another batch of the same case."""
        return Memory(self.device, self.codec, self.engine.another())

    def parts(self, names: Iterable[str]) -> list[Memory]:
        """Return a view for each of several methods that share a generation.

        They have the same storage and engine under names of their own. They attend one after another and share the first one's workspace,
        which must be the largest.
        """
        workspace: dict[str, Tensor] = {}
        return [MemoryPart(self, name, workspace) for name in names]

    def turn(self, name: str) -> Memory:
        """Return the memory of one of the models that take turns; that of the others is freed.

        An engine that captures keeps all of them, since its passes refer to their tensors.
        """
        chosen = self._turns.setdefault(name, Memory(self.device, self.codec, TurnEngine(self.engine, name)))
        for other in self._turns.values() if type(self.engine) is Engine else ():
            if other is not chosen and other.tensors:
                other._freed = {kind: other.nbytes(kind) for kind in KINDS}
                other.tensors.clear()
        return chosen

    def zeros(self, name: str, shape: Iterable[int], dtype: torch.dtype, kind: str = "state") -> Tensor:
        """Return a zeroed tensor.

        ``kind``: where its bytes count, ``slots``, ``workspace`` or ``state`` (a method's). Raises BadPlugin for another kind.
        """
        _check_kind(name, kind)
        shape = tuple(shape)
        assert name not in self._given, f"{name} is requested twice in one generation"
        self._given.add(name)
        if name not in self.tensors:
            self.tensors[name] = (kind, torch.zeros(shape, dtype=dtype, device=self.device))
            return self.tensors[name][1]
        tensor = self.tensors[name][1]
        if tensor.shape != shape or tensor.dtype != dtype:
            raise ValueError(f"{name} was {tuple(tensor.shape)} {tensor.dtype}, now {shape} {dtype}: one Memory serves one case")
        return tensor.zero_()

    def pairs(self, name: str, shape: Iterable[int], head_dim: int, dtype: torch.dtype) -> tuple[Parts, Parts]:
        """Return zeroed key and value parts as the codec stores them, each ``shape`` × the part's width."""
        shape = tuple(shape)
        self.constants[head_dim] = self.codec.constants(head_dim, self.device)
        k, v = (tuple(self.zeros(f"{kind}.{name}.{i}", (*shape, width), part, "slots") for i, (width, part) in enumerate(widths))
                for kind, widths in (("k", self.codec.key_widths(head_dim, dtype)), ("v", self.codec.widths(head_dim, dtype))))
        return k, v

    def adopt(self, name: str, tensor: Tensor, kind: str) -> Tensor:
        """Count a tensor allocated elsewhere under this name; for the reference engine only.

        Raises BadPlugin as :meth:`zeros`.
        """
        _check_kind(name, kind)
        self.tensors[name] = (kind, tensor)
        return tensor

    def begin(self) -> None:
        """Start a generation: each tensor may be requested once more, and is zeroed then."""
        self._given.clear()

    def nbytes(self, *kinds: str) -> int:
        """Return the bytes allocated for these kinds; for all without any.

        Of models in turns, the most that any had.
        """
        own = sum(t.nbytes for kind, t in self.tensors.values() if not kinds or kind in kinds)
        turns = [turn.nbytes(*kinds) or sum(turn._freed.get(kind, 0) for kind in kinds or KINDS) for turn in self._turns.values()]
        return own + (max(turns, default=0) if type(self.engine) is Engine else sum(turns))

    def allocated(self) -> list[Tensor]:
        """Return all tensors that exist now, constants of the codec and those of models in turns too."""
        own = [*(tensor for _, tensor in self.tensors.values()), *(tensor for parts in self.constants.values() for tensor in parts)]
        return [*own, *(tensor for turn in self._turns.values() for tensor in turn.allocated())]

    def pointers(self) -> dict[str, int]:
        """Return the address of each tensor, equal for two generations of a case."""
        return {name: t.data_ptr() for name, (_, t) in self.tensors.items()}


def _check_kind(name: str, kind: str) -> None:
    if kind not in KINDS:
        raise BadPlugin(f"The memory of {name!r} is of the unknown kind {kind!r}.", remedy=f"Use {', '.join(KINDS[:-1])} or {KINDS[-1]}.")


class MemoryPart(Memory):
    """One method's part of a memory.

    Its tensors are counted in the ``whole``, which starts generations; ``workspace`` holds the buffers that the parts share.
    """

    def __init__(self, memory: Memory, name: str, workspace: dict[str, Tensor]) -> None:
        super().__init__(memory.device, memory.codec, memory.engine)
        self._whole, self._name, self._workspace = memory, name, workspace
        self.constants = memory.constants

    def zeros(self, name: str, shape: Iterable[int], dtype: torch.dtype, kind: str = "state") -> Tensor:
        if kind != "workspace":
            return self._whole.zeros(f"{self._name}.{name}", shape, dtype, kind)
        shape = tuple(shape)
        if name not in self._workspace:
            self._workspace[name] = self._whole.zeros(name, (math.prod(shape),), dtype, kind)
        assert math.prod(shape) <= self._workspace[name].numel(), f"{name} of the first part is too small"
        return self._workspace[name][: math.prod(shape)].view(shape)

    def begin(self) -> None:
        """Do nothing, since the whole memory has already started the generation."""
