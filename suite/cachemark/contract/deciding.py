"""Base class of next-scale methods that choose the computation of the last scales for each image."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ..cache.layout import Layout, Step
from .method import Method

Pictured = Callable[[int], tuple[Tensor, Tensor]]
"""Decode the feature maps before and after a scale to images (batch, 3, H, W). The argument is the shorter side in tokens."""


@dataclass
class Deciding(Method):
    """Base class of methods that read the image after a scale and choose what later scales compute.

    The image is read on the host. An *outcome* is a method with the ``scales`` and ``computed_rows`` chosen for one image. Images of a
    batch are generated together up to the decision and one by one after it, so that they do not depend on each other. Computed costs use
    the fractions from :meth:`expected`. After a generation, ``outcomes`` has one outcome per image.
    """

    def begin(self, layout: Layout, sites: Any, memory: Any) -> None:
        super().begin(layout, sites, memory)
        self.outcomes: Sequence[Method] = ()

    @abstractmethod
    def decides_after(self, layout: Layout) -> int | None:
        """Return the scale (from 0) after which the method decides, or None for never."""

    @abstractmethod
    def decide(self, pictured: Pictured) -> Sequence[Method]:
        """Return the outcome of each image, or an empty sequence to change nothing."""

    @abstractmethod
    def expected(self, layout: Layout) -> Sequence[tuple[float, Method]]:
        """Return each possible outcome with its expected fraction of images. Call after :meth:`resolve`."""

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
        """Return how many rows one image has at a scale."""
        return outcome.computed_rows(self.layout, scale) // self.layout.batch if scale < outcome.scales(self.layout) else 0

    def apart(self, step: Step) -> Iterator[tuple[int, int, Step]]:
        """Serve the images that compute this scale one by one; yield each image's number, rows and step."""
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
