"""``cachemark ingest``: results of other programs into the store."""

from __future__ import annotations

from pathlib import Path

import click

from ..core.wording import count
from .options import store_option


@click.group()
def ingest() -> None:
    """Import results of other programs into a store."""


@ingest.command("pytest-benchmark")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@store_option
def pytest_benchmark(file: Path, store_url: str) -> None:
    """Import the results of pytest-benchmark as one run.

    FILE is written by `pytest --benchmark-json FILE`. The store is created if it does not exist.
    """
    from ..workflows.db import ingest_file

    found = ingest_file(file, store_url)
    for reason in found.left_out:
        click.echo(f"Left out: {reason}.", err=True)
    said = "was read before: it is" if found.known else "is"
    click.echo(f"{file} {said} run {found.run} of {store_url}, {count(found.cases, 'case')}.")
