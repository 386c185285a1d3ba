"""The history of the schema, run by ``store.database`` through Alembic."""
