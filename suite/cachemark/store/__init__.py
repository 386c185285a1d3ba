"""The store of outcomes: one SQLite file (or a PostgreSQL database) with the artifacts beside it."""

from .db import Store
from .exchange import Exchange, dump, load
from .rows import RunRecord, Verdict

__all__ = ["Exchange", "RunRecord", "Store", "Verdict", "dump", "load"]
