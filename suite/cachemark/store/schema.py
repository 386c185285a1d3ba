"""Tables of a store for SQLite and PostgreSQL.

SQL constraints make sure that no program can store a speed without a judgement of its images:

* ``outcome``: status ``ok`` has values and a judgement; every other status has a log and no values.
* ``sample``: refers to ``outcome`` by (id, status) with status fixed to ``ok``; its packed bytes are eight per value.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.types import TypeDecorator

from ..core.result import Status
from ..core.spec import canonical, finite

SCHEMA_VERSION = "2"

RUN_STATES = ("running", "finished", "interrupted", "failed")


class MalformedRow(ValueError):
    """Stored row that this package cannot have written."""


def _one_of(column: str, names: tuple[str, ...]) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(map(repr, names))})", name=column)


class Json(TypeDecorator[Any]):
    """JSON object as text with sorted keys."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> str:
        return canonical(finite(value))

    def process_result_value(self, value: Any, dialect: Any) -> dict[str, Any]:
        try:
            parsed = json.loads(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise MalformedRow(f"A column of JSON cannot be parsed ({error})") from error
        if not isinstance(parsed, dict):
            raise MalformedRow(f"A column of JSON holds {type(parsed).__name__} instead of an object")
        return parsed


class Base(DeclarativeBase):
    """Base class of the tables. Constraints have names, so that a migration can drop them."""

    metadata = MetaData(naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s", "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s", "fk": "fk_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s",
    })
    type_annotation_map = {dict[str, Any]: Json, float: Double}


class EnvironmentRow(Base):
    """Machine with its software; ``digest`` is the hash of all columns."""

    __tablename__ = "environment"
    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    device: Mapped[str] = mapped_column(Text)
    machine_class: Mapped[str] = mapped_column(Text)
    fingerprint: Mapped[str] = mapped_column(Text)
    facts: Mapped[dict[str, Any]]


class RunRow(Base):
    """One ``cachemark run``. Times are UTC in ISO 8601. Numbers are never used twice, even after a prune."""

    __tablename__ = "run"
    __table_args__ = (_one_of("state", RUN_STATES), {"sqlite_autoincrement": True})
    id: Mapped[int] = mapped_column(primary_key=True)
    plan: Mapped[str] = mapped_column(Text, index=True)
    plan_json: Mapped[dict[str, Any]]
    environment_id: Mapped[int] = mapped_column(ForeignKey("environment.id"))
    started: Mapped[str] = mapped_column(String(32))
    finished: Mapped[str | None] = mapped_column(String(32))
    state: Mapped[str] = mapped_column(String(16))
    code: Mapped[dict[str, Any]]
    code_commit: Mapped[str] = mapped_column(Text)
    environment: Mapped[EnvironmentRow] = relationship()


class CaseRow(Base):
    """Case by its key: JSON, and columns to filter by."""

    __tablename__ = "case"
    key: Mapped[str] = mapped_column(String(16), primary_key=True)
    body: Mapped[dict[str, Any]] = mapped_column(Json)
    cell: Mapped[str] = mapped_column(String(16), index=True)
    model: Mapped[str] = mapped_column(Text, index=True)
    method: Mapped[str] = mapped_column(Text, index=True)
    budget: Mapped[str] = mapped_column(Text)
    codec: Mapped[str] = mapped_column(Text)
    role: Mapped[str] = mapped_column(Text)
    batch: Mapped[int]
    seeds: Mapped[str] = mapped_column(Text)
    dtype: Mapped[str] = mapped_column(Text)
    engine: Mapped[str] = mapped_column(Text)
    device_class: Mapped[str] = mapped_column(Text)


