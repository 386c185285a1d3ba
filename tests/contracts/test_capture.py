"""A step can be captured: no host read, no shape that depends on values."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import Site, Step
from cachemark.contract.method import Method
from cachemark.kit.capture import Capture, NotCapturable, capturing
from cachemark.kit.driver import layout_of
from cachemark.methods.base.evicting import Evicting

from .cells import Cell, generate

PASSES = Cell(Method, (), "native", "mha").passes


# ------------------------------------------------------------------------------------------ what must be refused


@dataclass
class Reads(Evicting):
    """Broken on purpose: asks the device for a number."""

    def observe(self, site: Site, step: Step, slot: object, q: Tensor, mass: Tensor | None) -> None:
        if step.count:
            self.largest = q.amax().item()


@dataclass
class Lists(Evicting):
    """Broken on purpose: the same by ``tolist``, which no dispatch mode sees."""

    def observe(self, site: Site, step: Step, slot: object, q: Tensor, mass: Tensor | None) -> None:
        if step.count:
            self.largest = q.amax().tolist()


@dataclass
class Decides(Evicting):
    """Broken on purpose: a branch on a value."""

    def observe(self, site: Site, step: Step, slot: object, q: Tensor, mass: Tensor | None) -> None:
        if step.count and q.amax() > 0:
            self.positive = True


@dataclass
class Indexes(Evicting):
    """Broken on purpose: a boolean index, whose result is as long as the values will have it."""

    def observe(self, site: Site, step: Step, slot: object, q: Tensor, mass: Tensor | None) -> None:
        if step.count:
            self.positive = q[q > 0]


@dataclass
class Finds(Evicting):
    """Broken on purpose: places by ``nonzero``."""

    def observe(self, site: Site, step: Step, slot: object, q: Tensor, mass: Tensor | None) -> None:
        if step.count:
            self.places = (q > 0).nonzero()


@pytest.mark.parametrize(("broken", "words"), [
    (Reads, "reads a tensor"), (Lists, "reads a tensor"), (Decides, "reads a tensor"), (Indexes, "boolean"), (Finds, "nonzero"),
])  # fmt: skip
def test_what_cannot_be_captured_is_refused(broken: type[Method], words: str) -> None:
    cell = Cell(broken, (), "native", "mha")
    generate(cell, cell.at(Fraction(1)))  # it runs where nobody watches
    with pytest.raises(NotCapturable, match=words), capturing(PASSES) as (_, watch):
        generate(cell, cell.at(Fraction(1)), watch)


def test_filling_holes_does_not_depend_on_where_they_are() -> None:
    """Holes in the middle, in the tail and in both: the same operations on the same shapes."""
    layout = layout_of()
    slots = SlotBank(layout, (Site("decoder", 0),), 12, Memory())
    logs = []
    for places in ([0, 3], [10, 11], [2, 11]):
        for slot in slots.slots:
            slot.live = [12]
        with Capture() as capture:
            slots.evict(torch.tensor(places).expand(1, 2, 4, 2))
        logs.append(capture.log[-1])
    assert logs[0] == logs[1] == logs[2]
