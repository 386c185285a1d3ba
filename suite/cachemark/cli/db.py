"""``cachemark db``: care for a store."""

from __future__ import annotations

from pathlib import Path

import click

from .options import echo_json, json_option, store_option


@click.group()
def db() -> None:
    """Upgrade a store, take other stores into it, or prune what is old."""


@db.command()
@store_option
def migrate(store_url: str) -> None:
    """Bring a store to the schema of this version. Every command that writes does this too."""
    from ..store.db import Store

    with Store.open(store_url, create=False) as store:
        click.echo(f"{store.where} has the schema of this version; {sum(store.counts().values())} rows.")


@db.command()
@click.argument("others", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@store_option
@json_option
def merge(others: tuple[Path, ...], store_url: str, as_json: bool) -> None:
    """Add the runs of OTHERS, SQLite files that come back from other machines with their folders of artifacts.

    A run that is here already is not added again, so an interrupted merge is simply repeated.
    """
    from ..store.db import Store
    from ..store.merge import merge as take

    rows = []
    with Store.open(store_url) as target:
        for path in others:
            with Store.open(path, create=False, read_only=True) as source:
                found = take(target, source)
            rows.append({"from": str(path), "runs": found.runs, "outcomes": found.outcomes, "known": found.known})
            if not as_json:
                click.echo(f"{path}: {found.runs} runs and {found.outcomes} outcomes added, {found.known} runs known already.")
    if as_json:
        echo_json(rows)


@db.command()
@store_option
@click.option("--policy", default="raw=60", show_default=True, help="raw=N: of how many nights every raw value stays.")
@click.option("--yes", is_flag=True, help="Do it. Without this the command only says what it would do.")
@json_option
def prune(store_url: str, policy: str, yes: bool, as_json: bool) -> None:
    """Replace raw values of old nights by quantiles and delete their artifacts.

    The newest nights keep everything, and so does every run that a baseline was saved from or that a gate called regressed.
    """
    from ..store.db import Store
    from ..store.prune import Policy
    from ..store.prune import prune as cut

    with Store.open(store_url, create=False, read_only=not yes) as store:
        found = cut(store, Policy.parse(policy), dry=not yes)
    if as_json:
        echo_json({"done": yes, **vars(found)})
        return
    verb = "Pruned" if yes else "Would prune"
    click.echo(f"{verb} {found.outcomes} outcomes: {found.values} values and {found.files} files, {found.nbytes / 2**20:.1f} MiB. "
               f"{found.kept} outcomes keep everything.")
    if not yes:
        click.echo("Nothing was changed. Add --yes to do it.")
