"""``cachemark db``: maintain a store."""

from __future__ import annotations

from pathlib import Path

import click

from .options import echo_json, json_option, store_option


@click.group()
def db() -> None:
    """Upgrade a store, merge other stores into it, or prune old runs."""


@db.command()
@store_option
def migrate(store_url: str) -> None:
    """Bring a store to the schema of this version. Every command that writes does this too."""
    from ..workflows import upkeep

    where, rows = upkeep.migrate(store_url)
    click.echo(f"{where} has the schema of this version; {rows} rows.")


@db.command()
@click.argument("others", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@store_option
@json_option
def merge(others: tuple[Path, ...], store_url: str, as_json: bool) -> None:
    """Add the runs of OTHERS: SQLite files from other machines, each with its folder of artifacts.

    Runs that are already here are not added again, so an interrupted merge can simply be repeated.
    """
    from ..workflows.upkeep import merge_file

    rows = []
    for path in others:
        found = merge_file(path, store_url)
        rows.append({"from": str(path), "runs": found.runs, "outcomes": found.outcomes, "known": found.known})
        if not as_json:
            click.echo(f"{path}: {found.runs} runs and {found.outcomes} outcomes added, {found.known} runs known already.")
    if as_json:
        echo_json(rows)


@db.command()
@store_option
@click.option("--policy", default="raw=60", show_default=True, help="raw=N: keep every raw value of the last N nights.")
@click.option("--yes", is_flag=True, help="Do it; without this, only say what would be done.")
@json_option
def prune(store_url: str, policy: str, yes: bool, as_json: bool) -> None:
    """Replace raw values of old nights by quantiles and delete their artifacts.

    The newest nights keep everything, and so does every run that a baseline was saved from or that a gate called regressed.
    """
    from ..workflows.upkeep import prune_store

    found = prune_store(store_url, policy, dry=not yes)
    if as_json:
        echo_json({"done": yes, **vars(found)})
        return
    verb = "Pruned" if yes else "Would prune"
    click.echo(f"{verb} {found.outcomes} outcomes: {found.values} values and {found.files} files, {found.nbytes / 2**20:.1f} MiB. "
               f"{found.kept} outcomes keep everything.")
    if not yes:
        click.echo("Nothing was changed. Add --yes to do it.")
