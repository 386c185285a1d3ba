"""All damage of a store, and a repair that sets it aside: nothing is deleted, and what is left can be judged again.

A damaged outcome leaves its runs with all that belongs to it. A run, an environment, a trial and a baseline stay, with an empty or unknown
value in place of the damaged one. Every row as it was found is kept in the table ``set_aside``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ForeignKeyConstraint, and_, delete, func, inspect, select, text, update
from sqlalchemy.orm import Session, joinedload

from ..core.errors import BadStore
from ..core.result import Environment
from .damage import Damage, damage, is_moment, lacks
from .db import Store
from .rows import UNDATED, UNKNOWN, environment_values, insert_once, shown_name, utc_now
from .schema import (
    RUN_STATES,
    ArtifactRow,
    Base,
    CondensedRow,
    EnvironmentRow,
    MembershipRow,
    OutcomeRow,
    RunRow,
    SampleRow,
    SetAsideRow,
    TrialRow,
    VerdictRow,
)

FILE = "file"  # in place of a table: an artifact that is not in its folder as it was saved
_PARTS: tuple[type[Base], ...] = (CondensedRow, SampleRow, ArtifactRow, MembershipRow)  # of an outcome, each before what it refers to
_CLASSES: dict[str, type[Base]] = {mapper.class_.__tablename__: mapper.class_ for mapper in Base.registry.mappers}
_TABLES = {table.name: _CLASSES[table.name] for table in Base.metadata.sorted_tables}  # each behind those that it refers to


def find(store: Store) -> list[Damage]:
    """All damage: to every row, to what rows refer to, and to artifacts, whose content is read."""
    with store._reading() as session:
        found = list(_of_rows(session))
        files = sorted({name for name in session.scalars(select(ArtifactRow.file)) if isinstance(name, str)})
    for file in files:
        try:
            store.artifacts.read(file)
        except BadStore as error:
            found.append(Damage(FILE, (file,), error.message))
    return found


def repair(store: Store) -> Counter[str]:
    """Set all damage to rows aside, in one transaction; the number of rows by table, and of outcomes whose lost place in a run could be
    told from what is left (``relinked``). Files that are missing or damaged are left as they
    are: the figures measured beside them stand."""
    with store._writing() as session:
        bench = _Bench(session)
        bench.done["relinked"] = _relink(session)
        while found := list(_of_rows(session)):
            for one in found:
                bench.mend(one)
            session.expire_all()
    return +bench.done


def _relink(session: Session) -> int:
    """Bring back rows that say no more than others do: the trial of an outcome by the run that lists it, and the other way round."""
    homes = select(OutcomeRow.trial_id, func.min(MembershipRow.run_id)).join(MembershipRow, MembershipRow.outcome_id == OutcomeRow.id)
    lost = homes.where(MembershipRow.carried.is_(False), MembershipRow.run_id.in_(select(RunRow.id)),
                       OutcomeRow.trial_id.not_in(select(TrialRow.id))).group_by(OutcomeRow.trial_id)
    trials = [TrialRow(id=trial, run_id=run, name=None) for trial, run in session.execute(lost)]
    session.add_all(trials)
    session.flush()
    unlisted = [MembershipRow(run_id=run, outcome_id=number, carried=False) for number, run in session.execute(_unlisted())]
    session.add_all(unlisted)
    session.flush()
    return len(trials) + len(unlisted)


def _unlisted() -> Any:  # the type of a Select is spelt otherwise in SQLAlchemy 2.0 and 2.1
    """Outcomes that the run in which they were measured does not list, with that run."""
    listed = select(MembershipRow.outcome_id).where(MembershipRow.run_id == TrialRow.run_id, MembershipRow.outcome_id == OutcomeRow.id)
    found: Any = select(OutcomeRow.id, TrialRow.run_id).join(TrialRow, TrialRow.id == OutcomeRow.trial_id)
    return found.where(TrialRow.run_id.in_(select(RunRow.id)), ~listed.exists())


# -- finding ----------------------------------------------------------------------------------------------------------
def _of_rows(session: Session) -> Iterator[Damage]:
    for name, table in _TABLES.items():
        if not inspect(session.connection()).has_table(name):
            continue  # a store of an earlier schema that is only read
        for row in session.scalars(select(table).options(*([joinedload(RunRow.environment)] if table is RunRow else []))):
            if found := damage(row):
                yield found
        for constraint in sorted(Base.metadata.tables[name].foreign_key_constraints, key=lambda one: str(one.name)):
            if table is not RunRow:  # of which the rows say so themselves
                yield from _dangling(session, table, constraint)
    held = func.coalesce(func.sum(SampleRow.count), 0)
    counted = select(OutcomeRow.id, OutcomeRow.n_samples, held).outerjoin(SampleRow, SampleRow.outcome_id == OutcomeRow.id)
    for number, stated, there in session.execute(counted.group_by(OutcomeRow.id, OutcomeRow.n_samples)):
        if stated != there:
            yield Damage("outcome", (number,), lacks(stated, there))


    for number, run in session.execute(_unlisted()):
        yield Damage("outcome", (number,), f"run {run}, in which it was measured, does not list it")


def _dangling(session: Session, table: type[Base], constraint: ForeignKeyConstraint) -> Iterator[Damage]:
    """Rows that refer to what is not there."""
    here, there = constraint.table, constraint.referred_table.alias()
    pairs = [(element.parent, there.c[element.column.name]) for element in constraint.elements]
    missing: Any = select(*inspect(table).primary_key, *(mine for mine, _ in pairs)).outerjoin_from(
        here, there, and_(*(mine == other for mine, other in pairs)))
    keys = len(inspect(table).primary_key)
    for row in session.execute(missing.where(pairs[0][0].is_not(None), pairs[0][1].is_(None))):
        yield Damage(str(here.name), tuple(row[:keys]), f"there is no {constraint.referred_table.name} {' '.join(map(str, row[keys:]))}")


# -- setting aside ----------------------------------------------------------------------------------------------------
@dataclass
class _Bench:
    """A repair under way. What is done already is not done again: one row may be damaged in several ways."""

    session: Session
    done: Counter[str] = field(default_factory=Counter)
    known: set[tuple[str, tuple[Any, ...]]] = field(default_factory=set)

    def mend(self, found: Damage) -> None:
        """Set aside what is damaged, with all that cannot stand without it."""
        table, (first, *_) = found.table, found.key
        if table in ("outcome", "sample", "artifact", "condensed") and self._is_there(OutcomeRow, first):
            self._outcome(first, str(found))
        elif table in ("case", "trial"):
            column = OutcomeRow.case_key if table == "case" else OutcomeRow.trial_id
            if table == "trial" and self._is_there(RunRow, self.session.scalar(select(TrialRow.run_id).where(TrialRow.id == first))):
                self._change(TrialRow, first, found, name=None)
                return
            for number in self.session.scalars(select(OutcomeRow.id).where(column == first)).all():
                self._outcome(number, str(found))
            self._take(table, found.key, str(found))
        elif table == "run":
            self._run(first, found)
        elif table == "environment":
            row = self.session.get_one(EnvironmentRow, first)
            names = {name: shown_name(getattr(row, name)) for name in ("digest", "device", "machine_class", "fingerprint")}
            self._change(EnvironmentRow, first, found, **names, facts=row.facts if isinstance(row.facts, dict) else {})
        else:
            for number in self.session.scalars(select(VerdictRow.id).where(VerdictRow.baseline_id == first)) if table == "baseline" else ():
                self._take("verdict", (number,), str(found))
            self._take(table, found.key, str(found))

    def _is_there(self, table: type[Base], key: Any) -> bool:
        return key is not None and self.session.get(table, key) is not None

    def _outcome(self, number: int, reason: str) -> None:
        for part in _PARTS:
            column = part.__table__.c.outcome_id
            for key in self.session.execute(select(*inspect(part).primary_key).where(column == number)).all():
                self._take(part.__tablename__, tuple(key), reason)
        self._take("outcome", (number,), reason)

    def _run(self, number: int, found: Damage) -> None:
        row = self.session.get_one(RunRow, number)
        environment = row.environment_id
        if row.environment is None:
            values = environment_values(Environment(UNKNOWN, UNKNOWN, UNKNOWN))
            insert_once(self.session, EnvironmentRow, values)
            environment = self.session.scalars(select(EnvironmentRow.id).filter_by(digest=values["digest"])).one()
        self._change(
            RunRow, number, found, environment_id=environment, plan=shown_name(row.plan, "plan"),
            plan_json=row.plan_json if isinstance(row.plan_json, dict) else {}, code=row.code if isinstance(row.code, dict) else {},
            code_commit=shown_name(row.code_commit), started=row.started if is_moment(row.started) else UNDATED,
            finished=row.finished if is_moment(row.finished) else None, state=row.state if row.state in RUN_STATES else "failed",
        )

    def _change(self, table: type[Base], number: int, found: Damage, **values: Any) -> None:
        """Keep the row as it was found, and put other values in its place."""
        if self._kept(table.__tablename__, (number,), f"{found}; other values stand in its place"):
            self.session.execute(update(table).where(inspect(table).primary_key[0] == number).values(**values))

    def _take(self, table: str, key: tuple[Any, ...], reason: str) -> None:
        """Keep the row as it was found, and take it out of its table."""
        if self._kept(table, key, reason):
            self.session.execute(delete(_TABLES[table]).where(*_is(table, key)))

    def _kept(self, table: str, key: tuple[Any, ...], reason: str) -> bool:
        """Copy a row into ``set_aside``, once."""
        if (table, key) in self.known:
            return False
        self.known.add((table, key))
        columns = ", ".join(f'"{column.name}"' for column in Base.metadata.tables[table].columns)
        where = " AND ".join(f'"{column.name}" = :{column.name}' for column in inspect(_TABLES[table]).primary_key)
        named = {column.name: value for column, value in zip(inspect(_TABLES[table]).primary_key, key, strict=True)}
        row = self.session.execute(text(f'SELECT {columns} FROM "{table}" WHERE {where}'), named).mappings().first()
        content = json.dumps({name: _plain(value) for name, value in (row or {}).items()})
        self.session.add(SetAsideRow(source=table, reason=reason, content=content, saved=utc_now()))
        self.done[table] += 1
        return True


def _is(table: str, key: tuple[Any, ...]) -> list[Any]:
    return [column == value for column, value in zip(inspect(_TABLES[table]).primary_key, key, strict=True)]


def _plain(value: Any) -> Any:
    """A value of a column as JSON has it."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"hex": bytes(value).hex()}
    return value if value is None or isinstance(value, (bool, int, str)) else repr(value)
