"""Conversion of outcomes, runs and verdicts between Python objects and rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from ..core.errors import CachemarkError
from ..core.facts import Facts
from ..core.result import JUDGING, Environment, Outcome, Status, costs_per_1000
from ..core.spec import Case
from ..core.stored_table import BadField
from ..core.units import COST, TIME, is_finite, metric
from ..core.verdicts import EQUIVALENT, NOT_COMPARED
from .schema import Base, CaseRow, MalformedRow, OutcomeRow, RunRow

COMPARISON = "compare/"  # prefix of the plan's name in a comparison
_INSERT: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


@dataclass(frozen=True)
class RunRecord:
    """One ``cachemark run``.

    Times are UTC in ISO 8601; ``finished`` is None while it runs and after a kill. ``code`` holds ``commit``, ``dirty``, ``hash`` and
    ``version`` of the measuring code.
    """

    id: int
    plan: str
    plan_json: Mapping[str, Any]
    started: str
    finished: str | None
    state: str  # running | finished | interrupted | failed
    environment: Environment
    code: Mapping[str, Any]

    @property
    def day(self) -> int:
        """Ordinal of the start date, which gives the weekday; 0 if the start is not a date."""
        try:
            return date.fromisoformat(self.started[:10]).toordinal()
        except ValueError:
            return 0

    @property
    def is_comparison(self) -> bool:
        """True for a run that compares in pairs."""
        return self.plan.startswith(COMPARISON)

    @property
    def stored_plan(self) -> Mapping[str, Any]:
        """Plan of the run; for a comparison the plan of its cases, else empty."""
        plan = self.plan_json.get("plan") if self.is_comparison else self.plan_json
        return plan if isinstance(plan, Mapping) else {}


@dataclass(frozen=True)
class Verdict:
    """Verdict of a gate on one metric of one case.

    ``metric`` is the name of a metric, ``output_hash``, or ``status`` of the case. ``then`` and ``now`` are the compared values, and
    ``change`` is now / then; each may be None. Times are ratios to the full cache of the same run, unless the row is ``absolute``.
    """

    case_key: str
    label: str
    metric: str
    verdict: str
    reason: str = ""
    then: float | None = None
    now: float | None = None
    change: float | None = None
    absolute: bool = False

    @property
    def telling(self) -> bool:
        """True for verdicts that summaries list: time and status always, other metrics if they changed."""
        return self.metric in (TIME, "status") or self.verdict not in (EQUIVALENT, NOT_COMPARED)


def utc_now() -> str:
    """Return the time in UTC, ISO 8601, with microseconds."""
    return moment(datetime.now(UTC))


def moment(time: datetime) -> str:
    """Return a time with a zone in UTC, ISO 8601, with microseconds."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")


def clean(text: str) -> str:
    """Return ``text`` without characters that a database rejects, such as NUL or lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def columns(row: Base, **changes: Any) -> dict[str, Any]:
    """Return the values of a row without its number."""
    return {column.key: getattr(row, column.key) for column in row.__mapper__.column_attrs if column.key != "id"} | changes


def outcome_row(outcome: Outcome, run_id: int, trial: str, files: Mapping[str, str]) -> OutcomeRow:
    """Return the row of ``outcome`` with artifacts (name → file that is already on disk)."""
    values = outcome.to_json() | {
        "samples": {name: list(map(float, values)) for name, values in outcome.samples.items()}, "artifacts": dict(files),
        "judgement": clean(outcome.unjudged), "log": clean(outcome.log),
    }
    del values["case"]
    has_judgement = bool(outcome.unjudged) or any(metric(name).kind in JUDGING for name in outcome.samples)
    return OutcomeRow(**values, run_id=run_id, trial=trial, case_key=outcome.case.key, has_judgement=has_judgement, saved=utc_now())


def is_number(value: Any) -> bool:
    """Return whether a value of JSON or of a column is a finite number."""
    return isinstance(value, int | float) and is_finite(value)


def check_parts(row: int, seconds: Any, artifacts: Mapping[str, Any]) -> None:
    """Raise MalformedRow for parts of an outcome that no reader expects."""
    if not is_number(seconds):
        raise MalformedRow(f"Outcome {row} has no number of seconds")
    if not all(isinstance(file, str) for file in artifacts.values()):
        raise MalformedRow(f"Outcome {row} has an artifact without a name")


def checked_facts(row: int, facts: Any) -> Facts:
    """Return the facts of an outcome; MalformedRow if one has another type than its field."""
    try:
        return Facts.from_json(facts)
    except BadField as error:
        raise MalformedRow(f"Outcome {row} has a wrong fact: {error}") from error


def outcome_of(row: OutcomeRow) -> Outcome:
    """Return the outcome of a row; MalformedRow if this package cannot have written it."""
    check_parts(row.id, row.seconds, row.artifacts)
    with _readable(f"Outcome {row.id}"):
        outcome = Outcome.from_json(columns(row, case=row.case.body))
    _check_key(row.case_key, outcome.case)
    return outcome


def values_of(row: Any, case: Case) -> Outcome:
    """Return the outcome of a row of these columns: status, samples, judgement, log."""
    with _readable(f"Outcome {row.id}"):
        return Outcome(case, Status(row.status), row.samples, row.judgement, row.log)


def case_of(row: CaseRow) -> Case:
    """Return the case of a row; MalformedRow if this package cannot have written it."""
    return checked_case(row.key, row.body)


def checked_case(key: str, body: Any) -> Case:
    """Return the case of a row; MalformedRow also if its key is not the hash of its content, which then was edited."""
    with _readable(f"Case {key}"):
        case = Case.from_json(body)
    _check_key(key, case)
    return case


def _check_key(key: str, case: Case) -> None:
    if case.key != key:
        raise MalformedRow(f"Case {key} was edited: its content is that of the case {case.key}")


@contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, CachemarkError) as error:
        raise MalformedRow(f"{what} cannot be read ({type(error).__name__}: {error})") from error


def priced(outcome: Outcome, price: float) -> Outcome:
    """Return the outcome with its cost of 1,000 images, if it was timed and ``price`` per hour is set."""
    costs = costs_per_1000(outcome.raw(TIME), outcome.case.batch, price) if price else []
    return replace(outcome, samples={**outcome.samples, COST: costs}) if costs else outcome


def run_of(row: RunRow, state: str) -> RunRecord:
    """Return the run of a row in this state, which depends on its lease."""
    environment = Environment(row.device, row.machine_class, row.fingerprint, row.facts)
    return RunRecord(row.id, row.plan, row.plan_json, row.started, row.finished, state, environment, row.code)


def verdicts_of(row: RunRow) -> list[Verdict]:
    """Return the verdicts on a run; MalformedRow if this package cannot have written them."""
    try:
        return [Verdict(**verdict) for verdict in row.verdicts["rows"]]
    except (KeyError, TypeError) as error:
        raise MalformedRow(f"The verdicts on run {row.id} cannot be read ({error})") from error


def insert_once(session: Session, table: type[Base], *rows: Mapping[str, Any]) -> None:
    """Insert rows except those whose unique key exists, safely against concurrent inserts."""
    if rows:
        session.execute(_INSERT[session.get_bind().dialect.name](table).on_conflict_do_nothing(), [dict(row) for row in rows])
