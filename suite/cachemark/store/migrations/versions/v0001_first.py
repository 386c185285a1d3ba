"""The first schema. Written out, not taken from schema.py, so that it stays what it was when schema.py moves on."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

STATUSES = "'ok', 'oom', 'timeout', 'throttled', 'contended', 'nan_output', 'unsupported', 'error', 'not_reached'"


def upgrade() -> None:
    """Create every table."""
    _what_is_measured()
    _runs()
    _outcomes()
    _what_belongs_to_outcomes()
    _judgements()


def _what_is_measured() -> None:
    op.create_table(
        "case",
        sa.Column("key", sa.String(16), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("cell", sa.String(16), nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("method", sa.Text, nullable=False),
        sa.Column("budget", sa.Text, nullable=False),
        sa.Column("codec", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("batch", sa.Integer, nullable=False),
        sa.Column("seeds", sa.Text, nullable=False),
        sa.Column("dtype", sa.Text, nullable=False),
        sa.Column("engine", sa.Text, nullable=False),
        sa.Column("device_class", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_case"),
    )
    for column in ("cell", "model", "method"):
        op.create_index(f"ix_case_{column}", "case", [column])
    op.create_table(
        "environment",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("machine_class", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_environment"),
        sa.UniqueConstraint("digest", name="uq_environment_digest"),
    )


def _runs() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("plan_json", sa.Text, nullable=False),
        sa.Column("environment_id", sa.Integer, nullable=False),
        sa.Column("started", sa.String(32), nullable=False),
        sa.Column("finished", sa.String(32)),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("code", sa.Text, nullable=False),
        sa.Column("code_commit", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_run"),
        sa.CheckConstraint("state IN ('running', 'finished', 'interrupted', 'failed')", name="ck_run_state"),
        sa.ForeignKeyConstraint(["environment_id"], ["environment.id"], name="fk_run_environment_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_run_plan", "run", ["plan"])
    op.create_table(
        "trial",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("name", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_trial"),
        sa.UniqueConstraint("run_id", "name", name="uq_trial_run_id_name"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_trial_run_id"),
    )


def _outcomes() -> None:
    op.create_table(
        "outcome",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("trial_id", sa.Integer, nullable=False),
        sa.Column("case_key", sa.String(16), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("judged", sa.Boolean, nullable=False),
        sa.Column("n_samples", sa.Integer, nullable=False),
        sa.Column("judgement", sa.Text, nullable=False),
        sa.Column("log", sa.Text, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("skip_key", sa.Text, nullable=False),
        sa.Column("output_hash", sa.Text, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("saved", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_outcome"),
        sa.CheckConstraint(f"status IN ({STATUSES})", name="ck_outcome_status"),
        sa.CheckConstraint(
            "(status = 'ok' AND n_samples > 0 AND judged) OR (status <> 'ok' AND n_samples = 0 AND log <> '')", name="ck_outcome_judged",
        ),
        sa.UniqueConstraint("id", "status", name="uq_outcome_id_status"),
        sa.ForeignKeyConstraint(["trial_id"], ["trial.id"], name="fk_outcome_trial_id"),
        sa.ForeignKeyConstraint(["case_key"], ["case.key"], name="fk_outcome_case_key"),
    )
    for column in ("trial_id", "case_key", "skip_key"):
        op.create_index(f"ix_outcome_{column}", "outcome", [column])


def _what_belongs_to_outcomes() -> None:
    op.create_table(
        "sample",
        sa.Column("outcome_id", sa.Integer, nullable=False),
        sa.Column("metric", sa.Text, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("packed", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("outcome_id", "metric", name="pk_sample"),
        sa.ForeignKeyConstraint(["outcome_id", "status"], ["outcome.id", "outcome.status"], name="fk_sample_outcome_id_status"),
        sa.CheckConstraint("status = 'ok'", name="ck_sample_status"),
        sa.CheckConstraint("count > 0 AND length(packed) = 8 * count", name="ck_sample_packed"),
    )
    op.create_table(
        "artifact",
        sa.Column("outcome_id", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("file", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("outcome_id", "name", name="pk_artifact"),
        sa.ForeignKeyConstraint(["outcome_id"], ["outcome.id"], name="fk_artifact_outcome_id"),
    )
    op.create_table(
        "membership",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("outcome_id", sa.Integer, nullable=False),
        sa.Column("carried", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_membership"),
        sa.UniqueConstraint("run_id", "outcome_id", name="uq_membership_run_id_outcome_id"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_membership_run_id"),
        sa.ForeignKeyConstraint(["outcome_id"], ["outcome.id"], name="fk_membership_outcome_id"),
    )
    op.create_index("ix_membership_outcome_id", "membership", ["outcome_id"])


def _judgements() -> None:
    op.create_table(
        "baseline",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("machine_class", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("run_id", sa.Integer),
        sa.Column("saved", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_baseline"),
        sa.UniqueConstraint("digest", name="uq_baseline_digest"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_baseline_run_id"),
    )
    op.create_table(
        "verdict",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("baseline_id", sa.Integer, nullable=False),
        sa.Column("case_key", sa.String(16), nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("metric", sa.Text, nullable=False),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("then", sa.Double),
        sa.Column("now", sa.Double),
        sa.Column("change", sa.Double),
        sa.PrimaryKeyConstraint("id", name="pk_verdict"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_verdict_run_id"),
        sa.ForeignKeyConstraint(["baseline_id"], ["baseline.id"], name="fk_verdict_baseline_id"),
    )
    op.create_index("ix_verdict_run_id_baseline_id", "verdict", ["run_id", "baseline_id"])
