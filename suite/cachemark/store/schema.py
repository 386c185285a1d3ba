"""Tables of a store for SQLite and PostgreSQL.

A constraint of ``outcome`` prevents that a speed is stored without a judgement of its images: status ``ok`` has values and a judgement;
every other status has a log and no values.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import CheckConstraint, Double, ForeignKey, MetaData, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.types import TypeDecorator

from ..core.result import Status
from ..core.spec import canonical, finite

SCHEMA_VERSION = "5"

RUN_STATES = ("running", "finished", "interrupted", "failed")


class MalformedRow(ValueError):
    """Stored row that this package cannot have written."""


def _one_of(column: str, names: tuple[str, ...]) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(map(repr, names))})", name=column)


class Json(TypeDecorator[Any]):
    """JSON object as text with sorted keys. A string comes from another store and is stored as it is."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> str:
        return value if isinstance(value, str) else canonical(finite(value))

    def process_result_value(self, value: Any, dialect: Any) -> dict[str, Any]:
        try:
            parsed = json.loads(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise MalformedRow(f"A column of JSON cannot be parsed ({error})") from error
        if not isinstance(parsed, dict):
            raise MalformedRow(f"A column of JSON holds {type(parsed).__name__} instead of an object")
        return parsed


class Short(TypeDecorator[str]):
    """Text of limited length, and nothing that SQLite would keep in its place, such as bytes."""

    impl = String
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Any) -> str | None:
        if value is not None and not isinstance(value, str):
            raise MalformedRow(f"A column of text holds {type(value).__name__}")
        return value


class Words(Short):
    """Text."""

    impl = Text
    cache_ok = True


class Base(DeclarativeBase):
    """Base class of the tables. Constraints have names, so that a migration can drop them."""

    metadata = MetaData(naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s", "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s", "fk": "fk_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s",
    })
    type_annotation_map = {dict[str, Any]: Json, float: Double}


class RunRow(Base):
    """One ``cachemark run`` on one machine.

    Times are UTC in ISO 8601. Numbers are never used twice, even after a prune. ``kept``: a baseline was saved from it. ``verdicts``:
    results of a comparison, under ``rows``. ``beat``: its last heartbeat in seconds since 1970.
    """

    __tablename__ = "run"
    __table_args__ = (_one_of("state", RUN_STATES), {"sqlite_autoincrement": True})
    id: Mapped[int] = mapped_column(primary_key=True)
    plan: Mapped[str] = mapped_column(Words)
    plan_json: Mapped[dict[str, Any]]
    device: Mapped[str] = mapped_column(Words)
    machine_class: Mapped[str] = mapped_column(Words)
    fingerprint: Mapped[str] = mapped_column(Words)
    facts: Mapped[dict[str, Any]]
    started: Mapped[str] = mapped_column(Short(32))
    finished: Mapped[str | None] = mapped_column(Short(32))
    state: Mapped[str] = mapped_column(Short(16), default="running")
    code: Mapped[dict[str, Any]]
    kept: Mapped[bool] = mapped_column(default=False)
    verdicts: Mapped[dict[str, Any]] = mapped_column(default={"rows": []})
    beat: Mapped[float] = mapped_column(default=0.0)


class CaseRow(Base):
    """Case by its key."""

    __tablename__ = "case"
    key: Mapped[str] = mapped_column(Short(16), primary_key=True)
    model: Mapped[str] = mapped_column(Words, index=True)
    body: Mapped[dict[str, Any]]


class OutcomeRow(Base):
    """Result of a case that was measured in a run.

    Outcomes of one ``trial`` of a run shared a process; one without a name had its own. ``artifacts`` are files next to the database, which
    are written before the row.
    """

    __tablename__ = "outcome"
    __table_args__ = (
        _one_of("status", tuple(map(str, Status))),
        CheckConstraint(
            "(status = 'ok' AND samples <> '{}' AND has_judgement) OR (status <> 'ok' AND samples = '{}' AND log <> '')", name="judged",
        ),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"), index=True)
    trial: Mapped[str] = mapped_column(Words)
    case_key: Mapped[str] = mapped_column(ForeignKey("case.key"), index=True)
    status: Mapped[str] = mapped_column(Short(16))
    has_judgement: Mapped[bool]
    samples: Mapped[dict[str, Any]]
    judgement: Mapped[str] = mapped_column(Words)
    log: Mapped[str] = mapped_column(Words)
    seconds: Mapped[float]
    result_key: Mapped[str] = mapped_column(Words, index=True)
    output_hash: Mapped[str] = mapped_column(Words)
    facts: Mapped[dict[str, Any]]
    artifacts: Mapped[dict[str, Any]]
    saved: Mapped[str] = mapped_column(Short(32))
    case: Mapped[CaseRow] = relationship()


class MembershipRow(Base):
    """Outcome of a run: measured in it, or reused from an earlier run."""

    __tablename__ = "membership"
    __table_args__ = (UniqueConstraint("run_id", "outcome_id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"))
    outcome_id: Mapped[int] = mapped_column(ForeignKey("outcome.id"), index=True)
