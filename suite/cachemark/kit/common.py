"""Base class of the cells of all families: a method on a small model, run with and without a record."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.codec import CODECS
from ..cache.layout import Layout, Site, Step
from ..cache.slot import Slot
from ..contract.heads import PerHead
from ..contract.method import Method
from ..core.errors import Unsupported
from ..methods.base import calibrations
from ..methods.base.calibrated import Calibrated
from .driver import Moment, Onlooker, Outputs, Record, slots_of, stages_of, watched
from .findings import Flaw
from .oracle import Shadow

DECIDES = "It says that it decides on the host (capturable)."
Found = Iterator[Flaw]


@dataclass
class KitRun:
    """A generation: the answers of attention by pass and site, and of a model its ``tokens`` and (passes, batch, vocab) ``logits``."""

    method: Method
    memory: Memory
    answers: Outputs
    tokens: Tensor | None = None
    logits: Tensor | None = None
    moments: list[Moment] = field(default_factory=list)
    shadow: Shadow = field(default_factory=Shadow)


@dataclass(frozen=True)
class MethodCell(ABC):
    """One method in one mode, with one codec, on one kind of attention."""

    cls: type[Method]
    mode: tuple[tuple[str, Any], ...] = field(hash=False)  # its values may be lists
    codec: str
    attention: str = "mha"

    @property
    @abstractmethod
    def size(self) -> str:
        """The model or layout that it runs on, in words."""

    @property
    @abstractmethod
    def seeds(self) -> Sequence[int]:
        """Those of the samples of its reference run."""

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """Shape of its reference run."""

    @property
    @abstractmethod
    def passes(self) -> set[int]:
        """Numbers of passes of which every kind is among."""

    @property
    def parameters(self) -> Iterable[Tensor]:
        """The weights of its model, where it has one."""
        return ()

    @abstractmethod
    def tight(self) -> Method:
        """The method at a budget that makes it work."""

    @abstractmethod
    def neutral(self) -> Method:
        """The method at the whole budget, with the knobs that make it the full cache. Unsupported where it says that there are none."""

    @abstractmethod
    def generate(self, method: Method, memory: Memory, seeds: Sequence[int], forced: Tensor | None, shown: bool) -> KitRun:
        """One generation of these samples. ``shown``: the model shows what it draws from, as in a fidelity pass, else it runs as timed."""

    def run(self, method: Method, *watches: Onlooker, memory: Memory | None = None, seeds: Sequence[int] | None = None,
            forced: Tensor | None = None, bare: bool = False, shown: bool = True) -> KitRun:  # fmt: skip
        """A generation, seen by ``watches`` and recorded, or ``bare`` seen by these alone. ``shown``: as of :meth:`generate`."""
        record = Record()
        watches = watches if bare else (*watches, record)
        seen = watched(method, *watches) if watches else method
        ran = self.generate(seen, memory or self.memory(), seeds or self.seeds, forced, shown)
        return replace(ran, answers=ran.answers or record.answers, moments=record.moments)

    @property
    def record(self) -> KitRun:
        """The reference run at the tight budget, recorded and shadowed by the oracle."""
        return recorded(self)

    def full(self, like: Method) -> KitRun:
        """The full cache's run, on the attention function that a method needs."""
        return _full(self if issubclass(self.cls, PerHead) else replace(self, cls=Method, mode=()), like.needs_mass)

    @property
    def label(self) -> str:
        """Its parts, joined."""
        return "-".join([self.cls.name, *(f"{knob}={value}" for knob, value in self.mode), self.codec, self.attention])

    def blocks(self, layers: int, heads: int) -> str:
        """A stack of blocks in words."""
        kind = "" if self.attention == "mha" or heads == 1 else " on one K/V head"
        return f"{layers} layer{'s' * (layers > 1)} of {heads} head{'s' * (heads > 1)}{kind}"

    def memory(self) -> Memory:
        """An empty arena with its codec."""
        return Memory("cpu", CODECS[self.codec])


@functools.cache
def recorded(cell: MethodCell) -> KitRun:
    """The reference run of a cell, once."""
    shadow = Shadow()
    watches = () if cell.layout.paradigm == "masked" else (shadow,)
    return replace(cell.run(cell.tight(), *watches), shadow=shadow)


@dataclass
class FullCache(Method):
    """The full cache, where ``mass`` is set on the attention function that returns its probabilities."""

    mass: bool = False

    @property
    def needs_mass(self) -> bool:
        return self.mass


@functools.cache
def _full(cell: MethodCell, mass: bool) -> KitRun:
    return cell.run(FullCache(mass))


def finding(cell: MethodCell, expected: object, found: object, step: int | None = None, layer: int | None = None,
            head: int | None = None) -> Flaw:  # fmt: skip
    """A finding on what a cell runs on."""
    return Flaw(str(expected), str(found), cell.size, cell.seeds, step, layer, head)


def calibration(cls: type[Method], layout: Layout) -> dict[str, Any]:
    """The knob with the digest of facts that a method asks for, drawn at random for a layout; nothing where it asks for none."""
    if not issubclass(cls, Calibrated):
        return {}
    draw, scales = torch.Generator().manual_seed(7), len(layout.scales)
    shape: dict[str, Any] = {"layers": layout.layers, "heads": layout.kv_heads}
    if scales:
        shape["scales"] = list(layout.scales)
        tables = {"scas": (layout.layers, layout.kv_heads, scales - 1), "asi": (layout.layers, scales - 1),
                  "variance": (layout.layers, layout.kv_heads), "mass": (layout.layers, layout.kv_heads, scales, scales)}
    else:
        shape |= {"lines": layout.lines, "line": layout.line}
        tables = dict(cls().tables({}, layout))
    facts = {name: torch.rand(sizes, generator=draw).tolist() for name, sizes in tables.items()}
    return {"calibration": calibrations.remember(cls.name, {"model": "of random facts", **shape, **facts})}


def neutral_knobs(cls: type[Method]) -> Mapping[str, Any]:
    """The knobs that make a method neutral at the whole budget. Unsupported where it says that there are none."""
    if cls.neutral is None:
        raise Unsupported(f"{cls.name} says that it is never the full cache.")
    return cls.neutral


def poison(part: Tensor) -> None:
    """NaN where the type has it; else a number that no entry of these runs can hold by chance."""
    part.fill_(float("nan") if part.is_floating_point() else 113)


@dataclass
class Poison(Onlooker):
    """Spoils everything dead before each pass reaches a site, and again before the pass is closed."""

    spoiled: int = 0

    def before(self, method: Method, site: Site, step: Step) -> None:
        self.fed(method, step)
        shown = [method.shown] if isinstance(method, PerHead) else stages_of(method)
        for stage in shown:
            poison(stage.k)
            poison(stage.v)
        if isinstance(method, PerHead):
            poison(method.shown.visual)

    def fed(self, method: Method, step: Step) -> None:
        if isinstance(method, PerHead):
            for ragged in method.ragged.values():
                self._spoil([part[:, ragged.live :] for part in (*ragged.k, *ragged.v, ragged.visual)])
        for slot in slots_of(method).values():
            self._spoil_slot(slot)

    def _spoil_slot(self, slot: Slot) -> None:
        for run, live in zip(slot.bank.runs, slot.live, strict=True):
            self._spoil([part[run.rows, :, live:] for part in (*slot.k, *slot.v, slot.visual)])

    def _spoil(self, dead: Sequence[Tensor]) -> None:
        for part in dead:
            poison(part)
            self.spoiled += part.numel()
