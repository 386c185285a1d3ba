"""Store of outcomes, one transaction each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, Self

from sqlalchemy import URL, ColumnElement, Engine, Select, func, select
from sqlalchemy.orm import Session, joinedload

from ..core.errors import BadStore, NothingMeasured
from ..core.result import PRICE, Environment, Outcome, Status
from ..core.spec import IMPORTED, Case
from . import leases
from .artifacts import Artifacts, artifacts_of_server
from .database import guard, hold_artifacts, lost_log, open_file, open_server, writer
from .differences import differences
from .location import located, shown
from .rows import (
    COMPARISON,
    RunRecord,
    Verdict,
    case_of,
    insert_once,
    is_number,
    moment,
    outcome_of,
    outcome_row,
    priced,
    run_of,
    utc_now,
    values_of,
    verdicts_of,
)  # fmt: skip
from .schema import RUN_STATES, CaseRow, MalformedRow, MembershipRow, OutcomeRow, RunRow

Advanced = Callable[[str, int, int], None]  # called with the items of a long operation, how many are done, and their total
AT_ONCE = 1000  # outcomes that are read by one query, if no run has more
BUFFERED = 100  # rows of outcomes that are in memory beside the outcomes
MOST = 2**31  # numbers of rows are smaller, in every database


class Store:
    """Database with its artifact folder. Several processes may write at once, each through its own store.

    Every method may raise :class:`BadStore`, or StoreUnavailable if the disk is full, another process locks the database or the server does
    not answer.
    """

    def __init__(self, engine: Engine, location: Path | URL, artifacts: Artifacts) -> None:
        """Build a store for :meth:`open`; ``where`` names the database in messages."""
        self.file = location if isinstance(location, Path) else None
        self.where = shown(location)
        self._engine = engine
        self._writer = writer(engine)
        self.artifacts = artifacts

    @classmethod
    def open(cls, url_or_path: str | Path, *, create: bool = True, read_only: bool = False) -> Self:
        """Open a SQLite file, a server (``postgresql+psycopg://…``) or the one that ``@FILE`` names; create tables if it is empty.

        Artifacts are in ``<database>.artifacts``, next to the file or for a server in the folder ``$CACHEMARK_ARTIFACTS``.
        ``create=False`` refuses to create a file.
        """
        location = located(url_or_path)
        if isinstance(location, Path):
            engine = open_file(location, create=create, read_only=read_only)
            return cls(engine, location, Artifacts(location.with_name(location.name + ".artifacts")))
        engine, database = open_server(location, read_only=read_only)
        try:
            return cls(engine, location, artifacts_of_server(database, read_only=read_only))
        except BadStore:
            engine.dispose()
            raise

    def close(self) -> None:
        """Close all connections. SQLite then merges its write-ahead log into the file."""
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

    def begin_run(
        self, plan: str, plan_json: Mapping[str, Any], environment: Environment, code: Mapping[str, Any], started: datetime | None = None,
    ) -> int:
        """Create a run and return its number.

        ``code`` is {"commit", "dirty", "hash", "version"}; ``started`` defaults to now.
        """
        with self._writing() as session:
            began = moment(started) if started else utc_now()
            row = RunRow(plan=plan, plan_json=plan_json, started=began, code=code, **environment.to_json())
            session.add(row)
            session.flush()
            leases.beat(session, row.id)
            return row.id

    @contextmanager
    def new_run(
        self, plan: str, plan_json: Mapping[str, Any], environment: Environment, code: Mapping[str, Any],
        times: tuple[datetime | None, datetime | None] = (None, None),
    ) -> Iterator[int]:
        """Yield the number of a new run, and store its final state when the block ends.

        ``times``: start and end of a run that is imported; the default is now.
        """
        run_id, state = self.begin_run(plan, plan_json, environment, code, times[0]), "interrupted"
        try:
            with self.alive(run_id):
                yield run_id
            state = "finished"
        except Exception:
            state = "failed"
            raise
        finally:
            self.finish_run(run_id, state, times[1])

    @contextmanager
    def alive(self, run_id: int, seconds: float = leases.BEAT) -> Iterator[None]:
        """Store a heartbeat of a run every so many ``seconds`` until the block ends."""
        done = threading.Event()

        def pulse() -> None:
            while not done.wait(seconds):
                with suppress(Exception), self._writing() as session:  # the run itself will meet a full disk, and report it
                    leases.beat(session, run_id)

        thread = threading.Thread(target=pulse, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def finish_run(self, run_id: int, state: str, finished: datetime | None = None) -> None:
        """Close a run as ``finished``, ``interrupted`` or ``failed``, now or at the given time."""
        if state not in RUN_STATES[1:]:
            raise ValueError(f"a run ends as one of {RUN_STATES[1:]}, not {state!r}")
        with self._writing() as session:
            row = self._run_row(session, run_id)
            row.state, row.finished = state, moment(finished) if finished else utc_now()

    def runs(self) -> list[RunRecord]:
        """Return every run, newest first; imports of one program by the time of their measurement."""
        with self._reading() as session:
            rows = session.scalars(select(RunRow).order_by(RunRow.id.desc())).all()
            return in_order([run_of(row, leases.state(session, row)) for row in rows])

    def run(self, run_id: int | None = None) -> RunRecord:
        """Return a run, by default the newest except comparisons, as in :meth:`runs`.

        Raises NothingMeasured if there is none.
        """
        with self._reading() as session:
            last = select(func.max(RunRow.id)).where(RunRow.plan.not_like(f"{COMPARISON}%"))
            if (number := session.scalar(last) if run_id is None else run_id) is None:
                hint = lost_log(self.file) if self.file else ""
                raise NothingMeasured(f"{self.where} holds no run.", remedy=f"Run: cachemark run PLAN{hint and '.'}{hint}")
            row = self._run_row(session, number)
            if run_id is None and row.plan in IMPORTED:
                by_time = select(RunRow).where(RunRow.plan == row.plan).order_by(RunRow.started.desc(), RunRow.id.desc())
                row = session.scalars(by_time.limit(1)).one()
            return run_of(row, leases.state(session, row))

    def _run_row(self, session: Session, run_id: int) -> RunRow:
        row = session.get(RunRow, run_id) if 0 < run_id < MOST else None
        if row is None:
            newest = session.scalar(select(func.max(RunRow.id)))
            raise BadStore(f"There is no run {run_id} in {self.where}.", remedy=f"The newest is {newest or 'none'}.")
        return row

    # outcomes

    def save(self, run_id: int, outcome: Outcome, artifacts: Mapping[str, bytes] | None = None, *, trial: str = "") -> int:
        """Save an outcome in one transaction, and return its number.

        ``artifacts`` maps names such as ``tokens.safetensors`` to bytes, which are written before the rows. Outcomes with the same
        ``trial`` shared a process. A killed or failed save leaves nothing of the outcome in the database.
        """
        files = {**outcome.artifacts, **{name: self.artifacts.put(name, data) for name, data in (artifacts or {}).items()}}
        with self._writing() as session:
            hold_artifacts(session)
            for name in [name for name, file in files.items() if not self.artifacts.path(file).is_file()]:
                if name not in (artifacts or {}):
                    raise BadStore(f"Artifact {files[name]} is not in {self.artifacts.root}.",
                                   remedy="Pass its bytes to save(), or leave it out.")
                self.artifacts.put(name, (artifacts or {})[name])  # a prune has deleted equal content meanwhile
            self._run_row(session, run_id)
            insert_once(session, CaseRow, {"key": outcome.case.key, "model": outcome.case.model, "body": outcome.case.to_json()})
            row = outcome_row(outcome, run_id, trial, files)
            session.add(row)
            session.flush()
            session.add(MembershipRow(run_id=run_id, outcome_id=row.id))
            return row.id

    def find(self, result_key: str) -> Outcome | None:
        """Return the newest ok outcome with this result key; None for the empty key."""
        with self._reading() as session:
            row = _reusable(session, result_key)
            return None if row is None else outcome_of(row)

    def reuse(self, run_id: int, result_key: str) -> Outcome | None:
        """Add the outcome of :meth:`find` to this run, marked as reused, and return it."""
        with self._writing() as session:
            self._run_row(session, run_id)
            row = _reusable(session, result_key)
            if row is None:
                return None
            insert_once(session, MembershipRow, {"run_id": run_id, "outcome_id": row.id})
            return outcome_of(row)

    def outcomes(self, run_id: int) -> list[Outcome]:
        """Return all outcomes of a run, including reused ones, in the order of insertion.

        If the run states the price of its device, timed outcomes have a cost."""
        return list(self.each_outcome(run_id))

    def each_outcome(self, run_id: int) -> Iterator[Outcome]:
        """Yield :meth:`outcomes` while they are read."""
        with self._reading() as session:
            price = _price(run_id, self._run_row(session, run_id).facts)
            query = whole_outcomes().join(MembershipRow).where(MembershipRow.run_id == run_id).order_by(MembershipRow.id)
            for row in session.scalars(query.execution_options(yield_per=BUFFERED)):
                yield priced(outcome_of(row), price)

    def values_measured(self, runs: Sequence[RunRecord], known: dict[str, Case]) -> Iterator[tuple[RunRecord, list[Outcome]]]:
        """Yield each run with what it measured itself, without facts and artifacts; ``known`` keeps each case, by key."""
        parts = (OutcomeRow.run_id, OutcomeRow.id, OutcomeRow.case_key, OutcomeRow.status, OutcomeRow.samples, OutcomeRow.judgement,
                 OutcomeRow.log)
        own = select(*parts).join(MembershipRow).where(MembershipRow.run_id == OutcomeRow.run_id).order_by(MembershipRow.id)
        cases = select(CaseRow).join(OutcomeRow, OutcomeRow.case_key == CaseRow.key)
        with self._reading() as session:
            counted = session.execute(select(OutcomeRow.run_id, func.count().label("many")).group_by(OutcomeRow.run_id))
            counts = {row.run_id: row.many for row in counted}
        ends = accumulate(counts.get(run.id, 0) for run in runs)
        for _, group in groupby(zip(runs, ends, strict=True), lambda each: each[1] // AT_ONCE):
            some = {run.id: (run, list[Any]()) for run, _ in group}
            with self._reading() as session:
                for row in session.execute(own.where(OutcomeRow.run_id.in_(some))):
                    some[row.run_id][1].append(row)
                if {row.case_key for _, rows in some.values() for row in rows} - known.keys():
                    known.update({row.key: case_of(row) for row in session.scalars(cases.where(OutcomeRow.run_id.in_(some)))})
                for run, rows in some.values():
                    price = _price(run.id, run.environment.facts)
                    yield run, [priced(values_of(row, known[row.case_key]), price) for row in rows]

    def reused(self, run_id: int) -> frozenset[str]:
        """Return the keys of cases whose outcome in this run was measured in an earlier run."""
        with self._reading() as session:
            query = select(OutcomeRow.case_key).join(MembershipRow)
            return frozenset(session.scalars(query.where(MembershipRow.run_id == run_id, OutcomeRow.run_id != run_id)))

    def trials(self, run_id: int) -> dict[str, str]:
        """Return the run and trial (name, else number of the outcome) that measured each case, by case key."""
        with self._reading() as session:
            query = select(OutcomeRow.case_key, OutcomeRow.trial, OutcomeRow.id, OutcomeRow.run_id).join(MembershipRow)
            rows = session.execute(query.where(MembershipRow.run_id == run_id))
            return {key: f"{name or number} of run {measured_in}" for key, name, number, measured_in in rows}

    def latest_for_case(self, case_key: str, *, ok: bool = False) -> Outcome | None:
        """Return the newest outcome of a case, or with ``ok`` the newest that ended ``ok``."""
        with self._reading() as session:
            row = _newest(session, case_key=case_key, **({"status": str(Status.OK)} if ok else {}))
            return None if row is None else outcome_of(row)

    def measured_cases(self, models: Iterable[str]) -> list[Case]:
        """Return the cases of these models that have an ok outcome, the newest last."""
        with self._reading() as session:
            ok = select(func.max(OutcomeRow.id).label("id"), OutcomeRow.case_key).where(OutcomeRow.status == str(Status.OK))
            newest = ok.group_by(OutcomeRow.case_key).subquery()
            rows = select(CaseRow).join(newest, newest.c.case_key == CaseRow.key).where(CaseRow.model.in_(set(models)))
            return [case_of(row) for row in session.scalars(rows.order_by(newest.c.id))]

    def latest_environment(self, case_key: str) -> Environment | None:
        """Return the environment of the newest outcome of a case, or None without one."""
        with self._reading() as session:
            row = _newest(session, case_key=case_key)
            return None if row is None else run_of(self._run_row(session, row.run_id), "").environment

    def seconds(self, case_key: str, machine_class: str) -> float | None:
        """Return the seconds of the newest ok outcome of a case on machines of this class, or None."""
        with self._reading() as session:
            ended_well = select(OutcomeRow.seconds).filter_by(case_key=case_key, status=str(Status.OK))
            here = ended_well.join(RunRow).where(RunRow.machine_class == machine_class)
            return session.scalar(here.order_by(OutcomeRow.id.desc()).limit(1))

    def nearest(self, case: Case) -> dict[str, tuple[Any, Any]]:
        """Return the differences from the most similar measured case of the model: fields with both values.

        Empty without such a case."""
        with self._reading() as session:
            measured = CaseRow.key.in_(select(OutcomeRow.case_key))
            other_cases = select(CaseRow.body).where(CaseRow.model == case.model, CaseRow.key != case.key, measured).order_by(CaseRow.key)
            return min((differences(body, case.to_json()) for body in session.scalars(other_cases)), key=len, default={})

    # baselines and verdicts

    def keep(self, run_id: int) -> None:
        """Mark a run as the source of a baseline, which :func:`~cachemark.store.upkeep.prune` keeps."""
        with self._writing() as session:
            self._run_row(session, run_id).kept = True

    def save_verdicts(self, run_id: int, verdicts: Sequence[Verdict]) -> None:
        """Store the verdicts on a comparison in place of earlier ones."""
        with self._writing() as session:
            self._run_row(session, run_id).verdicts = {"rows": [vars(verdict) for verdict in verdicts]}

    def verdicts(self, run_id: int) -> list[Verdict]:
        """Return the verdicts on a comparison in the order of insertion."""
        with self._reading() as session:
            return verdicts_of(self._run_row(session, run_id))


def _price(run_id: int, facts: Mapping[str, Any]) -> float:
    """Return the price per hour of the device of a run, 0 if there is none."""
    if not is_number(price := facts.get(PRICE, 0.0)):
        raise MalformedRow(f"Run {run_id} has a price that is not a number")
    return float(price)


def in_order(runs: list[RunRecord]) -> list[RunRecord]:
    """Return runs, newest first, with the imports of each program by the time of their measurement among their places."""
    by_time = {plan: sorted((run for run in runs if run.plan == plan), key=lambda run: (run.started, run.id)) for plan in IMPORTED}
    return [by_time[run.plan].pop() if run.plan in by_time else run for run in runs]


def unheard(what: str, done: int, total: int) -> None:
    """Do nothing with the progress of an operation."""


def whole_outcomes() -> Select[Any]:  # the type of a Select with one entity differs between SQLAlchemy 2.0 and 2.1
    """Return a query of outcomes with their cases."""
    return select(OutcomeRow).options(joinedload(OutcomeRow.case))


def files_of(session: Session, *conditions: ColumnElement[bool]) -> set[str]:
    """Return the names of the artifacts of outcomes."""
    files = {file for artifacts in session.scalars(select(OutcomeRow.artifacts).where(*conditions)) for file in artifacts.values()}
    if not all(isinstance(file, str) for file in files):
        raise MalformedRow("An outcome has an artifact without a name")
    return files


def _reusable(session: Session, result_key: str) -> OutcomeRow | None:
    return _newest(session, result_key=result_key, status=str(Status.OK)) if result_key else None


def _newest(session: Session, **columns: str) -> OutcomeRow | None:
    row: OutcomeRow | None = session.scalar(whole_outcomes().filter_by(**columns).order_by(OutcomeRow.id.desc()).limit(1))
    return row
