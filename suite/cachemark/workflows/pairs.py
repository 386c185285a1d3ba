"""Pairs of arms, measured: two fresh processes on one device, one right after the other, in random order, with the same seeds.

Their verdict is made elsewhere (:mod:`cachemark.stats.paired_test`). One process runs its arm of several cells, so that starting it
is paid once; for each cell it is a fresh one. Both arms run where a run would: on a leased place of an executor, pinned and watched. A pair
in which an arm was throttled or disturbed by others is measured again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import Infrastructure
from ..core.result import DISTURBED, Outcome
from ..gate.comparison import PairOfOutcomes
from ..trial.executors.local import REDOS, Executor
from ..trial.request import TrialRequest
from .arms import Cells


@dataclass(frozen=True)
class Arm:
    """One arm of every cell, by the cell's name; ``request`` says which interpreter and which copy of the code run it."""

    name: str
    cells: Cells
    request: TrialRequest

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        """Cells that share a process: those of one model and request that need the same plug-ins."""
        groups: dict[Any, list[str]] = {}
        for name in names:
            cell = self.cells[name]
            groups.setdefault((cell.case.model, cell.request, cell.needs), []).append(name)
        return list(groups.values())


def measure(arms: Sequence[Arm], names: Sequence[str], executor: Executor) -> list[dict[str, Outcome]]:
    """Outcomes of some cells of each arm, one arm right after the other on one device. Raises Infrastructure where that is lost."""
    groups = [(number, group) for number, arm in enumerate(arms) for group in arm.groups(names)]
    ended = executor.in_turn([([arms[number].cells[name] for name in group], arms[number].request) for number, group in groups])
    if lost := next((finished for part in ended for finished in part if finished.lost), None):
        raise Infrastructure(f"The comparison ends with its device. {lost.outcome.log.strip().splitlines()[0]}",
                             remedy="See `cachemark doctor`; the pairs measured so far are stored.")
    found: list[dict[str, Outcome]] = [{} for _ in arms]
    for (number, group), part in zip(groups, ended, strict=True):
        found[number] |= {name: finished.outcome for name, finished in zip(group, part, strict=True)}
    return found


@dataclass(frozen=True)
class Pair(PairOfOutcomes):
    """One pair of one cell. ``swapped``: the second arm ran first; ``redone``: how often it was measured again."""

    number: int
    swapped: bool
    redone: int

    @property
    def disturbed(self) -> bool:
        """True where the machine, and not an arm, invalidated the pair."""
        return self.before.status in DISTURBED or self.after.status in DISTURBED


@dataclass
class PairRunner:
    """Measures pairs of two arms, as many as it is asked for. Half of the pairs, chosen by ``seed``, run the second arm first.
    ``on_pair`` is called with each pair that is done."""

    before: Arm
    after: Arm
    executor: Executor
    seed: int = 0
    on_pair: Callable[[Pair], None] | None = None
    _counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._orders = orders(self.seed)

    def round(self, names: Sequence[str]) -> list[Pair]:
        """One more pair of each of these cells."""
        left, found, redone = list(names), list[Pair](), 0
        while left:
            pairs = self._round(left, redone)
            left = [pair.cell for pair in pairs if pair.disturbed and redone < REDOS]
            found += [pair for pair in pairs if pair.cell not in left]
            redone += 1
        for pair in found:
            self._counts[pair.cell] = pair.number
            if self.on_pair is not None:
                self.on_pair(pair)
        return found

    def _round(self, names: list[str], redone: int) -> list[Pair]:
        swapped = next(self._orders)
        first, second = (self.after, self.before) if swapped else (self.before, self.after)
        one, two = measure([first, second], names, self.executor)
        before, after = (two, one) if swapped else (one, two)
        return [Pair(n, before[n], after[n], self._counts.get(n, 0) + 1, swapped, redone) for n in names]


def orders(seed: int) -> Iterator[bool]:
    """For pair after pair, True where the second arm goes first: in one of any two in a row, by chance which."""
    chance = random.Random(seed)
    while True:
        first = chance.random() < 0.5
        yield from (first, not first)
