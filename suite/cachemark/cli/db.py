"""``cachemark db``: maintain a store."""

from __future__ import annotations

from pathlib import Path

import click

from ..core.wording import count
from .options import echo_json, json_option, store_option


@click.group()
def db() -> None:
    """Create, check, back up, merge or prune a store."""


@db.command()
@store_option
@click.option("--artifacts", type=click.Path(file_okay=False), help="For a server: the folder of its artifacts, which every machine sees.")
def init(store_url: str, artifacts: str | None) -> None:
    """Create a store. Every command that writes does this too.

    A server keeps no files, so name the folder of its artifacts once with --artifacts, and again after that folder was moved.
    """
    from ..workflows.db import init_store

    where, rows = init_store(store_url, artifacts)
    click.echo(f"{where} is ready: {count(rows, 'row')}.")


@db.command("check")
@store_option
@json_option
def check(store_url: str, as_json: bool) -> None:
    """Check pages, constraints, references and artifacts.

    Nothing is changed. The exit code is 2 where anything is wrong.
    """
    from ..core.errors import BadStore
    from ..workflows.db import check_store

    problems = check_store(store_url)
    if as_json:
        echo_json(problems)
    else:
        click.echo("\n".join(problems) or "No damage.")
    if problems:
        raise BadStore(f"The store is damaged in {count(len(problems), 'place')}.", remedy="Restore a backup, or name another --store.")


@db.command()
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
@store_option
def backup(target: Path, store_url: str) -> None:
    """Copy the database to the new file TARGET, also while others write to it.

    The folder of artifacts is not copied.
    """
    from ..workflows.db import backup_store

    backup_store(target, store_url)
    click.echo(f"Backup: {target}")


@db.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@store_option
@json_option
def merge(sources: tuple[Path, ...], store_url: str, as_json: bool) -> None:
    """Add the runs of other stores.

    OTHERS are SQLite files from other machines, each with its folder of artifacts. Runs that are already here are not added again, so an
    interrupted merge can simply be repeated.
    """
    from ..workflows.db import merge_file

    rows = []
    for path in sources:
        merged = merge_file(path, store_url)
        rows.append({"from": str(path), "runs": merged.runs, "outcomes": merged.outcomes, "known": merged.known})
        if not as_json:
            added = f"{count(merged.runs, 'run')} and {count(merged.outcomes, 'outcome')} added"
            click.echo(f"{path}: {added}, {count(merged.known, 'run')} already present.")
    if as_json:
        echo_json(rows)


@db.command()
@store_option
@click.option("--nights", default=365, show_default=True, type=click.IntRange(0, 10**6), help="Nights to keep, counted by start date.")
@click.option("--yes", is_flag=True, help="Delete; without this, only count.")
@json_option
def prune(store_url: str, nights: int, yes: bool, as_json: bool) -> None:
    """Delete the runs of old nights and their artifacts.

    Runs behind a baseline, runs with a regression, and runs with results that a kept run reuses are kept.
    """
    from ..workflows.db import prune_store

    pruned = prune_store(store_url, nights, dry=not yes)
    if as_json:
        echo_json({"done": yes, **vars(pruned)})
        return
    click.echo(f"{'Deleted' if yes else 'Would delete'} {count(pruned.runs, 'run')} with {count(pruned.outcomes, 'outcome')} and "
               f"{count(pruned.files, 'file')} ({pruned.nbytes / 2**20:.1f} MiB); {count(pruned.kept, 'run')} kept.")
    if not yes:
        click.echo("Nothing was changed. Add --yes to do it.")
