"""Merging of stores from machines that could not write into a common store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session, joinedload

from ..core.spec import digest
from .db import Store, trial_number, whole_outcomes
from .rows import COMPARISON, insert_once
from .schema import (
    ArtifactRow,
    Base,
    BaselineRow,
    CaseRow,
    EnvironmentRow,
    MembershipRow,
    OutcomeRow,
    RunRow,
    SampleRow,
    TrialRow,
    VerdictRow,
)

ORIGIN = "merged_from"  # key in a run's code: identifies the run, so that it is merged once


@dataclass(frozen=True)
class Merged:
    """Numbers of added runs and outcomes, and of runs that were present already."""

    runs: int
    outcomes: int
    known: int


def merge(target: Store, source: Store) -> Merged:
    """Add every run of ``source`` that ``target`` lacks, with outcomes and artifacts, in one transaction.

    Runs get new numbers. Two runs are the same if plan, start, numerics and code are equal; a repeated merge adds only what is missing and
    updates a run that continued meanwhile. A run that still runs in ``source`` is interrupted in ``target``. Verdicts of comparisons are
    copied; those against baselines are not, because `check` makes them again.
    """
    with source._reading() as theirs:
        for file in theirs.scalars(select(ArtifactRow.file).distinct()):
            if not target.artifacts.path(file).is_file():
                target.artifacts.put(file, source.artifacts.read(file))
        with target._writing() as ours:
            with_environment = select(RunRow).options(joinedload(RunRow.environment)).order_by(RunRow.id)
            existing = {_origin(run): run for run in ours.scalars(with_environment)}
            pairs = [(run, existing.get(_origin(run)) or _new_run(ours, run)) for run in theirs.scalars(with_environment)]
            numbers: dict[int, int] = {}  # of present outcomes: in the source, and in the target
            added = sum(_add_outcomes(theirs, ours, run.id, copy.id, numbers) for run, copy in pairs)
            for run, copy in pairs:
                memberships = theirs.scalars(select(MembershipRow).filter_by(run_id=run.id).order_by(MembershipRow.id))
                insert_once(ours, MembershipRow, *({"run_id": copy.id, "outcome_id": numbers[member.outcome_id], "reused": member.reused}
                                                   for member in memberships))
                if copy.state == "interrupted":
                    if run.plan.startswith(COMPARISON):
                        _copy_verdicts(theirs, ours, run, copy.id)
                    copy.state, copy.finished = "interrupted" if run.state == "running" else run.state, run.finished
            known = sum(_origin(run) in existing for run, _ in pairs)
            return Merged(len(pairs) - known, added, known)


def _origin(run: RunRow) -> str:
    return str(run.code.get(ORIGIN) or f"{run.plan} {run.started} {run.environment.fingerprint} {run.code.get('hash')}")


def _columns(row: Base, **changes: Any) -> dict[str, Any]:
    """Return the values of a row without its number."""
    return {column.key: getattr(row, column.key) for column in row.__mapper__.column_attrs if column.key != "id"} | changes


def _new_run(ours: Session, run: RunRow) -> RunRow:
    """Add a run without outcomes, interrupted until all of it is copied."""
    insert_once(ours, EnvironmentRow, _columns(run.environment))
    environment = ours.scalars(select(EnvironmentRow.id).filter_by(digest=run.environment.digest)).one()
    code = {**run.code, ORIGIN: _origin(run)}
    copy = RunRow(**_columns(run, code=code, environment_id=environment, state="interrupted", finished=None))
    ours.add(copy)
    ours.flush()
    return copy


def _add_outcomes(theirs: Session, ours: Session, run: int, copy: int, numbers: dict[int, int]) -> int:
    """Copy the outcomes of a run that its copy lacks, and return how many; fill ``numbers``.

    Case and time of saving identify an outcome within its run.
    """
    keys = select(OutcomeRow.case_key, OutcomeRow.saved, OutcomeRow.id).join(TrialRow)
    present = {(key, saved): number for key, saved, number in ours.execute(keys.where(TrialRow.run_id == copy))}
    measured = theirs.scalars(whole_outcomes().join(TrialRow).where(TrialRow.run_id == run).order_by(OutcomeRow.id)).all()
    missing = [row for row in measured if (row.case_key, row.saved) not in present]
    insert_once(ours, CaseRow, *(_columns(row.case) for row in missing))
    names = {row.id: row.name for row in theirs.scalars(select(TrialRow).filter_by(run_id=run))}
    trials = {number: trial_number(ours, copy, names[number] or "") for number in dict.fromkeys(row.trial_id for row in missing)}
    copies = [_copy_outcome(row, trials[row.trial_id], copy) for row in missing]
    ours.add_all(copies)
    ours.flush()
    present |= {(row.case_key, row.saved): row.id for row in copies}
    numbers |= {row.id: present[row.case_key, row.saved] for row in measured}
    return len(missing)


def _copy_outcome(row: OutcomeRow, trial: int, run: int) -> OutcomeRow:
    pair = {"pair": {**row.facts["pair"], "run": run}} if "pair" in row.facts else {}
    return OutcomeRow(**_columns(row, trial_id=trial, facts={**row.facts, **pair}),
                      samples=[SampleRow(**_columns(sample)) for sample in row.samples],
                      artifacts=[ArtifactRow(**_columns(artifact)) for artifact in row.artifacts])


def _copy_verdicts(theirs: Session, ours: Session, run: RunRow, copy: int) -> None:
    """Replace the verdicts of a comparison's copy."""
    ours.execute(delete(VerdictRow).filter_by(run_id=copy))
    rows = select(VerdictRow, BaselineRow).join_from(VerdictRow, BaselineRow).where(VerdictRow.run_id == run.id).order_by(VerdictRow.id)
    for verdict, baseline in theirs.execute(rows):
        identity = digest([_origin(run), baseline.digest], 64)
        insert_once(ours, BaselineRow, _columns(baseline, digest=identity, run_id=copy))
        side = ours.scalars(select(BaselineRow.id).filter_by(digest=identity)).one()
        ours.add(VerdictRow(**_columns(verdict, run_id=copy, baseline_id=side)))
