"""A machine to measure on: the device, its threads and limits, and the executor that these mean. Naming one needs no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..core.errors import Infrastructure, UnknownName, Unsupported

if TYPE_CHECKING:
    from ..store.db import Store
    from ..trial.executors.local import Executor


@dataclass(frozen=True)
class Machine:
    """A device, ``cpu`` or ``cuda``, with its threads and limits. ``gpus`` are UUIDs, prefixes of them, numbers or ``all``; empty means the
    first free one. ``clock`` in MHz and ``memory_cap`` in bytes are 0 where they are left alone. ``executor`` is ``local`` or ``ray``,
    ``address`` that of a Ray cluster. Raises UnknownName for another device, and Unsupported for GPUs or a clock on a cluster."""

    device: str = "cpu"
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    gpus: tuple[str, ...] = ()
    clock: int = 0
    memory_cap: int = 0
    executor: str = "local"
    address: str = "auto"

    def __post_init__(self) -> None:
        if self.device not in ("", "cpu", "cuda"):  # empty until a command has found out which
            raise UnknownName(f"Unknown device {self.device!r}. Known: cpu, cuda.",
                              remedy="Name a GPU beside it: --device cuda --gpu 1, or Machine(\"cuda\", gpus=(\"1\",)).")
        if self.executor == "ray" and (self.gpus or self.clock):
            raise Unsupported("Ray chooses the devices of its cluster, so --gpu and --lock-clocks have no effect with --executor ray.",
                              remedy="Leave them out.")

    @classmethod
    def of(cls, given: Machine | str) -> Machine:
        """A machine, or the device that is named with everything else left at its default."""
        return cls(given) if isinstance(given, str) else given

    def require(self) -> None:
        """Raise Infrastructure where the device is not here."""
        import torch

        if self.device == "cuda" and self.executor == "local" and not torch.cuda.is_available():
            raise Infrastructure("--device cuda was given, but torch sees no CUDA device.",
                                 remedy="Use --device cpu; see `cachemark doctor`.")

    @contextmanager
    def places(self, store: Store | None = None) -> Iterator[Executor]:
        """The executor, its devices leased for as long as the block lasts."""
        if self.executor == "ray":
            from ..trial.executors.ray import cluster

            with cluster(self.address, self.device) as workers:
                yield workers
            return
        from ..trial.executors.local import local

        with local(self.device, self.threads, names=self.gpus, register=store, clock=self.clock) as places:
            yield places
