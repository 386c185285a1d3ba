"""Leases of devices, and what is known of samples of which only quantiles are kept."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the two tables."""
    op.create_table(
        "lease",
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("beat", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("device", name="pk_lease"),
    )
    op.create_table(
        "condensed",
        sa.Column("outcome_id", sa.Integer, nullable=False),
        sa.Column("metric", sa.Text, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("mean", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("outcome_id", "metric", name="pk_condensed"),
        sa.ForeignKeyConstraint(["outcome_id", "metric"], ["sample.outcome_id", "sample.metric"], name="fk_condensed_outcome_id_metric"),
        sa.ForeignKeyConstraint(["outcome_id"], ["outcome.id"], name="fk_condensed_outcome_id"),
    )
