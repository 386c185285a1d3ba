"""The check of the positions that a method evicts: each head names different live entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from ..cache.bank import SlotBank
from ..cache.layout import Site, Step
from ..contract.method import Method
from .common import Findings, MethodCell
from .driver import Onlooker

AXES = 4  # layers, rows, kv_heads, positions


@dataclass
class EvictedPositions(Onlooker):
    """Looks at the argument of every ``SlotBank.evict``; ``fault``: the first step, layer and head with wrong positions, and why."""

    fault: tuple[int, int, int, str] | None = None
    _step: int = 0
    _banks: list[SlotBank] = field(default_factory=list)

    def before(self, method: Method, site: Site, step: Step) -> None:
        self._step = step.index
        for bank in method.banks:
            if bank not in self._banks:
                self._banks.append(bank)
                bank.evict = self._looking(bank)  # type: ignore[method-assign, assignment]

    def _looking(self, bank: SlotBank) -> Callable[[Tensor], None]:
        def evict(places: Tensor) -> None:
            if self.fault is None and places.dim() == AXES and places.size(-1):
                ordered, live = places.sort(-1).values, min(bank.live)
                beyond = (ordered[..., 0] < 0) | (ordered[..., -1] >= live)
                twice = (ordered[..., 1:] == ordered[..., :-1]).any(-1)
                for wrong, words in ((beyond, f"a position outside the {live} live entries"), (twice, "a position twice")):
                    if self.fault is None and bool(wrong.any()):
                        layer, _, head = wrong.nonzero()[0].tolist()
                        self.fault = self._step, bank.sites[layer].layer, head, words
            type(bank).evict(bank, places)  # which raises an error for another shape

        return evict


def evicted_positions_are_distinct(cell: MethodCell) -> Findings:
    """Every head evicts distinct positions of live entries."""
    watch = EvictedPositions()
    try:
        cell.run(cell.tight(), watch, bare=True)
    except (RuntimeError, IndexError):  # of such a position
        if not watch.fault:
            raise
    if watch.fault:
        step, layer, head, words = watch.fault
        yield cell.finding("distinct positions of live entries", words, step, layer, head)
