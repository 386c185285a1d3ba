"""Outcomes, runs and verdicts as Python objects and as rows, both ways."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ..core.errors import BadStore
from ..core.result import CONDENSED, JUDGING, Environment, Outcome, Status
from ..core.spec import Case, canonical, shown_label
from ..core.units import metric
from ..core.verdicts import EQUIVALENT, NOT_COMPARED
from .schema import ArtifactRow, CaseRow, OutcomeRow, RunRow, SampleRow, VerdictRow, finite

PRUNED = "Raw values were pruned: quantiles and the mean remain."
COMPARISON = "compare/"  # of the plan's name in a run that is a comparison


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

    @property
    def is_comparison(self) -> bool:
        """True of a run that is a comparison in pairs."""
        return self.plan.startswith(COMPARISON)


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
    """The outcome of a row, or :class:`BadStore` where the row says one thing and its samples another."""
    samples = {s.metric: unpack(s.packed) for s in row.samples}
    if sum(len(v) for v in samples.values()) != row.n_samples:
        raise BadStore(f"Outcome {row.id} of {where} lacks values: it names {row.n_samples}.", remedy="Restore a copy of the database.")
    return Outcome(
        Case.from_json(row.case.body), Status(row.status), samples, row.judgement, row.log, row.seconds, row.skip_key, row.output_hash,
        _facts(row), {a.name: a.file for a in row.artifacts},
    )


def environment_values(environment: Environment) -> dict[str, Any]:
    """Columns of the environment's row; ``digest`` tells two environments apart."""
    data = finite(environment.to_json())
    return {"digest": hashlib.sha256(canonical(data).encode()).hexdigest(), **data}


def case_values(case: Case) -> dict[str, Any]:
    """Columns of the case's row."""
    return {c.name: getattr(case, c.name) for c in CaseRow.__table__.columns if c.name != "body"} | {"body": case.to_json()}


def run_of(row: RunRow) -> RunRecord:
    """The run of a row."""
    found = row.environment
    environment = Environment(found.device, found.machine_class, found.fingerprint, found.facts)
    return RunRecord(row.id, row.plan, row.plan_json, row.started, row.finished, row.state, environment, row.code)


def verdict_of(row: VerdictRow) -> Verdict:
    """The verdict of a row."""
    return Verdict(row.case_key, shown_label(row.label), row.metric, row.verdict, row.reason, row.then, row.now, row.change)
