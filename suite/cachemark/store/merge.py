"""Merging of stores from machines that could not write into a common store."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from .db import Store, files_of, whole_outcomes
from .rows import columns, insert_once
from .schema import CaseRow, MembershipRow, OutcomeRow, RunRow

ORIGIN = "merged_from"  # key in a run's code: identifies the run, so that it is merged once


@dataclass(frozen=True)
class Merged:
    """Numbers of added runs and outcomes, and of runs that were present already."""

    runs: int
    outcomes: int
    known: int


def merge(target: Store, source: Store) -> Merged:
    """Add every run of ``source`` that ``target`` lacks, with outcomes, verdicts and artifacts, in one transaction.

    Runs get new numbers. Two runs are the same if plan, start, numerics and code are equal; a repeated merge adds only what is missing and
    updates a run that continued meanwhile. A run that still runs in ``source`` is interrupted in ``target``.
    """
    with source._reading() as theirs:
        for file in files_of(theirs):
            if not target.artifacts.path(file).is_file():
                target.artifacts.put(file, source.artifacts.read(file))
        with target._writing() as ours:
            in_order = select(RunRow).order_by(RunRow.id)
            existing = {_origin(run): run for run in ours.scalars(in_order)}
            pairs = [(run, existing.get(_origin(run)) or _new_run(ours, run)) for run in theirs.scalars(in_order)]
            numbers: dict[int, int] = {}  # of present outcomes: in the source, and in the target
            added = sum(_add_outcomes(theirs, ours, run.id, copy.id, numbers) for run, copy in pairs)
            for run, copy in pairs:
                memberships = theirs.scalars(select(MembershipRow.outcome_id).filter_by(run_id=run.id).order_by(MembershipRow.id))
                insert_once(ours, MembershipRow, *({"run_id": copy.id, "outcome_id": numbers[number]} for number in memberships))
                if copy.state == "interrupted":
                    copy.state = "interrupted" if run.state == "running" else run.state
                    copy.finished, copy.verdicts = run.finished, run.verdicts
            known = sum(_origin(run) in existing for run, _ in pairs)
            return Merged(len(pairs) - known, added, known)


def _origin(run: RunRow) -> str:
    return str(run.code.get(ORIGIN) or f"{run.plan} {run.started} {run.fingerprint} {run.code.get('hash')}")


def _new_run(ours: Session, run: RunRow) -> RunRow:
    """Add a run without outcomes, interrupted until all of it is copied."""
    copy = RunRow(**columns(run, code={**run.code, ORIGIN: _origin(run)}, state="interrupted"))
    ours.add(copy)
    ours.flush()
    return copy


def _add_outcomes(theirs: Session, ours: Session, run: int, copy: int, numbers: dict[int, int]) -> int:
    """Copy the outcomes of a run that its copy lacks, and return how many; fill ``numbers``.

    Case and time of saving identify an outcome within its run.
    """
    keys = select(OutcomeRow.case_key, OutcomeRow.saved, OutcomeRow.id)
    present = {(key, saved): number for key, saved, number in ours.execute(keys.filter_by(run_id=copy))}
    measured = theirs.scalars(whole_outcomes().filter_by(run_id=run).order_by(OutcomeRow.id)).all()
    missing = [row for row in measured if (row.case_key, row.saved) not in present]
    insert_once(ours, CaseRow, *(columns(row.case) for row in missing))
    copies = [_copy_outcome(row, copy) for row in missing]
    ours.add_all(copies)
    ours.flush()
    present |= {(row.case_key, row.saved): row.id for row in copies}
    numbers |= {row.id: present[row.case_key, row.saved] for row in measured}
    return len(missing)


def _copy_outcome(row: OutcomeRow, run: int) -> OutcomeRow:
    pair = {"pair": {**row.facts["pair"], "run": run}} if "pair" in row.facts else {}
    return OutcomeRow(**columns(row, run_id=run, facts={**row.facts, **pair}))
