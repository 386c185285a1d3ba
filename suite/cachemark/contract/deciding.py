"""Next-scale methods that decide for each image what its last scales compute."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ..cache.layout import Layout, Step
from .method import Method

Pictured = Callable[[int], tuple[Tensor, Tensor]]
"""Return the images (batch, 3, H, W) of the feature maps before and after a scale, reduced to this shorter side in tokens."""


@dataclass
class Deciding(Method):
    """A next-scale method that reads the image after one scale, on the host, and decides what its later scales compute.

    An *outcome* is a method whose ``scales`` and ``computed_rows`` are an image's. Images of a batch are generated together up to the
    decision and one after the other behind it, so that none depends on the others. Costs on paper are those that :meth:`expected` states;
    after a generation, ``outcomes`` has one outcome per image.
    """

    def begin(self, layout: Layout, sites: Any, memory: Any) -> None:
        super().begin(layout, sites, memory)
        self.outcomes: Sequence[Method] = ()

    @abstractmethod
    def decides_after(self, layout: Layout) -> int | None:
        """Return the scale (from 0) after which the method decides, or None for never."""

    @abstractmethod
    def decide(self, pictured: Pictured) -> Sequence[Method]:
        """Return the outcome of each image, or nothing to go on as before."""

    @abstractmethod
    def expected(self, layout: Layout) -> Sequence[tuple[float, Method]]:
        """Return all outcomes with their expected fractions of the images, after :meth:`resolve`."""

    def typical(self, layout: Layout) -> Method:
        """Return the expected outcome of most images."""
        return max(self.expected(layout), key=lambda expected: expected[0])[1]

    @property
    def capturable(self) -> bool:
        return False

    def computed_rows(self, layout: Layout, scale: int) -> int:
        if not getattr(self, "outcomes", ()):
            return layout.rows
        return sum(self._rows(outcome, scale) for outcome in self.outcomes)

    def _rows(self, outcome: Method, scale: int) -> int:
        """Return the rows of one image at a scale."""
        return outcome.computed_rows(self.layout, scale) // self.layout.batch if scale < outcome.scales(self.layout) else 0

    def apart(self, step: Step) -> Iterator[tuple[int, int, Step]]:
        """Serve the images that compute this scale one after the other: yield number, rows, and the step as the image's own."""
        slots = [slot for bank in self.banks for slot in bank.slots]
        before, after = [slot.live[0] for slot in slots], [slot.live[0] for slot in slots]
        for image, outcome in enumerate(self.outcomes):
            if not (rows := self._rows(outcome, step.index)):
                continue
            for slot, live in zip(slots, before, strict=True):
                slot.show(slice(image, None, self.layout.batch) if rows > 1 else slice(image, image + 1))
                slot.live[0] = live
            yield image, rows, replace(step, total=outcome.scales(self.layout))
            after = [max(slot.live[0], live) for slot, live in zip(slots, after, strict=True)]
        for slot, live in zip(slots, after, strict=True):
            slot.live[0] = live
            slot.narrow(self.computed_rows(self.layout, step.index))
