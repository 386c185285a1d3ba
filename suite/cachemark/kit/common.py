"""The base class of examples of a method: a method on a small model."""

from __future__ import annotations

import functools
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.codecs import CODECS
from ..cache.layout import Layout, Site, Step
from ..contract.heads import PerHead
from ..contract.method import Method
from ..core.errors import Unsupported
from ..core.files import umask
from ..core.spec import FLOPS
from ..methods.base import calibrations
from ..methods.base.calibrations import Calibrated
from .driver import Moment, Onlooker, Outputs, Record, watched
from .findings import Example, KitFinding
from .oracle import Shadow

DECIDES = "The method declares that it reads on the host (capturable = False)."
Findings = Iterator[KitFinding]
SDPA = torch.backends.cuda
GRAD = "torch's grad mode"  # a generation runs in inference mode
SETTINGS: tuple[tuple[str, Callable[[], Any], Callable[[Any], Any]], ...] = (  # for the whole process
    ("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    ("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
    ("torch's matmul precision (TF32)", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    ("torch's deterministic flag", torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (GRAD, torch.is_grad_enabled, torch._C._set_grad_enabled),
    ("torch's autocast on the CPU", lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
    ("the flash backend of SDPA", SDPA.flash_sdp_enabled, SDPA.enable_flash_sdp),
    ("the memory-efficient backend of SDPA", SDPA.mem_efficient_sdp_enabled, SDPA.enable_mem_efficient_sdp),
    ("the math backend of SDPA", SDPA.math_sdp_enabled, SDPA.enable_math_sdp),
    ("the folder", lambda: os.readlink("/proc/self/cwd"), os.chdir),
    ("the umask", lambda: f"{umask():03o}", lambda mask: os.umask(int(mask, 8))),
)


@contextmanager
def settings_restored() -> Iterator[list[str]]:
    """Restore the settings of torch and the process on exit; the list then describes each that was changed inside."""
    before, changes = [read() for _, read, _ in SETTINGS], list[str]()
    try:
        yield changes
    finally:
        for (name, read, write), old in zip(SETTINGS, before, strict=True):
            if (new := read()) != old:
                changes.append(f"{name} ({old} → {new})")
                write(old)


@dataclass
class KitRun:
    """A generation: outputs of attention by step and site, ``tokens``, and ``logits`` of each step.

    Logits are a list of tensors, for next-token methods one tensor (steps, batch, vocab); None if there are none. ``changes`` describes the
    settings of torch and the process that were changed, and restored after it.
    """

    method: Method
    memory: Memory
    answers: Outputs
    tokens: Any = None
    logits: Any = None
    moments: list[Moment] = field(default_factory=list)
    shadow: Shadow = field(default_factory=Shadow)
    changes: list[str] = field(default_factory=list)


class SettingsWatch(Onlooker):
    """Describes each setting of torch and the process that differs during a step from what it was before the generation."""

    def __init__(self) -> None:
        self._initial, self.changes = [read() for _, read, _ in SETTINGS], dict[str, None]()

    def before_end(self, method: Method, step: Step) -> None:
        for (name, read, _), old in zip(SETTINGS, self._initial, strict=True):
            if (new := read()) != old and name != GRAD:
                self.changes[f"{name} ({old} → {new})"] = None

    def after(self, method: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        self.before_end(method, step)


class KitCell(Example):
    """A method on a model."""

    records: ClassVar[bool] = False

    @property
    def other_seeds(self) -> Sequence[int]:
        """Seeds of as many other samples."""
        return tuple(seed + 7 for seed in self.seeds)

    @property
    def parameters(self) -> Iterable[Tensor]:
        """The tensors of the model, if there is one."""
        return ()

    def memory(self) -> Memory:
        """Return an empty memory."""
        return Memory()

    @abstractmethod
    def tight(self) -> Method:
        """Return the method at a budget that makes it evict."""

    @abstractmethod
    def generate(self, method: Method, memory: Memory, seeds: Sequence[int], forced: Tensor | None, with_logits: bool) -> KitRun:
        """Generate these samples, with the logits of a fidelity pass or as timed."""

    def run(self, method: Method, *watches: Onlooker, memory: Memory | None = None, seeds: Sequence[int] | None = None,
            forced: Tensor | None = None, bare: bool = False, with_logits: bool = True) -> KitRun:  # fmt: skip
        """Generate with ``watches`` and, if ``records`` is set and ``bare`` is not, a record."""
        record = Record()
        watches = (*watches, record) if self.records and not bare else watches
        subject = watched(method, *watches) if watches else method
        with settings_restored() as changes:
            ran = self.generate(subject, memory or self.memory(), seeds or self.seeds, forced, with_logits)
        return replace(ran, changes=changes, answers=ran.answers or record.answers, moments=record.moments)


@dataclass(frozen=True)
class MethodCell(KitCell):
    """One method in one mode, with one codec, on one kind of attention."""

    records = True
    shadowed: ClassVar[bool] = True  # the oracle can follow it

    cls: type[Method]
    mode: tuple[tuple[str, Any], ...] = field(hash=False)  # values may be lists
    codec: str
    attention: str = "mha"

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """Shape of the reference run."""

    @property
    @abstractmethod
    def passes(self) -> set[int]:
        """Indices of steps that cover every kind of step."""

    @abstractmethod
    def at(self, budget: Fraction) -> Method:
        """Return the method at a budget. Raises BadBudget."""

    @abstractmethod
    def neutral(self) -> Method:
        """Return the method at full budget with neutral parameters. Raises Unsupported without them."""

    @property
    def record(self) -> KitRun:
        """The reference run at the tight budget, recorded and compared with the oracle."""
        return recorded(self)

    def full(self, like: Method) -> KitRun:
        """Return the full cache's run, with the attention function that the method ``like`` needs."""
        return _full(self if issubclass(self.cls, PerHead) else replace(self, cls=Method, mode=()), like.needs_mass)

    @property
    def label(self) -> str:
        """Method, parameters, codec and attention."""
        return "-".join([self.cls.name, *(f"{parameter}={value}" for parameter, value in self.mode), self.codec, self.attention])

    def blocks(self, layers: int, heads: int) -> str:
        """Describe a stack of transformer blocks."""
        kind = "" if self.attention == "mha" or heads == 1 else f" on {min(heads, 2)} K/V heads"
        return f"{layers} layer{'s' * (layers > 1)} of {heads} head{'s' * (heads > 1)}{kind}"

    def memory(self) -> Memory:
        """Return an empty memory with the codec."""
        return Memory("cpu", CODECS[self.codec])


SHARES = (Fraction(1, 2), Fraction(3, 5), Fraction(3, 4), Fraction(9, 10))  # of an image's FLOPs, the smallest supported one is taken


@dataclass(frozen=True)
class FlopsCell(MethodCell):
    """One method whose budget is a share of an image's FLOPs, with the parameters of its mode."""

    shadowed: ClassVar[bool] = False

    def at(self, budget: Fraction) -> Method:
        own = calibration(self.cls, self.layout)
        return self.cls.build({**own, **self.cls.build(own).fit(budget, self.layout)})

    def tight(self) -> Method:
        return self.cls.build({**calibration(self.cls, self.layout), **dict(self.mode)})

    def neutral(self) -> Method:
        method = self.at(Fraction(1))
        return self.cls.build({**method.parameters(), **neutral_parameters(self.cls)})


def smallest_share(cls: type[Method], mode: tuple[tuple[str, Any], ...], layout: Layout) -> tuple[tuple[str, Any], ...] | None:
    """Return a mode with the parameters of the smallest supported share, or None if no share is supported."""
    for budget in SHARES:
        try:
            parameters = {**cls.build(dict(mode)).fit(budget, layout), **dict(mode)}
            cls.build(parameters).resolve(layout)
        except Exception:  # whatever a plug-in raises
            continue
        return tuple(parameters.items())
    return None


@functools.cache
def recorded(cell: MethodCell) -> KitRun:
    """Return the reference run, computed once."""
    shadow = Shadow()
    watches = (shadow,) if cell.shadowed else ()
    return replace(cell.run(cell.tight(), *watches), shadow=shadow)


@dataclass
class FullCache(Method):
    """The full cache; with ``mass``, on the attention function that returns probabilities."""

    mass: bool = False

    @property
    def needs_mass(self) -> bool:
        return self.mass


@functools.cache
def _full(cell: MethodCell, mass: bool) -> KitRun:
    return cell.run(FullCache(mass))


def calibration(cls: type[Method], layout: Layout) -> dict[str, Any]:
    """Return the parameter of a calibration with random facts; empty for a method that needs none."""
    if not issubclass(cls, Calibrated):
        return {}
    own_tables = not layout.scales or cls.budget_kind == FLOPS
    tables = cls().tables({}, layout) if own_tables else calibrations.all_tables(layout)
    draw = torch.Generator().manual_seed(7)
    facts = {name: torch.rand(sizes, generator=draw).tolist() for name, sizes in tables.items()}
    return {"calibration": calibrations.remember(cls.name, {"model": "of random facts", **calibrations.shape_of(layout), **facts})}


def neutral_parameters(cls: type[Method]) -> Mapping[str, Any]:
    """Return the parameters that make a method neutral at full budget. Raises Unsupported."""
    if cls.neutral is None:
        raise Unsupported(f"{cls.name} declares that it never equals the full cache.")
    return cls.neutral


def poison(part: Tensor) -> None:
    """Fill a tensor with NaN, or of an integer type with a number that no entry has."""
    part.fill_(float("nan") if part.is_floating_point() else 113)


@dataclass
class Poison(Onlooker):
    """Overwrites all dead storage before each site of a step, and before ``end_step``."""

    spoiled: int = 0

    def before(self, method: Method, site: Site, step: Step) -> None:
        self.before_end(method, step)
        if (workspace := method.shown if isinstance(method, PerHead) else method.workspace) is not None:
            poison(workspace.k)
            poison(workspace.v)
        if isinstance(method, PerHead):
            poison(method.shown.visual)

    def before_end(self, method: Method, step: Step) -> None:
        if isinstance(method, PerHead):
            for ragged in method.ragged.values():
                self._spoil([part[:, ragged.live :] for part in (*ragged.k, *ragged.v, ragged.visual)])
        for slot in method.slots.values():
            for run, live in zip(slot.bank.runs, slot.live, strict=True):
                self._spoil([part[run.rows, :, live:] for part in (*slot.k, *slot.v, slot.visual)])

    def _spoil(self, dead: Sequence[Tensor]) -> None:
        for part in dead:
            poison(part)
            self.spoiled += part.numel()
