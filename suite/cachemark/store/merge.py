"""Merging of stores from machines that could not write into a common store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Text, func, insert, select, type_coerce
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InterfaceError, ProgrammingError, StatementError
from sqlalchemy.orm import Session

from ..core.errors import BadStore
from .database import guard, hold_artifacts
from .db import Advanced, Store, files_of, unheard
from .rows import check_parts, checked_case, checked_facts, columns, insert_once
from .schema import Base, CaseRow, Json, MalformedRow, MembershipRow, OutcomeRow, RunRow

CHUNK = 100  # artifacts that are copied before their folders are flushed
FILES, OUTCOMES = "artifacts", "outcomes"
ORIGIN = "merged_from"  # key in a run's code: identifies the run, so that it is merged once


@dataclass(frozen=True)
class Merged:
    """Numbers of added runs and outcomes, and of runs that were present already."""

    runs: int
    outcomes: int
    known: int


def merge(target: Store, source: Store, advanced: Advanced = unheard) -> Merged:
    """Add every run of ``source`` that ``target`` lacks, with outcomes, verdicts and artifacts.

    This is one transaction. Runs get new numbers. Two runs are the same if plan, start, numerics and code are equal; a repeated merge adds
    only missing parts and updates a run that continued meanwhile. A run that is active in ``source`` is interrupted in ``target``.
    """
    in_order = select(RunRow).order_by(RunRow.id)
    with source._reading() as theirs:
        files, runs = sorted(files_of(theirs)), theirs.scalars(in_order).all()
        for start in range(0, len(files), CHUNK):
            target.artifacts.copy(source.artifacts, files[start : start + CHUNK])
            advanced(FILES, min(start + CHUNK, len(files)), len(files))
        with _blaming(source.where), target._writing() as ours:
            hold_artifacts(ours)
            target.artifacts.copy(source.artifacts, files)  # those that a prune has deleted meanwhile
            existing = {_origin(run): run for run in ours.scalars(in_order)}
            pairs = [(run, existing.get(_origin(run)) or _new_run(ours, run)) for run in runs]
            added = _add_outcomes(_Source(theirs, source.where), ours, pairs, advanced)
            for run, copy in pairs:
                if copy.state == "interrupted":
                    copy.state = "interrupted" if run.state == "running" else run.state
                    copy.finished, copy.verdicts = run.finished, run.verdicts
            present = sum(_origin(run) in existing for run in runs)
            return Merged(len(pairs) - present, added, present)


@contextmanager
def _blaming(where: str) -> Iterator[None]:
    """Raise BadStore if copied rows break a constraint or a type, as a damaged source's do."""
    try:
        yield
    except StatementError as error:
        if isinstance(error, DBAPIError) and not isinstance(error, IntegrityError | DataError | InterfaceError | ProgrammingError):
            raise
        problem = " ".join(str(error.orig or error).split())[:200]
        raise BadStore(f"{where} is damaged: a row cannot be copied ({problem}).", remedy="Restore it from a backup.") from error


@dataclass(frozen=True)
class _Source:
    """The store that is read; its damage is not blamed on the store that is written."""

    session: Session
    where: str

    def rows(self, table: type[Base], *conditions: ColumnElement[bool]) -> list[dict[str, Any]]:
        """Return rows in order, with columns of JSON as text. Raises BadStore for other text."""
        columns, parse = table.__table__.columns, Json().process_result_value
        texts = [column.name for column in columns if isinstance(column.type, Json)]
        selected = [type_coerce(column, Text).label(column.name) if column.name in texts else column for column in columns]
        with guard(self.where):
            query = select(*selected).where(*conditions).order_by(*table.__table__.primary_key)
            rows = [dict(row) for row in self.session.execute(query).mappings()]
            for row in rows:
                parsed = {name: parse(row[name], None) for name in texts}
                if table is OutcomeRow:
                    check_parts(row["id"], row["seconds"], parsed["artifacts"])
                    checked_facts(row["id"], parsed["facts"])
                elif table is CaseRow:
                    checked_case(row["key"], parsed["body"])
        return rows

    def memberships(self, runs: Mapping[int, int], outcomes: Mapping[int, int]) -> list[dict[str, int]]:
        """Return all memberships with other numbers of runs and outcomes. Raises BadStore if one is missing."""
        with guard(self.where):
            pairs = self.session.execute(select(MembershipRow.run_id, MembershipRow.outcome_id).order_by(MembershipRow.id))
            try:
                return [{"run_id": runs[run], "outcome_id": outcomes[number]} for run, number in pairs]
            except KeyError as error:
                raise MalformedRow(f"A membership refers to the missing run or outcome {error}") from error


def _origin(run: RunRow) -> str:
    return str(run.code.get(ORIGIN) or f"{run.plan} {run.started} {run.fingerprint} {run.code.get('hash')}"
               f"{run.plan_json.get('sha256', '')}")


def _new_run(ours: Session, run: RunRow) -> RunRow:
    """Add a run without outcomes, interrupted until all of it is copied."""
    copy = RunRow(**columns(run, code={**run.code, ORIGIN: _origin(run)}, state="interrupted"))
    ours.add(copy)
    ours.flush()
    return copy


def _add_outcomes(source: _Source, ours: Session, pairs: list[tuple[RunRow, RunRow]], advanced: Advanced) -> int:
    """Copy the outcomes that the copies of runs lack, with cases and memberships; return how many.

    Case and time of saving identify an outcome within its run. Columns of JSON are copied as text."""
    existing_keys = set(ours.scalars(select(CaseRow.key)))
    insert_once(ours, CaseRow, *(row for row in source.rows(CaseRow) if row["key"] not in existing_keys))
    total = source.session.scalar(select(func.count()).select_from(OutcomeRow)) or 0
    added = done = 0
    numbers: dict[int, int] = {}  # of outcomes: in the source, and in the target
    for run, copy in pairs:
        present = _numbers(ours, copy.id)
        measured = source.rows(OutcomeRow, OutcomeRow.run_id == run.id)
        missing = [row for row in measured if (row["case_key"], row["saved"]) not in present]
        if missing:
            ours.execute(insert(OutcomeRow), [_copy_outcome(row, copy.id) for row in missing])
            present = _numbers(ours, copy.id)
        numbers |= {row["id"]: present[row["case_key"], row["saved"]] for row in measured}
        added, done = added + len(missing), done + len(measured)
        advanced(OUTCOMES, done, total)
    insert_once(ours, MembershipRow, *source.memberships({run.id: copy.id for run, copy in pairs}, numbers))
    return added


def _numbers(session: Session, run: int) -> dict[tuple[str, str], int]:
    """Return the number of each outcome of a run by case and time of saving."""
    rows = session.execute(select(OutcomeRow.case_key, OutcomeRow.saved, OutcomeRow.id).where(OutcomeRow.run_id == run))
    return {(key, saved): number for key, saved, number in rows}


def _copy_outcome(row: dict[str, Any], run: int) -> dict[str, Any]:
    """Return the values of an outcome's copy in a run; a pair names the run in its facts."""
    facts = row["facts"]
    if '"pair":' in facts and (parsed := checked_facts(row["id"], json.loads(facts))).pair:
        facts = replace(parsed, pair=replace(parsed.pair, run=run)).to_json()
    return {name: value for name, value in row.items() if name != "id"} | {"run_id": run, "facts": facts}
