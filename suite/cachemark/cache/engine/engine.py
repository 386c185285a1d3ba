"""Engines run the passes of a generation: one after the other as written, or recorded once and repeated.

The loops of the models hand every pass to the engine of their :class:`~cachemark.cache.arena.Memory`, with a key that says all that
the host knows of the pass. What differs between passes of one key goes in as tensors and numbers, never through Python.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

from torch import Tensor

Work = Callable[..., tuple[Tensor, ...]]
"""One pass: takes the inputs it is run with and gives its outputs. It may read tensors that live as long as the engine, change those
of the memory, and move the host's own state, :attr:`HostState.lengths`; nothing else may outlast it."""


class HostState(Protocol):
    """State of a generation on the host: a method."""

    @property
    def lengths(self) -> tuple[tuple[int, ...], ...]:
        """Live entries of every bank's runs of rows."""

    @lengths.setter
    def lengths(self, lengths: tuple[tuple[int, ...], ...]) -> None: ...


class Engine(Protocol):
    """Runs passes. One engine serves the generations of one case."""

    def hold(self, name: str, tensor: Tensor) -> Tensor:
        """Copy a tensor to storage that lasts, for values that every pass of this generation reads and no pass is given."""

    def run(self, key: Hashable, work: Work, inputs: tuple[Any, ...], state: HostState) -> tuple[Tensor, ...]:
        """Run a pass with its ``inputs``, tensors or numbers. The outputs are valid until the next pass is run."""

    def another(self) -> Engine:
        """An engine of this kind for another case."""


class Eager:
    """Runs every pass as it is written."""

    def hold(self, name: str, tensor: Tensor) -> Tensor:
        return tensor

    def run(self, key: Hashable, work: Work, inputs: tuple[Any, ...], state: HostState) -> tuple[Tensor, ...]:
        return work(*inputs)

    def another(self) -> Eager:
        return self


EAGER = Eager()
