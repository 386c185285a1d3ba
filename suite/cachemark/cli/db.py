"""``cachemark db``: maintain a store."""

from __future__ import annotations

from pathlib import Path

import click

from ..core.wording import count
from .options import echo_json, json_option, store_option


@click.group()
def db() -> None:
    """Upgrade a store, find and repair damage, merge other stores into it, or prune old runs."""


@db.command()
@store_option
@click.option("--artifacts", type=click.Path(file_okay=False), help="For a server: the folder of its artifacts, which every machine sees.")
def migrate(store_url: str, artifacts: str | None) -> None:
    """Bring a store to the schema of this version. Every command that writes does this too.

    A server keeps no files, so it is told once with --artifacts where they go, and again after that folder was moved.
    """
    from ..workflows import upkeep

    where, rows = upkeep.migrate(store_url, artifacts)
    click.echo(f"{where} has the schema of this version; {rows} rows.")


@db.command("check")
@store_option
@json_option
def check_damage(store_url: str, as_json: bool) -> None:
    """List all damage of a store: pages, rows, and files that are missing or changed. Nothing is changed.

    The exit code is 0 where there is none, else 2. Every row and every file is read.
    """
    from ..core.errors import BadStore
    from ..workflows import upkeep

    found = upkeep.find_damage(store_url)
    if as_json:
        echo_json([{"table": one.table, "row": one.row, "what": one.what} for one in found])
    elif not found:
        click.echo("No damage.")
    else:
        click.echo("\n".join(map(str, found)))
    if found:
        raise BadStore(f"The store is damaged in {len(found)} places.", remedy="Set what is damaged aside: cachemark db repair")


@db.command()
@store_option
@json_option
def repair(store_url: str, as_json: bool) -> None:
    """Set all damage of a store aside, so that the rest can be judged. Nothing is deleted.

    Damaged rows go to the table set_aside. Of a file whose pages are damaged, every readable row goes to a new file, and the damaged one is
    kept beside it. End all other commands on the store first.
    """
    from ..workflows import upkeep

    found = upkeep.repair_store(store_url)
    if as_json:
        echo_json({"set_aside": found.rows, "kept": found.kept, "left": list(map(str, found.left))})
        return
    if found.kept is not None:
        click.echo(f"The damaged file is kept as {found.kept}.")
    told = ", ".join(f"{count} of {table}" for table, count in sorted(found.rows.items()))
    click.echo(f"Set aside: {told}." if told else "No damaged row.")
    for one in found.left:
        click.echo(f"Still damaged: {one}")


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
        rows.append({"from": str(path), "runs": found.runs, "outcomes": found.outcomes, "known": found.known, "damaged": found.damaged})
        if not as_json:
            left = f" {found.damaged} damaged outcomes left out." if found.damaged else ""
            added = f"{count(found.runs, 'run')} and {count(found.outcomes, 'outcome')} added"
            click.echo(f"{path}: {added}, {count(found.known, 'run')} known already.{left}")
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
