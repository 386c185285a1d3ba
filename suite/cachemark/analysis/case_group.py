"""Groups of a report: one model under shared settings, with ranked methods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.result import Outcome
from ..core.spec import MAX_BATCH, OWN, Case, digest
from ..core.units import FID, LARGEST, LARGEST_RATE, PRECISION, compared_tokens
from ..core.wording import count
from ..stats.intervals import Interval
from ..stats.non_inferiority import ALPHA
from ..stats.placings import seeds_won, sign_chance
from ..stats.sign_flip import Floats
from ..stats.two_samples import p_greater
from .device_limits import with_limits
from .report_row import MASKED, Mark, ReportRow, is_random, rows_of, share_of_full

_REFERENCES = ("other_seeds", "other_batch")
_OF_THE_BATCH = ("batch", "seeds", "samples", "evaluation", "warmup", "repeats")  # may differ between blocks compared over batches
COLLAPSED = 0.1  # smallest precision of images that are compared
SAME_DISTRIBUTION = "The decoder samples other images from the same distribution, so images are not compared seed by seed."
OTHER_SEEDS = "Not closer to the full cache than the different-seed reference."
FEW_REFERENCES = 16  # seeds of the different-seed reference, below which no test says that a method is not closer


@dataclass(frozen=True)
class CaseGroup:
    """Cases that share all settings but their method's; ``candidates`` are ordered by budget, then rank."""

    model: str
    case: Case
    full: ReportRow | None
    candidates: tuple[ReportRow, ...]
    references: tuple[ReportRow, ...]

    @cached_property
    def rows(self) -> tuple[ReportRow, ...]:
        return (*((self.full,) if self.full else ()), *self.candidates, *self.references)

    @cached_property
    def budgets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.case.stated_budget for row in self.candidates))

    @cached_property
    def methods(self) -> tuple[str, ...]:
        return tuple(sorted({row.method for row in self.candidates}))

    @cached_property
    def paradigm(self) -> str:
        return next((row.paradigm for row in self.rows if row.ok), "next-token")

    @cached_property
    def ranked_by(self) -> str:
        """Name of the FID that ranks, empty if speedup does."""
        return next((fid[0] for row in self.candidates if (fid := row.of_set(FID))), "")

    @property
    def random(self) -> bool:
        return is_random(self.case)

    @cached_property
    def but_batch(self) -> str:
        """Hash of all settings except those that may differ with the batch (``_OF_THE_BATCH``)."""
        return digest({name: value for name, value in self.case.to_json().items() if name not in (*OWN, *_OF_THE_BATCH)})

    @property
    def searched(self) -> bool:
        """True if the largest batch was searched for, starting at the batch of the case."""
        return MAX_BATCH in self.case.evaluation

    def candidates_at(self, budget: str) -> tuple[ReportRow, ...]:
        return tuple(row for row in self.candidates if row.case.stated_budget == budget)


def case_groups(outcomes: Sequence[Outcome]) -> tuple[CaseGroup, ...]:
    """Group results by model and shared settings; reference rows join the most similar group."""
    cells: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.case.role not in _REFERENCES:
            cells.setdefault((outcome.case.model, outcome.case.cell), []).append(outcome)
    joined: dict[tuple[str, str], list[Outcome]] = {key: [] for key in cells}
    settings = {key: _shared(measured[0].case) for key, measured in cells.items()}
    for outcome in outcomes:
        if outcome.case.role in _REFERENCES:
            for key in _nearest(outcome.case, settings):
                joined.setdefault(key, []).append(outcome)
    return _with_equal_memory([_group(key[0], cells.get(key, []), joined[key]) for key in joined])


def _shared(case: Case) -> dict[str, Any]:
    return {name: value for name, value in case.to_json().items() if name not in OWN}


def _nearest(case: Case, settings: Mapping[tuple[str, str], Mapping[str, Any]]) -> list[tuple[str, str]]:
    own = _shared(case)
    distance = {key: sum(own.get(name) != theirs.get(name) for name in {*own, *theirs})
                for key, theirs in settings.items() if key[0] == case.model}
    least = min(distance.values(), default=0)
    return [key for key, far in distance.items() if far == least] or [(case.model, case.cell)]


