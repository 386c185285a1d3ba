"""The store of outcomes: one SQLite file (or a PostgreSQL database) with the artifacts beside it."""
