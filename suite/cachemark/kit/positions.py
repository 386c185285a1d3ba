"""Checks that evicted and merged positions are distinct live entries, and merged ones are evicted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..cache.bank import SlotBank
from ..cache.layout import Site, Step
from ..contract.method import Method
from .common import Findings, MethodCell
from .driver import Onlooker

AXES = 4  # layers, rows, kv_heads, positions


@dataclass
class Positions(Onlooker):
    """Looks at the positions of every ``SlotBank.evict`` and ``merge``.

    ``fault``: the first step, layer and head with wrong ones, and why; ``kept``: the same for an entry that was merged and not evicted;
    ``merges``: the number of calls of ``merge``.
    """

    fault: tuple[int, int, int, str] | None = None
    kept: tuple[int, int, int, str] | None = None
    merges: int = 0
    _step: int = 0
    _banks: list[SlotBank] = field(default_factory=list)
    _leaving: list[tuple[SlotBank, Tensor]] = field(default_factory=list)

    def before(self, method: Method, site: Site, step: Step) -> None:
        self._step = step.index
        for bank in method.banks:
            if bank not in self._banks:
                self._banks.append(bank)
                bank.evict, bank.merge = self._evicting(bank), self._merging(bank)  # type: ignore[method-assign, assignment]

    def after_end(self, method: Method, step: Step) -> None:
        for bank, tokens in self._leaving:
            stays = (tokens[..., :, None] == bank.table()[..., None, :]).any(-1) & (tokens >= 0)
            self.kept = self.kept or self._first(bank, stays.any(-1), "an entry that was merged and not evicted")
        self._leaving.clear()

    def _evicting(self, bank: SlotBank) -> Callable[[Tensor], None]:
        def evict(places: Tensor) -> None:
            self._check(bank, places, "a position")
            type(bank).evict(bank, places)  # which raises an error for another shape

        return evict

    def _merging(self, bank: SlotBank) -> Callable[..., None]:
        def merge(places: Tensor, into: Tensor, weights: Tensor, own: Tensor | None = None, *, keys: bool = False) -> None:
            self.merges += 1
            self._check(bank, places, "a merged position")
            self._check(bank, into, "a receiving position")
            if self.fault is None and places.shape[:-1] == into.shape[:-1]:
                self._check(bank, torch.cat((places, into), -1), "a merged position that receives:")
                self._leaving.append((bank, bank.visual.gather(-1, places)))
            type(bank).merge(bank, places, into, weights, own, keys=keys)

        return merge

    def _check(self, bank: SlotBank, places: Tensor, what: str) -> None:
        if self.fault is not None or places.dim() != AXES or not places.size(-1):
            return
        ordered, live = places.sort(-1).values, min(bank.live)
        beyond = (ordered[..., 0] < 0) | (ordered[..., -1] >= live)
        twice = (ordered[..., 1:] == ordered[..., :-1]).any(-1)
        self.fault = self._first(bank, beyond, f"{what} outside the {live} live entries") or self._first(bank, twice, f"{what} twice")

    def _first(self, bank: SlotBank, wrong: Tensor, reason: str) -> tuple[int, int, int, str] | None:
        if not bool(wrong.any()):
            return None
        layer, _, head = wrong.nonzero()[0].tolist()
        return self._step, bank.sites[layer].layer, head, reason


@functools.cache
def _watched(cell: MethodCell) -> Positions:
    """Run a method once for both checks."""
    watch = Positions()
    try:
        cell.run(cell.tight(), watch, bare=True)
    except (RuntimeError, IndexError):  # of such a position
        if not watch.fault:
            raise
    watch._banks.clear()  # which hold keys and values
    return watch


def evicted_positions_are_distinct(cell: MethodCell) -> Findings:
    """Every head evicts, and merges, distinct positions of live entries."""
    watch = _watched(cell)
    if watch.fault:
        step, layer, head, reason = watch.fault
        yield cell.finding("distinct positions of live entries", reason, step, layer, head)


def merged_entries_are_evicted(cell: MethodCell) -> Findings:
    """A method that merges declares it, and evicts merged entries in the same step."""
    watch = _watched(cell)
    if bool(watch.merges) is not cell.cls.merges:
        yield cell.finding(f"merges = {bool(watch.merges)}", f"{watch.merges} calls of merge")
    elif watch.kept:
        step, layer, head, reason = watch.kept
        yield cell.finding("merged entries that are evicted, since they would count twice", reason, step, layer, head)
