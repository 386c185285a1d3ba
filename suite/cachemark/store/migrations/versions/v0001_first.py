"""The first schema. Written out, not taken from schema.py, so that it stays what it was when schema.py moves on."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

STATUSES = "'ok', 'oom', 'timeout', 'throttled', 'contended', 'nan_output', 'unsupported', 'error', 'not_reached'"
NUMBER, TEXT, FLAG, KEY, WORD, TIME, HASH = sa.Integer, sa.Text, sa.Boolean, sa.String(16), sa.String(16), sa.String(32), sa.String(64)


def upgrade() -> None:
    """Create every table."""
    _what_is_measured()
    _runs()
    _outcomes()
    _what_belongs_to_outcomes()
    _judgements()


def _table(
    name: str, key: list[str], *constraints: sa.Constraint, columns: dict[str, Any], empty: tuple[str, ...] = (), **options: Any,
) -> None:
    """A table with its primary key; only the columns of ``empty`` may be NULL."""
    rows = [sa.Column(column, kind, nullable=column in empty) for column, kind in columns.items()]
    op.create_table(name, *rows, sa.PrimaryKeyConstraint(*key, name=f"pk_{name}"), *constraints, **options)


def _refers(table: str, column: str, to: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [to], name=f"fk_{table}_{column}")


def _what_is_measured() -> None:
    _table("case", ["key"], columns={
        "key": KEY, "body": TEXT, "cell": KEY, "model": TEXT, "method": TEXT, "budget": TEXT, "codec": TEXT, "role": TEXT, "batch": NUMBER,
        "seeds": TEXT, "dtype": TEXT, "engine": TEXT, "device_class": TEXT,
    })
    for column in ("cell", "model", "method"):
        op.create_index(f"ix_case_{column}", "case", [column])
    _table("environment", ["id"], sa.UniqueConstraint("digest", name="uq_environment_digest"), columns={
        "id": NUMBER, "digest": HASH, "device": TEXT, "machine_class": TEXT, "fingerprint": TEXT, "facts": TEXT,
    })


def _runs() -> None:
    _table(
        "run", ["id"],
        sa.CheckConstraint("state IN ('running', 'finished', 'interrupted', 'failed')", name="ck_run_state"),
        _refers("run", "environment_id", "environment.id"),
        columns={"id": NUMBER, "plan": TEXT, "plan_json": TEXT, "environment_id": NUMBER, "started": TIME, "finished": TIME, "state": WORD,
                 "code": TEXT, "code_commit": TEXT},
        empty=("finished",), sqlite_autoincrement=True,
    )
    op.create_index("ix_run_plan", "run", ["plan"])
    _table(
        "trial", ["id"], sa.UniqueConstraint("run_id", "name", name="uq_trial_run_id_name"), _refers("trial", "run_id", "run.id"),
        columns={"id": NUMBER, "run_id": NUMBER, "name": TEXT}, empty=("name",),
    )


def _outcomes() -> None:
    _table(
        "outcome", ["id"],
        sa.CheckConstraint(f"status IN ({STATUSES})", name="ck_outcome_status"),
        sa.CheckConstraint(
            "(status = 'ok' AND n_samples > 0 AND judged) OR (status <> 'ok' AND n_samples = 0 AND log <> '')", name="ck_outcome_judged",
        ),
        sa.UniqueConstraint("id", "status", name="uq_outcome_id_status"),
        _refers("outcome", "trial_id", "trial.id"), _refers("outcome", "case_key", "case.key"),
        columns={"id": NUMBER, "trial_id": NUMBER, "case_key": KEY, "status": WORD, "judged": FLAG, "n_samples": NUMBER, "judgement": TEXT,
                 "log": TEXT, "seconds": sa.Double, "skip_key": TEXT, "output_hash": TEXT, "facts": TEXT, "saved": TIME},
    )
    for column in ("trial_id", "case_key", "skip_key"):
        op.create_index(f"ix_outcome_{column}", "outcome", [column])


def _what_belongs_to_outcomes() -> None:
    _table(
        "sample", ["outcome_id", "metric"],
        sa.ForeignKeyConstraint(["outcome_id", "status"], ["outcome.id", "outcome.status"], name="fk_sample_outcome_id_status"),
        sa.CheckConstraint("status = 'ok'", name="ck_sample_status"),
        sa.CheckConstraint("count > 0 AND length(packed) = 8 * count", name="ck_sample_packed"),
        columns={"outcome_id": NUMBER, "metric": TEXT, "status": WORD, "count": NUMBER, "packed": sa.LargeBinary},
    )
    _table(
        "artifact", ["outcome_id", "name"], _refers("artifact", "outcome_id", "outcome.id"),
        columns={"outcome_id": NUMBER, "name": TEXT, "file": TEXT},
    )
    _table(
        "membership", ["id"], sa.UniqueConstraint("run_id", "outcome_id", name="uq_membership_run_id_outcome_id"),
        _refers("membership", "run_id", "run.id"), _refers("membership", "outcome_id", "outcome.id"),
        columns={"id": NUMBER, "run_id": NUMBER, "outcome_id": NUMBER, "carried": FLAG},
    )
    op.create_index("ix_membership_outcome_id", "membership", ["outcome_id"])


def _judgements() -> None:
    _table(
        "baseline", ["id"], sa.UniqueConstraint("digest", name="uq_baseline_digest"), _refers("baseline", "run_id", "run.id"),
        columns={"id": NUMBER, "digest": HASH, "name": TEXT, "plan": TEXT, "machine_class": TEXT, "reason": TEXT, "run_id": NUMBER,
                 "saved": TIME},
        empty=("run_id",),
    )
    _table(
        "verdict", ["id"], _refers("verdict", "run_id", "run.id"), _refers("verdict", "baseline_id", "baseline.id"),
        columns={"id": NUMBER, "run_id": NUMBER, "baseline_id": NUMBER, "case_key": KEY, "label": TEXT, "metric": TEXT, "verdict": WORD,
                 "reason": TEXT, "then": sa.Double, "now": sa.Double, "change": sa.Double},
        empty=("then", "now", "change"),
    )
    op.create_index("ix_verdict_run_id_baseline_id", "verdict", ["run_id", "baseline_id"])
