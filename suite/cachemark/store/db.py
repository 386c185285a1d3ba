"""The store: every outcome of every run, in one place, each in one transaction."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from sqlalchemy import ColumnElement, Engine, Select, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session, joinedload, selectinload

from ..core.differences import differences
from ..core.errors import BadStore, NothingMeasured
from ..core.result import CONDENSED, Environment, Outcome, Status
from ..core.spec import Case
from .artifacts import Artifacts
from .database import open_file, open_server, writer
from .faults import guard
from .rows import COMPARISON, RunRecord, Verdict, case_values, environment_values, outcome_of, outcome_row, run_of, utc_now, verdict_of
from .schema import (
    RUN_STATES,
    Base,
    BaselineRow,
    CaseRow,
    CondensedRow,
    EnvironmentRow,
    LeaseRow,
    MembershipRow,
    OutcomeRow,
    RunRow,
    TrialRow,
    VerdictRow,
)

LAPSE = 150.0  # seconds without a sign of life after which a lease no longer holds: five of the holder's beats
_INSERT: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


class Store:
    """A database with the artifacts beside it. Several processes may write at once; each opens a store of its own.

    Every method may raise :class:`BadStore`. A store is closed by ``close()`` or by leaving its ``with`` block.
    """

    def __init__(self, engine: Engine, where: str, artifacts: Artifacts) -> None:
        """For :meth:`open`; ``where`` names the database to people."""
        self.where = where
        self._engine = engine
        self._writer = writer(engine)
        self.artifacts = artifacts

    @classmethod
    def open(cls, url_or_path: str | Path, *, create: bool = True, read_only: bool = False, artifacts: str | Path | None = None) -> Self:
        """Open a SQLite file (a path) or a server (``postgresql+psycopg://…``), and bring its schema up to date.

        ``artifacts`` is the folder of the artifacts: by default ``<database>.artifacts`` beside the file, for a server in the
        working directory. ``create=False`` refuses to make a new file.
        """
        text = str(url_or_path)
        if "://" in text and not text.startswith("sqlite:///"):
            engine, where = open_server(text, read_only=read_only)
            folder = Path(f"{engine.url.database}.artifacts")
        else:
            path = Path(text.removeprefix("sqlite:///"))
            engine, where = open_file(path, create=create, read_only=read_only), str(path)
            folder = path.with_name(path.name + ".artifacts")
        return cls(engine, where, Artifacts(Path(artifacts or folder)))

    def close(self) -> None:
        """Give the connections back. SQLite then folds its write-ahead log into the file."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        with guard(self.where), Session(self._engine) as session:
            yield session

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        with guard(self.where), Session(self._writer) as session, session.begin():
            yield session

    # runs

    def begin_run(self, plan: str, plan_json: Mapping[str, Any], environment: Environment, code: Mapping[str, Any]) -> int:
        """Number of a new run. ``code`` is {"commit", "dirty", "hash", "version"} of the measuring code."""
        values = environment_values(environment)
        with self._writing() as session:
            _insert_once(session, EnvironmentRow, values)
            row = RunRow(
                plan=plan, plan_json=dict(plan_json), started=utc_now(), state="running", code=dict(code),
                code_commit=str(code.get("commit") or ""),
                environment=session.scalars(select(EnvironmentRow).filter_by(digest=values["digest"])).one(),
            )
            session.add(row)
            session.flush()
            return row.id

    @contextmanager
    def new_run(self, plan: str, plan_json: Mapping[str, Any], environment: Environment, code: Mapping[str, Any]) -> Iterator[int]:
        """The number of a new run, which lasts as long as the block and then says how it ended."""
        run_id, state = self.begin_run(plan, plan_json, environment, code), "interrupted"
        try:
            yield run_id
            state = "finished"
        except Exception:
            state = "failed"
            raise
        finally:
            self.finish_run(run_id, state)

    def finish_run(self, run_id: int, state: str) -> None:
        """Close a run as ``finished``, ``interrupted`` or ``failed``."""
        if state not in RUN_STATES[1:]:
            raise ValueError(f"a run ends as one of {RUN_STATES[1:]}, not {state!r}")
        with self._writing() as session:
            row = self._run_row(session, run_id)
            row.state, row.finished = state, utc_now()

    def runs(self) -> list[RunRecord]:
        """Every run, newest first."""
        with self._reading() as session:
            found = session.scalars(select(RunRow).options(joinedload(RunRow.environment)).order_by(RunRow.id.desc()))
            return [run_of(row) for row in found]

    def run(self, run_id: int | None = None) -> RunRecord:
        """One run, by default the newest that is no comparison. An empty store is :class:`NothingMeasured`."""
        with self._reading() as session:
            plain = select(func.max(RunRow.id)).where(RunRow.plan.not_like(f"{COMPARISON}%"))
            if run_id is None and (run_id := session.scalar(plain)) is None:
                raise NothingMeasured(f"{self.where} holds no run.", remedy="Run: cachemark run PLAN")
            return run_of(self._run_row(session, run_id))

    def _run_row(self, session: Session, run_id: int) -> RunRow:
        row = session.get(RunRow, run_id)
        if row is None:
            newest = session.scalar(select(func.max(RunRow.id)))
            raise BadStore(f"There is no run {run_id} in {self.where}.", remedy=f"The newest is {newest or 'none'}.")
        return row

    # outcomes

    def save(self, run_id: int, outcome: Outcome, artifacts: Mapping[str, bytes] | None = None, *, trial: str = "") -> int:
        """Save an outcome with its samples in one transaction, and return its number.

        ``artifacts`` maps names such as ``tokens.safetensors`` to bytes; they are on disk before the rows are. Outcomes saved
        under one ``trial`` name shared a process. A killed or failed save leaves nothing of the outcome in the database.
        """
        files = {name: self._checked(file) for name, file in outcome.artifacts.items() if name not in (artifacts or {})}
        files.update({name: self.artifacts.put(name, data) for name, data in (artifacts or {}).items()})
        with self._writing() as session:
            self._run_row(session, run_id)
            _insert_once(session, CaseRow, case_values(outcome.case))
            row = outcome_row(outcome, _trial(session, run_id, trial), files)
            session.add(row)
            session.flush()
            session.add(MembershipRow(run_id=run_id, outcome_id=row.id, carried=False))
            told = outcome.facts.get(CONDENSED, {})  # of one that was pruned elsewhere
            session.add_all(CondensedRow(outcome_id=row.id, metric=name, count=of["count"], mean=of["mean"]) for name, of in told.items())
            return row.id

    def _checked(self, file: str) -> str:
        if not self.artifacts.path(file).is_file():
            raise BadStore(f"Artifact {file} is not in {self.artifacts.root}.", remedy="Hand its bytes to save(), or leave it out.")
        return file

    def find(self, skip_key: str) -> Outcome | None:
        """The newest ok outcome with this skip key that keeps every raw value. The empty key belongs to nobody."""
        with self._reading() as session:
            row = _newest_whole(session, skip_key=skip_key) if skip_key else None
            return None if row is None else outcome_of(row, self.where)

    def carry(self, run_id: int, skip_key: str) -> Outcome | None:
        """Add the outcome of :meth:`find` to this run, marked as carried unless the run has it already, and return it."""
        with self._writing() as session:
            self._run_row(session, run_id)
            row = _newest_whole(session, skip_key=skip_key) if skip_key else None
            if row is None:
                return None
            _insert_once(session, MembershipRow, {"run_id": run_id, "outcome_id": row.id, "carried": True})
            return outcome_of(row, self.where)

    def outcomes(self, run_id: int) -> list[Outcome]:
        """All outcomes of a run, carried ones among them, in the order in which they joined it."""
        with self._reading() as session:
            self._run_row(session, run_id)
            found = session.scalars(_whole_outcomes().join(MembershipRow).where(MembershipRow.run_id == run_id).order_by(MembershipRow.id))
            return [outcome_of(row, self.where) for row in found]

    def carried(self, run_id: int) -> frozenset[str]:
        """Keys of the cases whose outcome in this run was measured in an earlier one."""
        with self._reading() as session:
            wanted = select(OutcomeRow.case_key).join(MembershipRow)
            return frozenset(session.scalars(wanted.where(MembershipRow.run_id == run_id, MembershipRow.carried)))

    def trials(self, run_id: int) -> dict[str, str]:
        """The trial in which each case of a run was measured, by the case's key: its run and its name, or its number where it has none."""
        with self._reading() as session:
            wanted = select(OutcomeRow.case_key, TrialRow).select_from(OutcomeRow).join(TrialRow).join(MembershipRow)
            found = session.execute(wanted.where(MembershipRow.run_id == run_id))
            return {key: f"{trial.name or trial.id} of run {trial.run_id}" for key, trial in found}

    def latest_for_case(self, case_key: str, *, ok: bool = False) -> Outcome | None:
        """The newest outcome of a case, whatever its status, with which ``run --explain`` compares; or the newest that ended ``ok``
        and keeps every raw value, whose quality may be reused."""
        with self._reading() as session:
            row = (_newest_whole if ok else _newest)(session, case_key=case_key)
            return None if row is None else outcome_of(row, self.where)

    def seconds(self, case_key: str, machine_class: str) -> float | None:
        """Seconds that a case took the last time that it ended well on machines of this class, or None."""
        with self._reading() as session:
            ended_well = select(OutcomeRow.seconds).filter_by(case_key=case_key, status=str(Status.OK))
            here = ended_well.join(TrialRow).join(RunRow).join(EnvironmentRow).where(EnvironmentRow.machine_class == machine_class)
            return session.scalar(here.order_by(OutcomeRow.id.desc()).limit(1))

    def nearest(self, case: Case, limit: int = 3) -> list[tuple[Outcome, dict[str, tuple[Any, Any]]]]:
        """Newest outcomes of other cases of this model, those with the fewest differing fields first, with those fields."""
        with self._reading() as session:
            others = session.scalars(select(CaseRow).where(CaseRow.model == case.model, CaseRow.key != case.key))
            changed = {row.key: differences(row.body, case.to_json()) for row in others}
        nearest = sorted(changed, key=lambda key: (len(changed[key]), key))[:limit]
        found = ((self.latest_for_case(key), changed[key]) for key in nearest)
        return [(outcome, fields) for outcome, fields in found if outcome is not None]

    # baselines and verdicts

    def note_baseline(
        self, digest: str, *, name: str, plan: str, machine_class: str, reason: str = "", run_id: int | None = None,
    ) -> int:
        """Number of the baseline whose text has this SHA-256, filed now if it is new."""
        values = {"digest": digest, "name": name, "plan": plan, "machine_class": machine_class, "reason": reason, "run_id": run_id}
        with self._writing() as session:
            _insert_once(session, BaselineRow, {**values, "saved": utc_now()})
            return session.scalars(select(BaselineRow.id).filter_by(digest=digest)).one()

    def save_verdicts(self, run_id: int, baseline_id: int, verdicts: Sequence[Verdict]) -> None:
        """File the verdicts of a gate on a run against a baseline, in place of earlier ones."""
        with self._writing() as session:
            self._run_row(session, run_id)
            session.execute(delete(VerdictRow).filter_by(run_id=run_id, baseline_id=baseline_id))
            session.add_all(VerdictRow(run_id=run_id, baseline_id=baseline_id, **vars(v)) for v in verdicts)

    def verdicts(self, run_id: int) -> list[Verdict]:
        """The verdicts of gates on a run, in the order in which they were filed."""
        with self._reading() as session:
            return [verdict_of(row) for row in session.scalars(select(VerdictRow).filter_by(run_id=run_id).order_by(VerdictRow.id))]

    # leases

    def take_device(self, device: str, holder: str) -> str:
        """Enter ``holder`` as the one that measures on a device, or again as a sign of life. Returns the holder: the caller, or another one
        that has not ended and whose last sign of life is not :data:`LAPSE` seconds old."""
        with self._writing() as session:
            _insert_once(session, LeaseRow, {"device": device, "holder": holder, "beat": time.time()})
            row = session.scalars(select(LeaseRow).filter_by(device=device).with_for_update()).one()
            if row.holder != holder and not _lapsed(row.holder, row.beat, holder):
                return row.holder
            row.holder, row.beat = holder, time.time()
            return holder

    def give_device(self, device: str, holder: str) -> None:
        """Delete the lease of a holder on a device; another one's is left alone."""
        with self._writing() as session:
            session.execute(delete(LeaseRow).filter_by(device=device, holder=holder))

    def counts(self) -> dict[str, int]:
        """Rows of each table."""
        with self._reading() as session:
            return {t.name: session.scalar(select(func.count()).select_from(t)) or 0 for t in Base.metadata.sorted_tables}


def _whole_outcomes() -> Select[Any]:  # the type of a Select with one entity is spelt otherwise in SQLAlchemy 2.0 and 2.1
    return select(OutcomeRow).options(joinedload(OutcomeRow.case), selectinload(OutcomeRow.samples), selectinload(OutcomeRow.artifacts),
                                      selectinload(OutcomeRow.condensed))


def _newest_whole(session: Session, **columns: str) -> OutcomeRow | None:
    """The newest ok outcome that was not pruned: quantiles without artifacts do not stand for a measurement."""
    return _newest(session, OutcomeRow.id.not_in(select(CondensedRow.outcome_id)), status=str(Status.OK), **columns)


def _newest(session: Session, *conditions: ColumnElement[bool], **columns: str) -> OutcomeRow | None:
    wanted = _whole_outcomes().filter_by(**columns).where(*conditions)
    newest: OutcomeRow | None = session.scalar(wanted.order_by(OutcomeRow.id.desc()).limit(1))
    return newest


def _insert_once(session: Session, table: type[Base], values: Mapping[str, Any]) -> None:
    """Insert a row unless one with the same unique key is there, also when another process inserts it at this moment."""
    session.execute(_INSERT[session.get_bind().dialect.name](table).values(**values).on_conflict_do_nothing())


def _trial(session: Session, run_id: int, name: str) -> int:
    """Number of the trial of that name in the run; an unnamed one is always new."""
    if name:
        _insert_once(session, TrialRow, {"run_id": run_id, "name": name})
        return session.scalars(select(TrialRow.id).filter_by(run_id=run_id, name=name)).one()
    row = TrialRow(run_id=run_id, name=None)
    session.add(row)
    session.flush()
    return row.id


def _lapsed(theirs: str, beat: float, us: str) -> bool:
    """Return whether the lease of a holder has ended without being given back, by its last sign of life (seconds since 1970).

    On the machine of ``us`` the process itself tells. On another one the clocks of both are trusted to a minute or two: a beat from the
    future counts as one equally far in the past.
    """
    machine, _, number = theirs.rpartition(" ")
    if machine != us.rpartition(" ")[0] or not number.isdecimal():
        return abs(time.time() - beat) > LAPSE
    try:
        os.kill(int(number), 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)  # else it runs, as another user's
    return False
