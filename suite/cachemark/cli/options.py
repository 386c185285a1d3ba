"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_STORE = "cachemark.sqlite"


def store_option(function: F) -> F:
    """``--store``: where results are kept."""
    return click.option("--store", "store_url", default=DEFAULT_STORE, show_default=True, envvar="CACHEMARK_STORE", show_envvar=True,
                        callback=_store_url, help="SQLite file, a postgresql+psycopg:// URL, or @FILE that holds one.")(function)


def _store_url(context: click.Context, option: click.Parameter, given: str) -> str:
    """The URL or path that was given, or the one in the @FILE that was given. Its password is masked from here on.

    A password on the command line is refused: everybody on the machine can read it in the list of processes.
    """
    from ..core.secrets import URL, remember

    if given.startswith("@"):
        given = _secret_file(Path(given[1:]))
    elif URL.search(given) and context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE:
        raise click.BadParameter("a password here can be read in the list of processes. Put the URL into CACHEMARK_STORE, or into a file "
                                 "that only you can read: --store @FILE")
    remember(given)
    return given


def _secret_file(path: Path) -> str:
    """The first line of a file that nobody else can read."""
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    if mode & 0o077:
        raise click.BadParameter(f"{path} can be read by others (mode {mode & 0o777:o}). Run: chmod 600 '{path}'")
    if not text.strip():
        raise click.BadParameter(f"{path} is empty.")
    return text.strip().splitlines()[0]


def run_option(function: F) -> F:
    """``--run``: which run."""
    return click.option("--run", "run_id", type=click.IntRange(min=1), help="Number of the run.  [default: the newest]")(function)


def json_option(function: F) -> F:
    """``--json``: machine-readable output."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def coverage_option(function: F) -> F:
    """``--min-coverage``: how much must be judged."""
    return click.option("--min-coverage", type=click.FloatRange(0, 1),
                        help="Share of the cases that must be judged.  [default: 0.95, or what a comparison was held with]")(function)


def plugin_option(function: F) -> F:
    """``--plugin``: methods from files."""
    return click.option("--plugin", "plugin_files", multiple=True, type=click.Path(),
                        help="Python file that registers a method; repeatable.")(function)


def echo_json(value: Any) -> None:
    """Print a value as indented JSON."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))
