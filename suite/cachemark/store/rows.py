"""Conversion of outcomes, runs and verdicts between Python objects and rows."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from ..core.errors import CachemarkError
from ..core.outside_metrics import know
from ..core.result import JUDGING, Environment, Outcome, Status
from ..core.spec import Case, canonical, finite, shown_label
from ..core.units import TIME, metric
from ..core.verdicts import EQUIVALENT, NOT_COMPARED
from .schema import ArtifactRow, Base, CaseRow, MalformedRow, OutcomeRow, RunRow, SampleRow, VerdictRow

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
    looked_at: bool = False  # it reuses outcomes of a sequential run

    @property
    def day(self) -> int:
        """Ordinal of the start date, which gives the weekday; 0 if the start is no date."""
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

    @property
    def sequential(self) -> bool:
        """True if seeds were added until methods were decided, in this run or for a reused outcome."""
        fidelity = self.stored_plan.get("fidelity")
        return self.looked_at or (isinstance(fidelity, Mapping) and fidelity.get("sequential") is True)


@dataclass(frozen=True)
class Verdict:
    """Verdict of a gate on one metric of one case.

    ``metric`` is the name of a metric, ``output_hash``, or ``status`` of the case. ``then`` and ``now`` are the compared values (times:
    ratio to the full cache of the same run), ``change`` is now / then; each may be None.
    """

    case_key: str
    label: str
    metric: str
    verdict: str
    reason: str = ""
    then: float | None = None
    now: float | None = None
    change: float | None = None

    @property
    def telling(self) -> bool:
        """True for verdicts that summaries list: time and status always, other metrics if they changed."""
        return self.metric in (TIME, "status") or self.verdict not in (EQUIVALENT, NOT_COMPARED)


def utc_now() -> str:
    """Return the time in UTC, ISO 8601, with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def clean(text: str) -> str:
    """Return ``text`` without characters that a database rejects, such as NUL or lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def pack(values: Sequence[float]) -> bytes:
    """Pack values as little-endian float64."""
    return struct.pack(f"<{len(values)}d", *values)


def unpack(packed: bytes) -> list[float]:
    """Unpack the result of :func:`pack`."""
    return list(struct.unpack(f"<{len(packed) // 8}d", packed))


def outcome_row(outcome: Outcome, trial_id: int, files: Mapping[str, str]) -> OutcomeRow:
    """Return the row of ``outcome`` with samples and artifacts (name → file that is already on disk)."""
    status = str(outcome.status)
    return OutcomeRow(
        trial_id=trial_id, case_key=outcome.case.key, status=status,
        has_judgement=bool(outcome.judgement) or any(metric(n).kind in JUDGING for n in outcome.samples),
        n_samples=sum(len(v) for v in outcome.samples.values()), judgement=clean(outcome.judgement), log=clean(outcome.log),
        seconds=outcome.seconds, result_key=outcome.result_key, output_hash=outcome.output_hash, facts=dict(outcome.facts), saved=utc_now(),
        samples=[SampleRow(metric=n, status=status, count=len(v), packed=pack(v)) for n, v in outcome.samples.items()],
        artifacts=[ArtifactRow(name=name, file=file) for name, file in files.items()],
    )


def outcome_of(row: OutcomeRow) -> Outcome:
    """Return the outcome of a row; MalformedRow if this package cannot have written it."""
    stored = sum(sample.count for sample in row.samples)
    if stored != row.n_samples:
        raise MalformedRow(f"Outcome {row.id} has {stored} of its {row.n_samples} values")
    try:
        know(row.case.body.get("evaluation"))  # a plug-in's metrics must be known before their samples are
        samples = {sample.metric: unpack(sample.packed) for sample in row.samples}
        return Outcome(
            Case.from_json(row.case.body), Status(row.status), samples, row.judgement, row.log, row.seconds, row.result_key,
            row.output_hash, row.facts, {artifact.name: artifact.file for artifact in row.artifacts},
        )
    except (KeyError, TypeError, ValueError, AttributeError, struct.error, CachemarkError) as error:
        raise MalformedRow(f"Outcome {row.id} cannot be read ({type(error).__name__}: {error})") from error


def environment_values(environment: Environment) -> dict[str, Any]:
    """Return the columns of an environment; ``digest`` identifies it."""
    data = finite(environment.to_json())
    return {"digest": hashlib.sha256(canonical(data).encode()).hexdigest(), **data}


def case_values(case: Case) -> dict[str, Any]:
    """Return the columns of a case."""
    return {c.name: getattr(case, c.name) for c in CaseRow.__table__.columns if c.name != "body"} | {"body": case.to_json()}


def run_of(row: RunRow, *, abandoned: bool = False, looked_at: bool = False) -> RunRecord:
    """Return the run of a row; an ``abandoned`` running one is interrupted."""
    machine, state = row.environment, "interrupted" if abandoned and row.state == "running" else row.state
    environment = Environment(machine.device, machine.machine_class, machine.fingerprint, machine.facts)
    return RunRecord(row.id, row.plan, row.plan_json, row.started, row.finished, state, environment, row.code, looked_at)


def insert_once(session: Session, table: type[Base], *rows: Mapping[str, Any]) -> None:
    """Insert rows except those whose unique key exists, safely against concurrent inserts."""
    if rows:
        session.execute(_INSERT[session.get_bind().dialect.name](table).on_conflict_do_nothing(), [dict(row) for row in rows])


def verdict_of(row: VerdictRow) -> Verdict:
    """Return the verdict of a row."""
    return Verdict(row.case_key, shown_label(row.label), row.metric, row.verdict, row.reason, row.then, row.now, row.change)
