"""One verdict on the environment, for a change that all configurations share, instead of an alarm for every configuration.

A new driver, a new torch or a warmer room moves every configuration, the full caches and the canary among them. The gate judges ratios, in
which that cancels; here it is made visible: how far everything moved together, which configurations did not follow, and whether outputs
changed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..core.result import Environment, Outcome
from ..core.units import TIME
from ..core.wording import percent
from ..stats.paired_test import hodges_lehmann
from ..store.exchange import Exchange

MOST = 0.9  # share of the configurations that must have moved, or changed their outputs, to call it the environment
FEWEST = 3  # configurations from which "all" means something


@dataclass(frozen=True)
class EnvironmentVerdict:
    """Changes of all configurations at once. ``shift``: the change of cost that they have in common (0.05: everything is 5 % slower), None
    where too
    few were timed; ``off``: configurations that moved otherwise, by label, with their own change; ``outputs``: how many of how many have
    other
    output hashes; ``upgraded``: facts of the environment that are new, then and now."""

    shift: float | None
    moved: bool
    off: Mapping[str, float]
    outputs: tuple[int, int]
    upgraded: Mapping[str, tuple[object, object]]

    @property
    def rehashed(self) -> bool:
        """True where (nearly) all outputs changed."""
        changed, total = self.outputs
        return total >= FEWEST and changed >= MOST * total

    @property
    def alert(self) -> bool:
        """True where there is something to report: one alert, however many configurations it concerns."""
        return self.moved or self.rehashed or bool(self.upgraded)

    def __str__(self) -> str:
        new = ", ".join(f"{name} {then} → {now}" for name, (then, now) in self.upgraded.items())
        parts = [f"Environment: {new or 'no change that is recorded'}."]
        if self.moved and self.shift is not None:
            parts.append(f"All configurations share a change of cost of {percent(self.shift, '+')}, full caches included.")
        if self.off:
            worst = max(self.off, key=lambda label: abs(self.off[label]))
            parts.append(f"{len(self.off)} configurations moved otherwise, most of all {worst} ({percent(self.off[worst], '+')}).")
        if self.rehashed:
            parts.append(f"Outputs changed in {self.outputs[0]} of {self.outputs[1]} configurations: compare quality, not hashes.")
        return " ".join(parts)


def environment_verdict(baseline: Exchange, outcomes: Sequence[Outcome], environment: Environment, delta: float) -> EnvironmentVerdict:
    """Compare absolute times and output hashes of all configurations with a baseline's. ``delta``: from which share on a change counts."""
    then, now = ({o.case.key: o for o in side if o.ok} for side in (baseline.outcomes, outcomes))
    shared = [(then[key], now[key]) for key in then if key in now]
    changes = {new.case.key: change for old, new in shared if (change := _change(old, new)) is not None}
    labels = {new.case.key: new.case.title for _, new in shared}
    hashed = [(old.output_hash, new.output_hash) for old, new in shared if old.output_hash and new.output_hash]
    limit, centre = math.log1p(delta), _centre(list(changes.values()))
    followed = [c for c in changes.values() if centre is not None and abs(c - centre) < limit]
    moved = centre is not None and abs(centre) >= limit and len(followed) >= MOST * len(changes)
    off = {labels[k]: math.expm1(c) for k, c in changes.items() if moved and centre is not None and abs(c - centre) >= limit}
    return EnvironmentVerdict(None if centre is None else math.expm1(centre), moved, off,
                              (sum(a != b for a, b in hashed), len(hashed)), _upgraded(baseline.environment, environment))


def _change(old: Outcome, new: Outcome) -> float | None:
    before, after = old.median(TIME), new.median(TIME)
    return math.log(after / before) if before and after else None


def _centre(changes: Sequence[float]) -> float | None:
    if len(changes) < FEWEST:
        return None
    return float(hodges_lehmann(changes)) if len(changes) <= 400 else statistics.median(changes)


def _upgraded(then: Environment, now: Environment) -> dict[str, tuple[object, object]]:
    """Facts of the environment that belong to numerics and differ."""
    if then.fingerprint == now.fingerprint:
        return {}
    names = ("device", "driver", "cuda", "torch", "threads", "tf32")
    values: dict[str, tuple[object, object]] = {
        name: (then.facts.get(name), now.facts.get(name)) for name in names if then.facts.get(name) != now.facts.get(name)
    }
    return values or {"fingerprint": (then.fingerprint, now.fingerprint)}
