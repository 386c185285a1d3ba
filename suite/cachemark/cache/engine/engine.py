"""Interface of engines, and the eager engine.

The generation loops pass every step to the engine of their :class:`~cachemark.cache.arena.Memory`, with a key of all that the host knows of
it. What differs between steps of one key is an input: a tensor or number.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

from torch import Tensor

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


class Engine(Protocol):
    """Runs the passes of the generations of one case."""

    def hold(self, name: str, tensor: Tensor) -> Tensor:
        """Copy a tensor to lasting storage, for values read by every pass but not passed as inputs."""

    def run(self, key: Hashable, work: Work, inputs: tuple[Any, ...], state: HostState) -> tuple[Tensor, ...]:
        """Run a pass with its ``inputs``. The outputs are valid until the next pass."""

    def another(self) -> Engine:
        """Return an engine of this kind for another case."""


class Eager:
    """Runs every pass as written."""

    def hold(self, name: str, tensor: Tensor) -> Tensor:
        return tensor

    def run(self, key: Hashable, work: Work, inputs: tuple[Any, ...], state: HostState) -> tuple[Tensor, ...]:
        return work(*inputs)

    def another(self) -> Eager:
        return self


EAGER = Eager()
