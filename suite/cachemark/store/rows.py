"""Outcomes, runs and verdicts as Python objects and as rows, both ways."""

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
from ..core.result import CONDENSED, JUDGING, Environment, Outcome, Status
from ..core.spec import Case, canonical, shown_label
from ..core.units import TIME, metric
from ..core.verdicts import EQUIVALENT, NOT_COMPARED
from .schema import ArtifactRow, Base, CaseRow, MalformedRow, OutcomeRow, RunRow, SampleRow, VerdictRow, finite

PRUNED = "Raw values were pruned: quantiles and the mean remain."
COMPARISON = "compare/"  # of the plan's name in a run that is a comparison
_INSERT: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


@dataclass(frozen=True)
class RunRecord:
    """One ``cachemark run``. Times are UTC in ISO 8601; ``finished`` is None while it runs and after a kill.

    ``code`` holds ``commit``, ``dirty``, ``hash`` and ``version`` of the measuring code.
    """

    id: int
    plan: str
    plan_json: Mapping[str, Any]
    started: str
    finished: str | None
    state: str  # running | finished | interrupted | failed
    environment: Environment
    code: Mapping[str, Any]
    looked_at: bool = False  # it carries outcomes of a sequential run

    @property
    def day(self) -> int:
        """The number of the day on which it began, which tells the weekday; 0 where the start is no date."""
        try:
            return date.fromisoformat(self.started[:10]).toordinal()
        except ValueError:
            return 0

    @property
    def is_comparison(self) -> bool:
        """True of a run that is a comparison in pairs."""
        return self.plan.startswith(COMPARISON)

    @property
    def stored_plan(self) -> Mapping[str, Any]:
        """The plan as it was run, of a comparison the one whose cases it compares; empty where none is told."""
        plan = self.plan_json.get("plan") if self.is_comparison else self.plan_json
        return plan if isinstance(plan, Mapping) else {}

    @property
    def sequential(self) -> bool:
        """True where seeds were added until methods were decided, so that its claims of quality were looked at on the way; or where some
        of its outcomes were measured so."""
        fidelity = self.stored_plan.get("fidelity")
        return self.looked_at or (isinstance(fidelity, Mapping) and fidelity.get("sequential") is True)


@dataclass(frozen=True)
class Verdict:
    """The verdict of a gate on one metric of one case: one row of a comparison.

    ``metric`` is the name of a metric, ``output_hash``, or ``status`` (of the case as a whole). ``then`` and ``now`` are
    the compared values (for times: ratio to the full cache of the same run), ``change`` is now / then; each may be None.
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
        """True of a row that lists of findings name: a time or the state of a case always, anything else unless it is as it was."""
        return self.metric in (TIME, "status") or self.verdict not in (EQUIVALENT, NOT_COMPARED)


def utc_now() -> str:
    """The time now, UTC, ISO 8601, to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def clean(text: str) -> str:
    """``text`` as every database can hold it: a log may contain anything, also half a character or a NUL."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def pack(values: Sequence[float]) -> bytes:
    """float64, little-endian, eight bytes each."""
    return struct.pack(f"<{len(values)}d", *values)


def unpack(packed: bytes) -> list[float]:
    """Inverse of :func:`pack`."""
    return list(struct.unpack(f"<{len(packed) // 8}d", packed))


def outcome_row(outcome: Outcome, trial_id: int, files: Mapping[str, str]) -> OutcomeRow:
    """The row of ``outcome`` with its samples and artifacts (name -> file, already on disk)."""
    status = str(outcome.status)
    return OutcomeRow(
        trial_id=trial_id, case_key=outcome.case.key, status=status,
        has_judgement=bool(outcome.judgement) or any(metric(n).kind in JUDGING for n in outcome.samples),
        n_samples=sum(len(v) for v in outcome.samples.values()), judgement=clean(outcome.judgement), log=clean(outcome.log),
        seconds=outcome.seconds, result_key=outcome.result_key, output_hash=outcome.output_hash, facts=dict(outcome.facts), saved=utc_now(),
        samples=[SampleRow(metric=n, status=status, count=len(v), packed=pack(v)) for n, v in outcome.samples.items()],
        artifacts=[ArtifactRow(name=name, file=file) for name, file in files.items()],
    )


def _facts(row: OutcomeRow) -> dict[str, Any]:
    """Facts of a row; those of a pruned one with counts and means of its raw values, and a note for readers."""
    if not row.condensed:
        return dict(row.facts)
    condensed = {c.metric: {"count": c.count, "mean": c.mean} for c in row.condensed}
    notes = [n for n in row.facts.get("footnotes", []) if n != PRUNED]
    return {**row.facts, CONDENSED: condensed, "footnotes": [*notes, PRUNED]}


def outcome_of(row: OutcomeRow) -> Outcome:
    """The outcome of a row. Raise :class:`MalformedRow` for a row that this package cannot have written."""
    stored = sum(sample.count for sample in row.samples)
    if stored != row.n_samples:
        raise MalformedRow(f"Outcome {row.id} has {stored} of its {row.n_samples} values")
    try:
        know(row.case.body.get("evaluation"))  # a plug-in's metrics must be known before their samples are
        samples = {sample.metric: unpack(sample.packed) for sample in row.samples}
        return Outcome(
            Case.from_json(row.case.body), Status(row.status), samples, row.judgement, row.log, row.seconds, row.result_key,
            row.output_hash, _facts(row), {artifact.name: artifact.file for artifact in row.artifacts},
        )
    except (KeyError, TypeError, ValueError, AttributeError, struct.error, CachemarkError) as error:
        raise MalformedRow(f"Outcome {row.id} cannot be read ({type(error).__name__}: {error})") from error


def environment_values(environment: Environment) -> dict[str, Any]:
    """Columns of the environment's row; ``digest`` tells two environments apart."""
    data = finite(environment.to_json())
    return {"digest": hashlib.sha256(canonical(data).encode()).hexdigest(), **data}


def case_values(case: Case) -> dict[str, Any]:
    """Columns of the case's row."""
    return {c.name: getattr(case, c.name) for c in CaseRow.__table__.columns if c.name != "body"} | {"body": case.to_json()}


def run_of(row: RunRow, *, abandoned: bool = False, looked_at: bool = False) -> RunRecord:
    """The run of a row; one that is ``abandoned`` by its process was interrupted."""
    machine, state = row.environment, "interrupted" if abandoned and row.state == "running" else row.state
    environment = Environment(machine.device, machine.machine_class, machine.fingerprint, machine.facts)
    return RunRecord(row.id, row.plan, row.plan_json, row.started, row.finished, state, environment, row.code, looked_at)


def insert_once(session: Session, table: type[Base], values: Mapping[str, Any]) -> None:
    """Insert a row unless one with the same unique key is there, also when another process inserts it at this moment."""
    session.execute(_INSERT[session.get_bind().dialect.name](table).values(**values).on_conflict_do_nothing())


def verdict_of(row: VerdictRow) -> Verdict:
    """The verdict of a row."""
    return Verdict(row.case_key, shown_label(row.label), row.metric, row.verdict, row.reason, row.then, row.now, row.change)
