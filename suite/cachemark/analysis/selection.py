"""The rule by which a cache method is recommended: first its images, then what fits, then speed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ..core import limits
from ..stats.intervals import Interval

WORTH_MEASURING = limits.ARTEFACT  # the least gain for which a prediction counts: least times are not known better than that


@dataclass(frozen=True)
class Candidate:
    """One method at a budget beside the full cache.

    ``gain`` is its speed over the full cache's, None where it is not known, and a prediction where it is not ``measured``; ``saving`` the
    share of memory or computation that it saves. ``qualified``: its images are shown to be not worse; ``fits``: it stays within the memory
    and the time that there are. ``doubt`` says why its gain is not believed, or is empty.
    """

    key: str
    gain: Interval | None
    saving: float | None
    qualified: bool
    fits: bool = True
    measured: bool = True
    doubt: str = ""

    @property
    def faster(self) -> bool:
        """True where it is shown to be faster, or predicted to be by enough to be worth a measurement."""
        if self.gain is None or not self.gain.stated or self.doubt:
            return False
        return self.gain.low > (1.0 if self.measured else WORTH_MEASURING)

    @property
    def least_gain(self) -> float:
        """The lower end of the gain: a method that may be slow is not preferred for what it may be at best."""
        return self.gain.low if self.gain else -math.inf


@dataclass(frozen=True)
class Selection:
    """``best`` is the recommended candidate, None where the full cache is to be used; ``lean`` the qualified one that saves most where
    that is another."""

    best: Candidate | None
    lean: Candidate | None


def select(candidates: Iterable[Candidate], *, full_fits: bool = True) -> Selection:
    """The fastest of those that are shown to be as good, fit, and are faster. Where the full cache does not fit, a method need not be
    faster than it: the fastest of those that are as good and do fit."""
    able = [each for each in candidates if each.qualified and each.fits]
    lean = max((each for each in able if each.saving is not None and each.saving > 0), key=lambda each: each.saving or 0.0, default=None)
    best = max((each for each in able if each.faster or not full_fits), key=lambda each: each.least_gain, default=None)
    return Selection(best, None if lean is best else lean)
