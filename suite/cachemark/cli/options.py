"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ..store.db import Store

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_STORE = "cachemark.sqlite"


def store_option(function: F) -> F:
    """``--store``: where results are kept."""
    return click.option("--store", "store_url", default=DEFAULT_STORE, show_default=True, envvar="CACHEMARK_STORE", show_envvar=True,
                        help="SQLite file, or a postgresql+psycopg:// URL.")(function)


def run_option(function: F) -> F:
    """``--run``: which run."""
    return click.option("--run", "run_id", type=click.IntRange(min=1), help="Number of the run.  [default: the newest]")(function)


def json_option(function: F) -> F:
    """``--json``: machine-readable output."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def plugin_option(function: F) -> F:
    """``--plugin``: methods from files."""
    return click.option("--plugin", "plugin_files", multiple=True, type=click.Path(),
                        help="Python file that registers a method; repeatable.")(function)


def existing(store_url: str) -> Store:
    """The store, which must exist already; reading does not change it."""
    from ..store.db import Store

    return Store.open(store_url, create=False, read_only=True)


def echo_json(value: Any) -> None:
    """Print a value as indented JSON."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))
