"""Brings a database to the schema of this version, or says why it cannot."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

from .. import __version__
from ..core.errors import BadStore
from .schema import SCHEMA_VERSION

VERSION_TABLE = "cachemark_version"  # not Alembic's usual name: another program's database must not look like ours
SCRIPTS = Path(__file__).with_name("migrations")
_LOCK = 0x63616368  # "cach": any number, the same in every process


def version_of(connection: Connection, where: str) -> str | None:
    """Schema version of the database, None where it is empty.

    Raises :class:`BadStore` for tables of another program and for a version newer than ours; nothing is written.
    """
    tables = inspect(connection).get_table_names()
    if not tables:
        return None
    found = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}")) if VERSION_TABLE in tables else None
    if found is None:
        raise BadStore(f"{where} is a database of another program (its tables: {', '.join(sorted(tables)[:4])}).",
                       remedy="Name another --store; this one was left as it is.")
    if found > SCHEMA_VERSION:
        raise BadStore(f"{where} has schema {found}; cachemark {__version__} knows schemas up to {SCHEMA_VERSION}.",
                       remedy="Upgrade cachemark, or name another --store; this one was left as it is.")
    return str(found)


def migrate(writer: Engine, where: str) -> None:
    """Create or upgrade the tables in place, in one transaction. Of several processes at once, one does the work."""
    with writer.connect() as connection:
        if version_of(connection, where) == SCHEMA_VERSION:
            return
    with writer.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        if version_of(connection, where) != SCHEMA_VERSION:  # another process may have been faster
            _upgrade(connection)


def _upgrade(connection: Connection) -> None:
    from alembic import command  # here, because it is slow to import and seldom needed
    from alembic.config import Config

    config = Config(attributes={"connection": connection, "version_table": VERSION_TABLE})
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    command.upgrade(config, SCHEMA_VERSION)
