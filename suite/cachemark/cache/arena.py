"""The memory of one generation: every tensor that it keeps, by name and kind."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from .codec import NATIVE, Codec
from .engine.engine import EAGER, Engine


class Memory:
    """An arena: every tensor that a generation keeps, by name, and what bytes are counted from.

    It goes with the engine that runs the passes. A second generation of a case asks for the same names and gets the same storage,
    zeroed, so that what was recorded of the first one holds.
    """

    def __init__(self, device: torch.device | str = "cpu", codec: Codec = NATIVE, engine: Engine = EAGER) -> None:
        self.device = torch.device(device)
        self.codec = codec
        self.engine = engine
        self.tensors: dict[str, tuple[str, Tensor]] = {}
        self._given: set[str] = set()

    def another(self) -> Memory:
        """An empty arena for another batch of the same case."""
        return Memory(self.device, self.codec, self.engine.another())

    def zeros(self, name: str, shape: Iterable[int], dtype: torch.dtype, kind: str = "state") -> Tensor:
        """A zeroed tensor. ``kind`` says where its bytes are counted: ``slots``, ``stage`` or ``state`` (a method's)."""
        shape = tuple(shape)
        assert name not in self._given, f"{name} is asked for twice in one generation"
        self._given.add(name)
        if name not in self.tensors:
            self.tensors[name] = (kind, torch.zeros(shape, dtype=dtype, device=self.device))
            return self.tensors[name][1]
        tensor = self.tensors[name][1]
        if tensor.shape != shape or tensor.dtype != dtype:
            raise ValueError(f"{name} was {tuple(tensor.shape)} {tensor.dtype}, now {shape} {dtype}: one Memory serves one case")
        return tensor.zero_()

    def adopt(self, name: str, tensor: Tensor, kind: str) -> Tensor:
        """Count a tensor that was made elsewhere, in place of the one of that name so far: for the reference engine only."""
        self.tensors[name] = (kind, tensor)
        return tensor

    def begin(self) -> None:
        """A generation starts: each tensor may be asked for once more, and is zeroed then."""
        self._given.clear()

    def nbytes(self, kind: str) -> int:
        """Bytes allocated for that kind."""
        return sum(t.nbytes for counted, t in self.tensors.values() if counted == kind)

    def pointers(self) -> dict[str, int]:
        """Address of each tensor: equal for two generations of a case."""
        return {name: t.data_ptr() for name, (_, t) in self.tensors.items()}
