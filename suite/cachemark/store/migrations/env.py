"""The script that Alembic runs: migrations on the connection that ``store.database`` hands over, inside the transaction it has begun.

There is no alembic.ini and no offline mode. New stores get the tables of schema.py as declared. To change these, write the migration of
older stores by hand into versions/, under the next number, and raise ``schema.SCHEMA_VERSION``; a test compares both ways.
"""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
    transactional_ddl=True,  # Alembic thinks SQLite has none; ours begins its transactions itself
)
context.run_migrations()
