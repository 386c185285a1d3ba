"""Failures of one side: tried again until a flake is told from a cause, at a stated rate of error.

A process fails now and then for no reason that lies in its code. A configuration of which one side failed is therefore measured again, in
fresh pairs that the first failure did not choose: ``QUIET`` of them without another failure make it a flake, and ``enough`` further
failures of the same side among at most ``MOST`` make it a cause. If no process fails by chance more often than ``rate``, all configurations
of a family together are taken for worse, or for better, in at most ``q`` of the nights; what lies between is not resolved.
``tests/gate/test_flakes.py`` simulates it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scipy.stats import binom

from ..core.result import INFRASTRUCTURE, Outcome, Status

RATE = 0.01  # failures by chance, per process and configuration, that the gate withstands
QUIET, MOST = 6, 24  # pairs after a failure: without another it was a flake, and after so many nothing more is tried
FINAL = frozenset({Status.UNSUPPORTED, *INFRASTRUCTURE})  # trying again is somebody else's matter, or tells nothing


@dataclass(frozen=True)
class FlakeRule:
    """Rule for failures of a family of configurations: together they are judged wrongly in at most ``q`` of the nights where processes fail
    by
    chance at most at ``rate``."""

    family: int
    q: float = 0.05
    rate: float = RATE

    @property
    def enough(self) -> int:
        """The number of further failures among ``MOST`` pairs that chance does not explain; more than ``MOST`` where any number is
        chance."""
        return _enough(self.q / self.family, self.rate)

    def caused(self, further: int) -> bool:
        """Return whether so many further failures of one side have a cause."""
        return further >= self.enough

    def open(self, further: int, tries: int) -> bool:
        """Return whether another pair is to be tried after so many ``tries`` with so many ``further`` failures of the side that failed
        more."""
        return not self.caused(further) and tries < (MOST if further else QUIET)


@functools.cache
def _enough(level: float, rate: float) -> int:
    return next((k for k in range(1, MOST + 1) if binom.sf(k - 1, MOST, rate) <= level), MOST + 1)


def observed_rate(outcomes: Iterable[Outcome]) -> float:
    """The share of processes of A/A tests that failed, and no less than ``RATE``: what the rule must withstand on this machine."""
    succeeded = [outcome.ok for outcome in outcomes if outcome.status not in FINAL]
    return max(RATE, (len(succeeded) - sum(succeeded)) / len(succeeded)) if succeeded else RATE


def quiet(further: int, tries: int) -> bool:
    """Return whether a failure after which ``further`` ones came in ``tries`` pairs was a flake."""
    return not further and tries >= QUIET


def alone(sides: Sequence[Outcome]) -> bool:
    """Return whether one side of two failed, of itself: both at once is no flake."""
    return [o.ok for o in sides].count(False) == 1 and all(o.ok or o.status not in FINAL for o in sides)
