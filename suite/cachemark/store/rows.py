"""Outcomes, runs and verdicts as Python objects and as rows, both ways."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from ..core.errors import BadBudget
from ..core.result import CONDENSED, JUDGING, Environment, Outcome, Status
from ..core.spec import Budget, Case, Sampling, canonical, shown_label
from ..core.units import metric
from ..core.verdicts import EQUIVALENT, NOT_COMPARED
from .damage import LONGEST, Damage, damage, is_moment, outcome_damage
from .schema import ArtifactRow, Base, CaseRow, OutcomeRow, RunRow, SampleRow, VerdictRow, finite

PRUNED = "Raw values were pruned: quantiles and the mean remain."
COMPARISON = "compare/"  # of the plan's name in a run that is a comparison
UNKNOWN = "unknown"  # in place of a name that is damaged
UNDATED = "1970-01-01T00:00:00.000000+00:00"  # in place of a moment that is damaged
SHOWN = 100  # letters of a damaged name
ROLES = ("arm", "baseline", "floor", "numerics")
_INSERT: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


@dataclass(frozen=True)
class RunRecord:
    """One ``cachemark run``. Times are UTC in ISO 8601; ``finished`` is None while it runs and after a kill.

    ``code`` holds ``commit``, ``dirty``, ``hash`` and ``version`` of the measuring code; ``damage`` says what of it the store no longer
    tells, so that it is missing here.
    """

    id: int
    plan: str
    plan_json: Mapping[str, Any]
    started: str
    finished: str | None
    state: str  # running | finished | interrupted | failed
    environment: Environment
    code: Mapping[str, Any]
    damage: tuple[str, ...] = ()
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
        held = self.plan_json.get("plan") if self.is_comparison else self.plan_json
        return held if isinstance(held, Mapping) else {}

    @property
    def sequential(self) -> bool:
        """True where seeds were added until methods were decided, so that its claims of quality were looked at on the way; or where some
        of its outcomes were measured so."""
        held = self.stored_plan.get("fidelity")
        return self.looked_at or (isinstance(held, Mapping) and held.get("sequential") is True)


@dataclass(frozen=True)
class Verdict:
    """The verdict of a gate on one metric of one case: one row of a comparison.

    ``metric`` is the name of a metric, ``output_hash``, or ``status`` (of the case as a whole). ``then`` and ``now`` are
    the compared figures (for times: ratio to the full cache of the same run), ``change`` is now / then; each may be None.
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
        return self.metric in ("latency", "status") or self.verdict not in (EQUIVALENT, NOT_COMPARED)


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
        seconds=outcome.seconds, skip_key=outcome.skip_key, output_hash=outcome.output_hash, facts=dict(outcome.facts), saved=utc_now(),
        samples=[SampleRow(metric=n, status=status, count=len(v), packed=pack(v)) for n, v in outcome.samples.items()],
        artifacts=[ArtifactRow(name=name, file=file) for name, file in files.items()],
    )


def _facts(row: OutcomeRow) -> dict[str, Any]:
    """Facts of a row; those of a pruned one with counts and means of its raw values, and a note for readers."""
    if not row.condensed:
        return dict(row.facts)
    told = {c.metric: {"count": c.count, "mean": c.mean} for c in row.condensed}
    notes = [n for n in row.facts.get("footnotes", []) if n != PRUNED]
    return {**row.facts, CONDENSED: told, "footnotes": [*notes, PRUNED]}