def _group(model: str, measured: list[Outcome], references: list[Outcome]) -> CaseGroup:
    baseline = next((o for o in measured if o.case.role == "baseline"), None)
    full = baseline if baseline is not None and baseline.ok else None
    reference_rows = tuple(rows_of(sorted(references, key=lambda o: _REFERENCES.index(o.case.role)), None))
    rows = with_limits(rows_of(measured, full))
    by_role = {row.case.role: row for row in reversed(reference_rows) if row.ok}
    unlike = _not_closer(rows, by_role.get("other_seeds"))
    candidates = [_against_references(row, by_role, unlike.get(row.case.key, "")) for row in rows if row.outcome is not baseline]
    own = next((row for row in rows if row.outcome is baseline), None)
    first = (measured or references)[0].case
    return CaseGroup(model, baseline.case if baseline else first, own, ordered(candidates), reference_rows)


# -- throughput at equal memory ---------------------------------------------------------------------------------------
def _with_equal_memory(groups: Sequence[CaseGroup]) -> tuple[CaseGroup, ...]:
    searched: dict[tuple[str, str, str], tuple[float, int]] = {}
    measured: dict[tuple[str, str, str], dict[int, list[ReportRow]]] = {}  # by batch
    for group in groups:
        for row in group.rows:
            alike = (group.but_batch, row.method, row.case.stated_budget)
            if not (row.ok and row.timed):
                continue
            if not group.searched:
                measured.setdefault(alike, {}).setdefault(row.case.batch, []).append(row)
            elif (rate := row.median(LARGEST_RATE)) and (largest := row.median(LARGEST)):
                searched.setdefault(alike, (rate, int(largest)))

    def at_equal_memory(row: ReportRow, group: CaseGroup) -> ReportRow:
        if not (row.ok and row.timed):
            return row
        alike = (group.but_batch, row.method, row.case.stated_budget)
        if alike in searched:
            rate, largest = searched[alike]
            return replace(row, equal_memory=rate, equal_memory_batch=largest, batch_searched=True)
        room, batch = group.full.held_bytes if group.full else None, row.case.batch
        larger = [row, *(other for size, others in measured.get(alike, {}).items() if size > batch for other in others)]
        fitting = [other for other in larger if other.images_per_second is not None
                   and ((other is row and row is group.full)
                        or (room is not None and other.held_bytes is not None and other.held_bytes <= room))]
        largest_row = max(fitting, key=lambda other: other.case.batch, default=None)
        if largest_row is None:
            return row
        return replace(row, equal_memory=largest_row.images_per_second, equal_memory_batch=largest_row.case.batch)

    return tuple(replace(group, full=at_equal_memory(group.full, group) if group.full else None,
                         candidates=tuple(at_equal_memory(row, group) for row in group.candidates)) for group in groups)


# -- places -----------------------------------------------------------------------------------------------------------
def _against_references(row: ReportRow, references: Mapping[str, ReportRow], unlike: str) -> ReportRow:
    if not row.ok:
        return row
    why = unlike or _unranked(row)
    lossless = not unlike and _lossless(row, references.get("other_batch"))  # so few seeds show no agreement at all
    mark = Mark("same distribution", "calm", why) if row.same_distribution else Mark("not ranked", "warn", why)
    marks = (mark, *row.marks) if why and row.fidelity else row.marks
    if lossless:
        marks = (Mark("lossless on this device", "good", "No further from the full cache than the batch-size reference (noise "
                      "floor)."), *marks)
    return replace(row, unranked=why, marks=marks)


def nearness(row: ReportRow) -> Interval | None:
    """Return agreement with the full cache, or the negated distance from it."""
    mean = row.fidelity.get(compared_tokens(masked=row.paradigm == MASKED))
    return replace(mean, value=-mean.value, low=-mean.high, high=-mean.low) if mean and row.paradigm == MASKED else mean


def near_values(row: ReportRow) -> list[float]:
    """Return the agreement with the full cache by seed, or the negated distances."""
    sign = -1.0 if row.paradigm == MASKED else 1.0
    return [sign * value for value in row.outcome.raw(compared_tokens(masked=row.paradigm == MASKED))]


def _not_closer(rows: Sequence[ReportRow], other_seeds: ReportRow | None) -> dict[str, str]:
    """Return, by case key, why images are not known to be closer to the full cache's than unrelated ones."""
    its = near_values(other_seeds) if other_seeds else []
    mine = {row.case.key: values for row in rows if row.ok and not row.same_distribution and (values := near_values(row))}
    if not its or not mine:
        return {}
    few = f"Cannot be told from unrelated images: {count(len(its), 'seed')} of the different-seed reference are too few."
    why = few if len(its) < FEW_REFERENCES else OTHER_SEEDS
    return {key: why for key, p in zip(mine, p_greater(list(mine.values()), its), strict=True) if p > ALPHA}