class TrialRow(Base):
    """Process that ran cases of a run. An unnamed one ran a single case."""

    __tablename__ = "trial"
    __table_args__ = (UniqueConstraint("run_id", "name"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"))
    name: Mapped[str | None] = mapped_column(Text)


class OutcomeRow(Base):
    """Result of a case in a trial. ``n_samples`` is the number of values in ``sample``."""

    __tablename__ = "outcome"
    __table_args__ = (
        _one_of("status", tuple(map(str, Status))),
        CheckConstraint(
            "(status = 'ok' AND n_samples > 0 AND judged) OR (status <> 'ok' AND n_samples = 0 AND log <> '')", name="judged",
        ),
        UniqueConstraint("id", "status"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("trial.id"), index=True)
    case_key: Mapped[str] = mapped_column(ForeignKey("case.key"), index=True)
    status: Mapped[str] = mapped_column(String(16))
    has_judgement: Mapped[bool] = mapped_column("judged")
    n_samples: Mapped[int]
    judgement: Mapped[str] = mapped_column(Text)
    log: Mapped[str] = mapped_column(Text)
    seconds: Mapped[float]
    result_key: Mapped[str] = mapped_column(Text, index=True)
    output_hash: Mapped[str] = mapped_column(Text)
    facts: Mapped[dict[str, Any]]
    saved: Mapped[str] = mapped_column(String(32))
    case: Mapped[CaseRow] = relationship()
    samples: Mapped[list[SampleRow]] = relationship(order_by="SampleRow.metric")
    artifacts: Mapped[list[ArtifactRow]] = relationship(order_by="ArtifactRow.name")


class SampleRow(Base):
    """Values of a metric of an outcome: ``count`` little-endian float64 numbers in measured order."""

    __tablename__ = "sample"
    __table_args__ = (
        ForeignKeyConstraint(["outcome_id", "status"], ["outcome.id", "outcome.status"]),
        CheckConstraint("status = 'ok'", name="status"),
        CheckConstraint("count > 0 AND length(packed) = 8 * count", name="packed"),
    )
    outcome_id: Mapped[int] = mapped_column(primary_key=True)
    metric: Mapped[str] = mapped_column(Text, primary_key=True)
    status: Mapped[str] = mapped_column(String(16))
    count: Mapped[int]
    packed: Mapped[bytes] = mapped_column(LargeBinary)


class ArtifactRow(Base):
    """File next to the database, named by the hash of its content and written before this row."""

    __tablename__ = "artifact"
    outcome_id: Mapped[int] = mapped_column(ForeignKey("outcome.id"), primary_key=True)
    name: Mapped[str] = mapped_column(Text, primary_key=True)
    file: Mapped[str] = mapped_column(Text)


class MembershipRow(Base):
    """Outcome of a run. ``reused``: it was measured in an earlier run."""

    __tablename__ = "membership"
    __table_args__ = (UniqueConstraint("run_id", "outcome_id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"))
    outcome_id: Mapped[int] = mapped_column(ForeignKey("outcome.id"), index=True)
    reused: Mapped[bool]


class LeaseRow(Base):
    """Process that measures a run. ``beat``: its last heartbeat, in seconds since 1970."""

    __tablename__ = "lease"
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"), primary_key=True)
    holder: Mapped[str] = mapped_column(Text)
    beat: Mapped[float]


class BaselineRow(Base):
    """Baseline file saved from this store, or first side of a comparison; ``digest``: SHA-256."""

    __tablename__ = "baseline"
    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    name: Mapped[str] = mapped_column(Text)
    plan: Mapped[str] = mapped_column(Text)
    machine_class: Mapped[str] = mapped_column(Text)
    reason: Mapped[str] = mapped_column(Text)
    run_id: Mapped[int | None] = mapped_column(ForeignKey("run.id"))
    saved: Mapped[str] = mapped_column(String(32))


class VerdictRow(Base):
    """Verdict on a metric of a case of a run. ``case_key`` may name a case that only the baseline has."""

    __tablename__ = "verdict"
    __table_args__ = (Index(None, "run_id", "baseline_id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"))
    baseline_id: Mapped[int] = mapped_column(ForeignKey("baseline.id"))
    case_key: Mapped[str] = mapped_column(String(16))
    label: Mapped[str] = mapped_column(Text)
    metric: Mapped[str] = mapped_column(Text)
    verdict: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(Text)
    then: Mapped[float | None]
    now: Mapped[float | None]
    change: Mapped[float | None]


class SettingRow(Base):
    """Setting of the whole store, such as the folder of its artifacts."""

    __tablename__ = "setting"
    name: Mapped[str] = mapped_column(Text, primary_key=True)
    value: Mapped[str] = mapped_column(Text)