def outcome_of(row: OutcomeRow, where: str) -> Outcome:
    """The outcome of a row; where the row or anything that belongs to it is damaged, one that is ``damaged`` and says so in its log."""
    found = outcome_damage(row)
    if found is None:
        try:
            samples = {s.metric: unpack(s.packed) for s in row.samples}
            return Outcome(
                Case.from_json(row.case.body), Status(row.status), samples, row.judgement, row.log, row.seconds, row.skip_key,
                row.output_hash, _facts(row), {a.name: a.file for a in row.artifacts},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # a case of another version, say
            found = Damage("case", (row.case_key,), f"{type(error).__name__}, {error}")
    said = f"outcome {row.id}: {found.what}" if found.table == "outcome" else f"outcome {row.id}, {found}"
    return Outcome(_stand_in(row), Status.DAMAGED, log=f"Damaged in {where}: {said}. `cachemark db repair` sets it aside.")


def _stand_in(row: OutcomeRow) -> Case:
    """The case of a damaged outcome: itself, or as much of it as its other columns tell, under its own key."""
    held = row.case
    if held is not None and damage(held) is None:
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            return Case.from_json(held.body)
    names = ("model", "method", "codec", "seeds", "dtype", "engine", "device_class")
    text: dict[str, Any] = {name: shown_name(getattr(held, name, None)) for name in names}
    role, batch, budget = (getattr(held, name, None) for name in ("role", "batch", "budget"))
    try:
        share = str(Budget.parse(budget or ""))
    except BadBudget:
        share = "1"
    made = Case(weights=UNKNOWN, grid=(0, 0), conditions=UNKNOWN, sampling=Sampling(), budget=share, samples=0, warmup=0, repeats=0,
                batch=batch if isinstance(batch, int) else 0, role=role if role in ROLES else ROLES[0], **text)
    vars(made).update(key=shown_name(row.case_key), cell=shown_name(getattr(held, "cell", None)))  # cached, so that neither is computed
    return made


def shown_name(value: object, column: str = "") -> str:
    """A name that may be damaged, as far as it can be shown. One that is too long for its column is cut so that no file can have it."""
    text = value if isinstance(value, str) and value else UNKNOWN
    return text if len(text) <= LONGEST.get(column, SHOWN) else f"{text[:SHOWN]}…"


def environment_values(environment: Environment) -> dict[str, Any]:
    """Columns of the environment's row; ``digest`` tells two environments apart."""
    data = finite(environment.to_json())
    return {"digest": hashlib.sha256(canonical(data).encode()).hexdigest(), **data}


def case_values(case: Case) -> dict[str, Any]:
    """Columns of the case's row."""
    return {c.name: getattr(case, c.name) for c in CaseRow.__table__.columns if c.name != "body"} | {"body": case.to_json()}


def run_of(row: RunRow, *, abandoned: bool = False) -> RunRecord:
    """The run of a row, without what is damaged; one that is ``abandoned`` by its process was interrupted."""
    found, state = row.environment, "interrupted" if abandoned and row.state == "running" else row.state
    told = tuple(f"{said}." for part in (row, found) if part is not None and (said := damage(part)))
    if not told:
        environment = Environment(found.device, found.machine_class, found.fingerprint, found.facts)
        return RunRecord(row.id, row.plan, row.plan_json, row.started, row.finished, state, environment, row.code)
    device, machine, fingerprint = (shown_name(getattr(found, name, None), name) for name in ("device", "machine_class", "fingerprint"))
    environment = Environment(device, machine, fingerprint, _table(getattr(found, "facts", None)))
    started, finished = (value if is_moment(value) else None for value in (row.started, row.finished))
    return RunRecord(row.id, shown_name(row.plan, "plan"), _table(row.plan_json), started or UNDATED, finished, shown_name(state),
                     environment, _table(row.code), told)


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def insert_once(session: Session, table: type[Base], values: Mapping[str, Any]) -> None:
    """Insert a row unless one with the same unique key is there, also when another process inserts it at this moment."""
    session.execute(_INSERT[session.get_bind().dialect.name](table).values(**values).on_conflict_do_nothing())


def verdict_of(row: VerdictRow) -> Verdict:
    """The verdict of a row."""
    return Verdict(row.case_key, shown_label(row.label), row.metric, row.verdict, row.reason, row.then, row.now, row.change)
