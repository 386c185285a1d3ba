"""Pruning of a store: outcomes of old nights keep quantiles, all others every raw value.

Never pruned are outcomes of the newest nights, of a run that a baseline was saved from or that has a regression, and those that a newer
run reuses. The first side of a comparison is no such baseline. A pruned outcome keeps its row, facts and quantiles, not its artifacts.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from ..core.errors import BadStore
from ..core.verdicts import REGRESSED
from .db import Store
from .rows import COMPARISON, pack, unpack
from .schema import ArtifactRow, BaselineRow, CondensedRow, MembershipRow, OutcomeRow, RunRow, SampleRow, VerdictRow

SHARES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
NIGHTS = 60
AT_ONCE = 200  # outcomes in a transaction: others write in between


@dataclass(frozen=True)
class Pruned:
    """Extent of a pruning, done or planned: outcomes, values, files and bytes; ``kept`` outcomes keep every value."""

    outcomes: int
    values: int
    files: int
    nbytes: int
    kept: int


def nights_kept(policy: str) -> int:
    """Return N of a policy ``raw=N``: the number of nights to keep."""
    if match := re.fullmatch(r"raw=(\d{1,9})", policy.strip()):
        return int(match[1])
    raise BadStore(f"{policy[:100]!r} is not a policy.",
                   remedy=f"Write raw=N, such as raw={NIGHTS}, to keep all raw values of the last N nights.")


def prune(store: Store, nights: int = NIGHTS, *, dry: bool = True) -> Pruned:
    """Prune all but the newest ``nights``, counted by the start dates of runs; with ``dry``, only count.

    An interruption leaves every outcome either pruned or unchanged.
    """
    with store._reading() as session:
        gone = _doomed(session, nights)
        uncondensed = select(func.count()).where(OutcomeRow.status == "ok", OutcomeRow.id.not_in(select(CondensedRow.outcome_id)))
        remaining = (session.scalar(uncondensed) or 0) - len(gone)
        files = _files(session, gone)
        counts = session.execute(select(SampleRow.outcome_id, SampleRow.count))
        values = sum(max(0, count - len(SHARES)) for number, count in counts if number in gone)
    sizes = (path.stat().st_size for path in map(store.artifacts.path, files) if path.is_file())
    doomed, result = sorted(gone), Pruned(len(gone), values, len(files), sum(sizes) + 8 * values, remaining)
    if not dry:
        for part in (doomed[i : i + AT_ONCE] for i in range(0, len(doomed), AT_ONCE)):
            with store._writing() as session:
                for number in part:
                    _condense(session, number)
                session.execute(delete(ArtifactRow).where(ArtifactRow.outcome_id.in_(part)))
        for file in files:  # behind the rows that named them: at worst a file stays that nobody names
            if not _named(store, file):
                store.artifacts.path(file).unlink(missing_ok=True)
    return result


def _doomed(session: Session, nights: int) -> set[int]:
    """Return the numbers of unprotected outcomes that still have raw values."""
    days: dict[int, str] = {number: started[:10] for number, started in session.execute(select(RunRow.id, RunRow.started))}
    newest = sorted(set(days.values()), reverse=True)[:nights]
    accepted = select(RunRow.id).join(BaselineRow).where(RunRow.plan.not_like(f"{COMPARISON}%"))  # it files its own first side as one
    pinned = set(session.scalars(accepted))
    pinned |= set(session.scalars(select(VerdictRow.run_id).where(VerdictRow.verdict == REGRESSED)))
    protected = {run for run, day in days.items() if day in newest} | pinned
    protected_outcomes = select(MembershipRow.outcome_id).where(MembershipRow.run_id.in_(protected))
    spared = protected_outcomes.union(select(CondensedRow.outcome_id))
    return set(session.scalars(select(OutcomeRow.id).where(OutcomeRow.status == "ok", OutcomeRow.id.not_in(spared))))


def _condense(session: Session, number: int) -> None:
    """Replace the values of an outcome by quantiles."""
    total = 0
    for sample in session.scalars(select(SampleRow).filter_by(outcome_id=number)):
        values = unpack(sample.packed)
        session.add(CondensedRow(outcome_id=number, metric=sample.metric, count=len(values), mean=statistics.fmean(values)))
        if len(values) > len(SHARES):
            sample.packed, sample.count = pack(quantiles(values)), len(SHARES)
        total += sample.count
    session.flush()
    session.execute(update(OutcomeRow).where(OutcomeRow.id == number).values(n_samples=total))


def quantiles(values: Sequence[float]) -> list[float]:
    """Return the values at the quantiles :data:`SHARES`, by linear interpolation.

    The median is exact, and also the median of the returned values.
    """
    values_at: list[float] = np.quantile(values, SHARES).tolist()
    return values_at


def _files(session: Session, doomed: set[int]) -> list[str]:
    """Return artifacts that only the doomed outcomes refer to."""
    named = list(session.execute(select(ArtifactRow.outcome_id, ArtifactRow.file)))
    return sorted({file for _, file in named} - {file for number, file in named if number not in doomed})


def _named(store: Store, file: str) -> bool:
    """Return whether an outcome refers to the file now; another process may have saved the same content."""
    with store._reading() as session:
        return session.scalar(select(ArtifactRow.outcome_id).where(ArtifactRow.file == file).limit(1)) is not None
