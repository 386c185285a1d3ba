"""The machine to measure on, the store to read, and callbacks for progress, without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.calls import listed
from ..core.errors import UnknownName, Unsupported
from ..core.result import Outcome
from ..core.spec import Case
from ..core.threads import default_threads
from ..store.db import Store
from ..store.location import has_password, located

if TYPE_CHECKING:
    from ..plans.planned import Planned, Prepared
    from ..plans.schema import Plan
    from ..trial.executors.local import Executor
    from .time_left import TimeLeft

DEFAULT_STORE = "cachemark.sqlite"


@contextmanager
def reading(store: Store | str | Path) -> Iterator[Store]:
    """Open an existing store for reading; an open one stays open."""
    if isinstance(store, Store):
        yield store
    else:
        with Store.open(store, create=False, read_only=True) as opened_store:
            yield opened_store


@contextmanager
def opened(store: str | Path | None) -> Iterator[Store | None]:
    """Open a store for reading, or yield None if its file does not exist yet."""
    if store is None or (isinstance(location := located(store), Path) and not location.exists()):
        yield None
    else:
        with reading(store) as opened_store:
            yield opened_store


def reveals_password(store: str) -> bool:
    """Return whether the location of a store has a password in it.

    Raises BadStore for one that is not a location.
    """
    return not store.startswith("@") and has_password(located(store))


class RunWatcher:
    """Callbacks for run progress, for example to drive a progress bar; these do nothing."""

    def planned(self, cases: Sequence[Prepared], time_left: TimeLeft) -> None:
        """Called once before the first case, with all cases and a live estimate of the remaining time."""

    def started(self, case: Case) -> None:
        """Called when a case starts."""

    def advanced(self, case: Case) -> None:
        """Called after each batch that a case generates."""

    def ended(self, outcome: Outcome) -> None:
        """Called after a result has been stored."""


UNWATCHED = RunWatcher()


@dataclass(frozen=True)
class Machine:
    """A device, ``cpu`` or ``cuda``, with its threads and limits.

    ``threads``: by default $OMP_NUM_THREADS, else all processors.
    ``gpus``: UUIDs, their prefixes, numbers, or ``all``; empty for the first free one. ``clock`` (MHz) and ``memory_cap`` (bytes) are 0 if
    unset. Raises UnknownName for another device.
    """

    device: str = "cpu"
    threads: int = field(default_factory=default_threads)
    gpus: tuple[str, ...] = ()
    clock: int = 0
    memory_cap: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "gpus", listed(self.gpus))
        if self.device not in ("cpu", "cuda"):
            raise UnknownName(f"Unknown device {self.device!r}. Known: cpu, cuda.",
                              remedy="Select a GPU with: --device cuda --gpu 1, or Machine(\"cuda\", gpus=(\"1\",)).")

    @classmethod
    def parse(cls, machine: Machine | str) -> Machine:
        """Return the machine, or the device of that name with defaults."""
        return cls(machine) if isinstance(machine, str) else machine

    def options(self) -> list[str]:
        """Return it as options of the command line."""
        cap = f"{self.memory_cap >> 20}MiB" if self.memory_cap % 2**20 == 0 else f"{self.memory_cap / 1e6!r}MB"
        return ["--device", self.device, "--threads", str(self.threads), *(word for gpu in self.gpus for word in ("--gpu", gpu)),
                *(["--lock-clocks", str(self.clock)] if self.clock else []), *(["--memory-cap", cap] if self.memory_cap else [])]

    @property
    def present(self) -> bool:
        """Return whether this computer has the device."""
        import torch

        return self.device == "cpu" or torch.cuda.is_available()

    def require(self) -> None:
        """Raise Infrastructure if the device is not available."""
        if not self.present:
            from ..machine.environment import no_cuda

            raise no_cuda("Use --device cpu; see `cachemark doctor`.")

    @contextmanager
    def places(self) -> Iterator[Executor]:
        """Lease the devices and yield their executor."""
        from ..trial.executors.local import local

        with local(self.device, self.threads, names=self.gpus, clock=self.clock) as places:
            yield places


def checked(
    plan: Plan | str | Path, machine: Machine | str, plugins: Sequence[str | Path], methods: Sequence[str], searches: bool = False,
    *, present: bool = True,
) -> tuple[Machine, Plan, tuple[str, ...], list[Planned]]:
    """Return machine, plan, plug-in files and cases, all validated before a store is opened.

    ``searches``: whether the largest batch is searched for, which needs a memory limit on a CPU; ``present``: whether the device must be
    here.
    """
    from ..plans.expand import expand
    from ..plans.schema import prepare

    machine, (loaded, files) = Machine.parse(machine), prepare(plan, plugins, methods)
    if present:
        machine.require()
    if (searches or loaded.searches) and machine.device == "cpu" and not machine.memory_cap:
        raise Unsupported("The largest batch on a CPU needs a limit.", remedy="Set one: add --memory-cap, such as 2GiB.")
    return machine, loaded, files, expand(loaded, machine.device)
