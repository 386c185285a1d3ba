"""What is true of a store as a whole, and rows that a repair has set aside."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the two tables."""
    op.create_table(
        "setting",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_setting"),
    )
    op.create_table(
        "set_aside",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("saved", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_set_aside"),
    )