def _unranked(row: ReportRow) -> str:
    """Return why a row is not ranked for other reasons than the reference, or nothing."""
    if row.same_distribution:
        return SAME_DISTRIBUTION
    if nearness(row) is None:
        return row.unjudged or "Fidelity was not measured."
    precision = row.of_set(PRECISION)
    if precision is not None and precision[1].value < COLLAPSED:
        return f"Collapsed: precision {100 * precision[1].value:.0f} %."
    return ""


def _lossless(row: ReportRow, other_batch: ReportRow | None) -> bool:
    if other_batch is None or row.outcome.facts.generated:  # tokens are compared over generated scales alone
        return False
    mine, its = nearness(row), nearness(other_batch)
    if mine is None or its is None or mine.value < its.value:
        return False
    forced = compared_tokens(masked=row.paradigm == MASKED, forced=True)
    far, limit = row.fidelity.get(forced), other_batch.fidelity.get(forced)
    return far is None or limit is None or far.value <= limit.value


def ordered(rows: list[ReportRow]) -> tuple[ReportRow, ...]:
    """Order rows by budget, then rank: by FID if measured, else by speedup.

    Rows with overlapping intervals tie, unless one is closer to the full cache at significantly more seeds. A place counts better rows."""
    by_quality = any(row.of_set(FID) for row in rows)

    def value(row: ReportRow) -> Interval | None:
        """Return the ranking value of a row, lower is better."""
        if by_quality:
            fid = row.of_set(FID)
            return fid[1] if fid else None
        speed = row.speedup
        return replace(speed, value=-speed.value, low=-speed.high, high=-speed.low) if speed else None

    def key(row: ReportRow) -> tuple[float, str, bool, bool, bool, int, float, str]:
        own, case = value(row), row.case
        return (-share_of_full(case.budget), case.budget_kind, not row.ok, bool(row.unranked), own is None, places.get(case.key, 0),
                own.value if own else 0.0, row.method)

    ranked: dict[str, list[tuple[ReportRow, Interval]]] = {}
    for row in rows:
        if row.ok and not row.unranked and (own := value(row)) is not None:
            ranked.setdefault(row.case.stated_budget, []).append((row, own))
    places = {row.case.key: 1 + better for among in ranked.values()
              for (row, _), better in zip(among, _numbers_of_better(among), strict=True)}
    shared = Counter((row.case.stated_budget, places.get(row.case.key)) for row in rows)
    return tuple(replace(row, place=places.get(row.case.key), tied=shared[row.case.stated_budget, places.get(row.case.key)] > 1)
                 for row in sorted(rows, key=key))


def _numbers_of_better(among: Sequence[tuple[ReportRow, Interval]]) -> list[int]:
    """Return how many rows are better than each: of a lower value, or of a tie and closer to the full cache (sign test)."""
    ends = np.array([(own.low, own.high, own.value) for _, own in among]).T
    stated = np.array([own.stated for _, own in among])
    near = [[] if row.same_distribution else near_values(row) for row, _ in among]
    alike: dict[int, list[int]] = {}
    for k, values in enumerate(near):
        alike.setdefault(len(values), []).append(k)
    alike.pop(0, None)
    same_seeds = {n: np.array([near[k] for k in rows]) for n, rows in alike.items()}
    numbers = []
    for k, (_, own) in enumerate(among):
        low, high, value = ends
        with_ends = stated & own.stated
        apart = (high < own.low) | (low > own.high)
        better = np.where(with_ends, apart & (high < own.low), value < own.value)
        if near[k]:
            rows = np.array(alike[len(near[k])])
            tied = with_ends[rows] & ~apart[rows]
            better[rows[tied]] = _closer(same_seeds[len(near[k])][tied], near[k])
        better[k] = False
        numbers.append(int(better.sum()))
    return numbers


def _closer(theirs: Floats, mine: Sequence[float]) -> NDArray[np.bool_]:
    """Return which rows of values are larger than ``mine`` at significantly more seeds."""
    wins, losses = seeds_won(theirs - np.asarray(mine))
    outcomes, whose = np.unique(np.stack([wins, losses], 1), axis=0, return_inverse=True)
    sure = [won > lost and 2 * sign_chance(int(won), int(lost), theirs.shape[1]) <= ALPHA for won, lost in outcomes]
    return np.array(sure, dtype=bool)[whose.reshape(-1)]
