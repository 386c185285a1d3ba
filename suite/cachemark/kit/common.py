"""Parts of the checks of several families: a cell, how a finding names it, and spoilt storage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.codec import CODECS
from ..cache.layout import Layout, Site, Step
from ..cache.slot import Slot
from ..contract.method import Method
from ..core.errors import Unsupported
from ..methods.base import calibrations
from ..methods.base.calibrated import Calibrated
from .driver import Onlooker, slots_of, stages_of
from .findings import Flaw
from .oracle import Apart

DECIDES = "It says that it decides on the host (capturable)."
Found = Iterator[Flaw]


@dataclass(frozen=True)
class MethodCell(ABC):
    """One method in one mode, with one codec, on one kind of attention."""

    cls: type[Method]
    mode: tuple[tuple[str, Any], ...] = field(hash=False)  # its values may be lists
    codec: str
    attention: str

    @property
    @abstractmethod
    def size(self) -> str:
        """The model or layout that it runs on, in words."""

    @property
    @abstractmethod
    def seeds(self) -> Sequence[int]:
        """Those of the samples of its reference run."""

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


class Shadow(Protocol):
    """An oracle that answered each pass by masking: how many entries it hid, and where it was first answered otherwise."""

    hidden: int
    first: Apart | None


def unlike_masking(cell: MethodCell, shadow: Shadow) -> Found:
    """Findings of an oracle that masks what the method evicts."""
    if cell.cls.evicts and not shadow.hidden:
        yield finding(cell, "entries that are evicted at a tight budget", "none")
    if wrong := shadow.first:
        expected = f"{wrong.expected:.6g}, as the masked attention answers"
        yield finding(cell, expected, f"{wrong.found:.6g}", wrong.step, wrong.layer, wrong.head)


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
        for stage in stages_of(method):
            poison(stage.k)
            poison(stage.v)

    def fed(self, method: Method, step: Step) -> None:
        for slot in slots_of(method).values():
            self._spoil(slot)

    def _spoil(self, slot: Slot) -> None:
        for run, live in zip(slot.bank.runs, slot.live, strict=True):
            for part in (*slot.k, *slot.v, slot.visual):
                dead = part[run.rows, :, live:]
                poison(dead)
                self.spoiled += dead.numel()
