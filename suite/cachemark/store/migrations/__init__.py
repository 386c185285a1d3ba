"""The history of the schema, run by ``store.migrate`` through Alembic."""
