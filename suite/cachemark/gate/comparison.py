"""A comparison as it goes on: which cells need another pair, when to stop, and what is said of every cell in the end.

Pairs come from a function that is handed in, so nothing here knows how they are measured. Times are judged by
:mod:`cachemark.stats.paired_test`; bytes, FLOPs and output hashes exactly, in every pair; a cell whose arm failed is judged by its status.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ..core.errors import UnfairComparison
from ..core.result import IMAGES, Environment, Outcome, Status, kernels_apart
from ..core.spec import Case
from ..core.units import METRICS
from ..stats.paired_test import INCONCLUSIVE, PairedVerdict, Pairs, Rule, judge, log_ratios, needed
from ..store.rows import Verdict
from .baseline_check import CHANGED, EQUIVALENT, IMPROVED, NOT_COMPARED, REGRESSED

TIMED = "latency"  # the one metric of a cell that the family counts
AA = "A/A "  # begins the name of a cell whose arms are equal
COVERAGE = 0.95  # share of the cells of which something must be said
PEAK = 0.01  # share by which the allocator's peak may differ
INFRASTRUCTURE = (Status.THROTTLED, Status.CONTENDED, Status.NOT_REACHED)
CURABLE = (Status.OOM, Status.TIMEOUT, Status.NAN_OUTPUT)  # ends of a first arm that ran: if the second is well, it is better
NEVER_RAN = "the first arm does not run"  # begins the reason of a cell whose first arm is no measure of the second
SAME_TOKENS = "same tokens, nothing to compare"
SAME, OTHER_METHODS, OTHER_NUMERICS = "same", "methods", "numerics"


class PairOfOutcomes(Protocol):
    """What is needed of a measured pair."""

    @property
    def cell(self) -> str: ...
    @property
    def before(self) -> Outcome: ...
    @property
    def after(self) -> Outcome: ...


@dataclass
class Held:
    """What is known of one cell: log ratios in order, which of them are fresh, and the pair that ended it, if one did."""

    screening: list[float] = field(default_factory=list)
    fresh: list[float] = field(default_factory=list)
    couples: list[PairOfOutcomes] = field(default_factory=list)
    failed: PairOfOutcomes | None = None

    @property
    def pairs(self) -> Pairs:
        return Pairs(tuple(self.screening), tuple(self.fresh))

    def add(self, couple: PairOfOutcomes, rule: Rule) -> None:
        """Take another pair: it screens or confirms, as the cell needed it."""
        if not (couple.before.ok and couple.after.ok):
            self.failed = couple
            return
        (ratio,) = log_ratios([couple.before.samples[TIMED]], [couple.after.samples[TIMED]])
        wanted, _ = needed(self.pairs, rule)
        (self.fresh if wanted == "confirm" else self.screening).append(float(ratio))
        self.couples.append(couple)

    def open(self, rule: Rule) -> bool:
        """Whether another pair is needed."""
        return self.failed is None and needed(self.pairs, rule)[0] != "done"


def contest(
    cells: Iterable[str], measure: Callable[[list[str]], Iterable[PairOfOutcomes]], rule: Rule, go_on: Callable[[], bool] = lambda: True,
) -> dict[str, Held]:
    """Ask for pairs, one of each open cell a round, until every cell is decided or ``go_on`` says that time is up."""
    held = {cell: Held() for cell in cells}
    while (left := [cell for cell, it in held.items() if it.open(rule)]) and go_on():
        for couple in measure(left):
            held[couple.cell].add(couple, rule)
    return held


# -- what may be compared -----------------------------------------------------------------------------------------------
def refuse_unequal(before: Case, after: Case, where: tuple[Environment, Environment]) -> None:
    """Raise UnfairComparison where arms differ in what would then be measured instead of them, as far as that is known beforehand."""
    _refuse(before, after, {
        "compute dtype": (before.dtype, after.dtype), "engine": (before.engine, after.engine), "batch": (before.batch, after.batch),
        "device class": (before.device_class, after.device_class),
        "TF32 flag": (where[0].facts.get("tf32"), where[1].facts.get("tf32")),
    })


def refuse_unfair(before: Outcome, after: Outcome, where: tuple[Environment, Environment]) -> None:
    """The same of arms that have run, which also say by which kernel. One that a method needs and whose price is in its time is no
    difference: see :func:`cachemark.core.result.kernels_apart`."""
    refuse_unequal(before.case, after.case, where)
    _refuse(before.case, after.case, {"attention kernel": kernels_apart(before, after) or (None, None)})


def _refuse(before: Case, after: Case, sides: Mapping[str, tuple[object, object]]) -> None:
    for what, (then, now) in sides.items():
        if then != now and None not in (then, now):
            raise UnfairComparison(f"{before.label} and {after.label} differ in {what}: {then} and {now}.",
                                   remedy=f"Compare arms with the same {what}; otherwise it would be what is measured.")


def other_tokens(held: Mapping[str, Held]) -> list[str]:
    """Cells whose arms gave different tokens, or other images of the same ones, so that there are images to compare."""
    return [cell for cell, it in held.items()
            if it.failed is None and it.couples and (len(set(_hashes(it.couples))) > 1 or _redrawn(it.couples))]


# -- verdicts -----------------------------------------------------------------------------------------------------------
def verdicts(held: Mapping[str, Held], rule: Rule, alike: str = SAME) -> list[Verdict]:
    """The rows of a comparison. ``alike`` says what the arms share: everything (``same``: both claim to be one thing, so bytes and
    hashes must be equal), all but the method (``methods``), or all but the numerics (``numerics``: bytes must be equal)."""
    judged = judge({cell: it.pairs for cell, it in held.items() if it.failed is None}, rule)
    rows: list[Verdict] = []
    for cell, it in held.items():
        if it.failed is not None:
            rows.append(failure(cell, it.failed))
        elif it.couples:
            rows += [_time(cell, it, judged[cell]), *_exact(cell, it.couples, alike)]
        else:
            rows.append(Verdict("", cell, "status", NOT_COMPARED, "time was up before its first pair"))
    return rows


def _time(cell: str, held: Held, judgement: PairedVerdict) -> Verdict:
    then, now = (statistics.median([_of(c, side).median(TIMED) or 0.0 for c in held.couples]) for side in (0, 1))
    change = 1 + judgement.effect.value if judgement.effect else None
    return Verdict(held.couples[0].after.case.key, cell, TIMED, judgement.verdict, judgement.reason, then, now, change)


def failure(cell: str, couple: PairOfOutcomes) -> Verdict:
    """By how both arms ended. A first arm with an error says nothing of the second: it may be code that this harness cannot drive."""
    said = f"{couple.before.status} then, {couple.after.status} now"
    bad = couple.before if not couple.before.ok else couple.after
    if bad.status in INFRASTRUCTURE or couple.after.status in INFRASTRUCTURE:
        verdict = NOT_COMPARED
    elif couple.before.ok:
        verdict = REGRESSED
    elif couple.after.ok and couple.before.status in CURABLE:
        verdict = IMPROVED
    else:
        verdict, said = NOT_COMPARED, f"{NEVER_RAN}, {said}" if couple.after.ok else said
    last = (bad.log.strip().splitlines() or [""])[-1][:200]
    return Verdict(couple.after.case.key, cell, "status", verdict, f"{said}: {last}")


def _exact(cell: str, couples: Sequence[PairOfOutcomes], alike: str) -> Iterable[Verdict]:
    key, same = couples[0].after.case.key, alike != OTHER_METHODS
    for name in (n for n, m in METRICS.items() if m.kind in ("memory", "work") and n in couples[0].after.samples):
        sides = [[_of(c, side).samples[name][0] for c in couples if name in _of(c, side).samples] for side in (0, 1)]
        if not all(sides):
            continue
        yield _bytes(Verdict(key, cell, name, EQUIVALENT), METRICS[name].deterministic, sides, same)
    yield from _tokens(Verdict(key, cell, "output_hash", EQUIVALENT, SAME_TOKENS), couples, alike)


def _tokens(row: Verdict, couples: Sequence[PairOfOutcomes], alike: str) -> Iterable[Verdict]:
    """Whether both arms gave the same tokens in every pair: they must where they claim to be one thing."""
    then, now = ({_of(c, side).output_hash for c in couples} for side in (0, 1))
    if len(then) > 1 or len(now) > 1:
        yield replace(row, verdict=CHANGED, reason="one arm gave other tokens in another pair: it is not deterministic")
    elif then == now and _redrawn(couples):
        yield replace(row, reason="")
        yield images(row, couples, alike)
    elif then == now:
        yield row
    elif alike == SAME:
        yield replace(row, verdict=CHANGED, reason=f"other tokens at the same seeds: {min(then)[:16]} then, {min(now)[:16]} now")


def images(row: Verdict, couples: Sequence[PairOfOutcomes], alike: str) -> Verdict:
    """The row of the images of arms that gave the same tokens and hashed what they decoded: one decoder owes one image, except under other
    numerics."""
    then, now = (_drawn(couples, side) for side in (0, 1))
    row = replace(row, metric=IMAGES)
    if then == now and len(then) == 1:
        return replace(row, verdict=EQUIVALENT, reason="same images")
    if len(then) > 1 or len(now) > 1:
        return replace(row, verdict=CHANGED, reason="one arm decoded the same tokens otherwise in another pair: it is not deterministic")
    told = f"other images of the same tokens: {min(then)[:16]} then, {min(now)[:16]} now"
    return replace(row, verdict=NOT_COMPARED if alike == OTHER_NUMERICS else CHANGED, reason=told)


def _redrawn(couples: Sequence[PairOfOutcomes]) -> bool:
    """Whether all images were hashed and some differ."""
    then, now = (_drawn(couples, side) for side in (0, 1))
    return all(then) and all(now) and len(then | now) > 1


def _drawn(couples: Sequence[PairOfOutcomes], side: int) -> set[str]:
    """The hashes of one arm's images; an empty one stands for a hash that was not taken."""
    return {str(_of(c, side).facts.get(IMAGES) or "") for c in couples}


