"""The first schema, from which migrations start. No store is made with it any more: a new one gets the tables of ``schema.py``."""

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None
