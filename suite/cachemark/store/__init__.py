"""The store of outcomes: one SQLite file (or a PostgreSQL database) with its artifacts next to it."""