def _hashes(couples: Sequence[PairOfOutcomes]) -> Iterable[str]:
    return (outcome.output_hash for couple in couples for outcome in (couple.before, couple.after))


def _bytes(row: Verdict, exact: bool, sides: Sequence[Sequence[float]], same: bool) -> Verdict:
    """Figures that are counted, lower being better: exactly, or within ``PEAK`` where an allocator has a say. The worst pair counts."""
    then, now = max(sides[0]), max(sides[1])
    limit = 0.0 if exact else PEAK
    change = now / then if then else (1.0 if now == then else math.inf)
    if not same or 1 - limit <= change <= 1 + limit:
        verdict, reason = (EQUIVALENT if same else NOT_COMPARED), ("" if same else "two methods: stated, not judged")
    else:
        verdict, reason = (REGRESSED if change > 1 else IMPROVED), ("must be equal" if exact else f"may differ by {PEAK:.0%}")
    return Verdict(row.case_key, row.label, row.metric, verdict, reason, then, now, change if math.isfinite(change) else None)


def _of(couple: PairOfOutcomes, side: int) -> Outcome:
    return couple.after if side else couple.before


# -- the exit code ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Tally:
    """How a comparison ends. ``cells``: the cells that were to be compared."""

    rows: tuple[Verdict, ...]
    cells: int
    min_coverage: float = COVERAGE
    most_open: float = 0.10
    fail_on_change: bool = True

    @property
    def judged(self) -> set[str]:
        """Cells of which something was said."""
        return {r.label for r in self.rows if r.verdict not in (NOT_COMPARED,)}

    @property
    def lost(self) -> set[str]:
        """Cells of which nothing could be said because of the machine."""
        return {r.label for r in self.rows if r.metric == "status" and r.verdict == NOT_COMPARED} - self.judged

    @property
    def unready(self) -> set[str]:
        """Cells whose first arm does not run at all."""
        return {r.label for r in self.rows if r.metric == "status" and r.reason.startswith(NEVER_RAN)}

    @property
    def regressed(self) -> list[Verdict]:
        """Rows that fail: regressions, and tokens that changed where they must not."""
        return [r for r in self.rows if r.verdict == REGRESSED or (r.verdict == CHANGED and self.fail_on_change)]

    @property
    def unresolved(self) -> list[Verdict]:
        """Timed rows that the budget left open."""
        return [r for r in self.rows if r.metric == TIMED and r.verdict == INCONCLUSIVE]

    @property
    def exit_code(self) -> int:
        """4 nothing or too little judged, 5 the same because of the machine or because the first arm runs nowhere, 1 regressed, 3 too much
        left open, else 0."""
        if not self.cells or not self.judged or len(self.judged) / self.cells < self.min_coverage:
            return 5 if self.lost and (any(_by_machine(r) for r in self.rows) or len(self.unready) == self.cells) else 4
        if self.regressed:
            return 1
        return self._left_open

    def ended(self, advisory: bool) -> int:
        """The exit code where the gate on times may be ``advisory``: then times alone fail nothing, but too much left open is
        still no pass."""
        excused = advisory and self.exit_code == 1 and all(r.metric == TIMED for r in self.regressed)
        return self._left_open if excused else self.exit_code

    @property
    def _left_open(self) -> int:
        return 3 if len(self.unresolved) > self.most_open * self.cells else 0


def _by_machine(row: Verdict) -> bool:
    return row.metric == "status" and any(str(status) in row.reason for status in INFRASTRUCTURE[:2])
