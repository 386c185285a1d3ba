"""Failures of one side, retried until they are known as flakes or regressions, at a stated error rate.

A process sometimes fails for reasons outside its code. A configuration with one failed side is therefore measured again in new pairs:
after ``QUIET`` of them without another failure it was a flake, and ``enough`` further failures of the same side among at most ``MOST``
have a cause. If processes fail at random at most at ``rate``, a family of configurations gets a wrong verdict in at most ``FDR`` of the
nights; anything between is inconclusive. ``tests/gate/test_comparison.py`` simulates this.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import scipy

from ..core.result import INFRASTRUCTURE, Outcome, Status
from ..stats.paired_test import FDR

RATE = 0.01  # failures by chance, per process and configuration, that the gate withstands
QUIET, MOST = 6, 24  # pairs after a failure: enough to call it a flake if none fails, and the most that are tried
FINAL = frozenset({Status.UNSUPPORTED, *INFRASTRUCTURE})  # repeating these is useless here


@dataclass(frozen=True)
class FlakeRule:
    """The rule for failures of a family of configurations.

    A verdict is wrong in at most ``FDR`` of the nights if processes fail at random at most at ``rate``."""

    family: int
    rate: float = RATE

    @property
    def enough(self) -> int:
        """Number of further failures among ``MOST`` pairs that chance does not explain; ``MOST`` + 1: none."""
        return _enough(FDR / self.family, self.rate)

    def caused(self, further: int) -> bool:
        """Return whether so many further failures of one side have a cause."""
        return further >= self.enough

    def open(self, further: int, tries: int) -> bool:
        """Return whether to try another pair after ``tries`` with ``further`` failures of the worse side."""
        return not self.caused(further) and tries < (MOST if further else QUIET)


@functools.cache
def _enough(level: float, rate: float) -> int:
    return next((k for k in range(1, MOST + 1) if scipy.stats.binom.sf(k - 1, MOST, rate) <= level), MOST + 1)


def observed_rate(outcomes: Iterable[Outcome]) -> float:
    """Return the failure rate of A/A processes, at least ``RATE``, which the rule must tolerate."""
    succeeded = [outcome.ok for outcome in outcomes if outcome.status not in FINAL]
    return max(RATE, (len(succeeded) - sum(succeeded)) / len(succeeded)) if succeeded else RATE


def quiet(further: int, tries: int) -> bool:
    """Return whether a failure was a flake, given ``further`` ones in ``tries`` pairs."""
    return not further and tries >= QUIET


def alone(sides: Sequence[Outcome]) -> bool:
    """Return whether exactly one side failed by itself; a failure of both is not a flake."""
    return [o.ok for o in sides].count(False) == 1 and all(o.ok or o.status not in FINAL for o in sides)
