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

    ingested = ingest_file(file, store_url)
    for reason in ingested.skipped:
        click.echo(f"Skipped: {reason}.", err=True)
    verb = "was imported before as" if ingested.repeated else "is"
    click.echo(f"{file} {verb} run {ingested.run} of {store_url}, {count(ingested.cases, 'case')}.")
