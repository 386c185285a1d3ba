"""``cachemark baseline``: accepted results, as files that a reviewer can read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from .options import echo_json, existing, json_option, run_option, store_option

F = TypeVar("F", bound=Callable[..., Any])

FOLDER = click.Path(file_okay=False, path_type=Path)
root_option = click.option("--root", type=FOLDER, default=Path("baselines/accepted"), show_default=True, help="Where baselines are kept.")

days_option = click.option("--days", type=click.IntRange(min=0), default=180, show_default=True,
                           help="For how long it judges; 0: for ever.")
name_option = click.option("--name", help="Name of the baseline.  [default: the plan's]")


def accepting(reason: str) -> Callable[[F], F]:
    """The options of what puts a run in the place of an accepted baseline; ``reason`` says what is to be stated."""
    asked = click.option("--reason", required=True, help=f"{reason}; kept in the file.")

    def dressed(function: F) -> F:
        for option in (days_option, asked, name_option, root_option, run_option, store_option):
            function = option(function)
        return function

    return dressed


@click.group()
def baseline() -> None:
    """Save, replace, list and compare accepted results."""


@baseline.command()
@store_option
@run_option
@root_option
@name_option
@click.option("--reason", default="", help="Why this run is accepted; kept in the file.")
@days_option
def save(store_url: str, run_id: int | None, root: Path, name: str | None, reason: str, days: int) -> None:
    """Write a finished run to ROOT/<machine class>/<name>.json."""
    from ..gate import baselines
    from ..store.db import Store

    with Store.open(store_url, create=False) as store:
        click.echo(f"Baseline: {baselines.save(store, run_id, root, name, reason=reason, days=days)}")


@baseline.command()
@accepting("Why its figures are accepted")
def promote(store_url: str, run_id: int | None, root: Path, name: str | None, reason: str, days: int) -> None:
    """Put a finished run in the place of the accepted baseline, measured in the same environment."""
    from ..gate import acceptance
    from ..store.db import Store

    with Store.open(store_url, create=False) as store:
        click.echo(f"Baseline: {acceptance.promote(store, run_id, root, name, reason=reason, days=days)}")


@baseline.command()
@accepting("What was upgraded")
def rebase(store_url: str, run_id: int | None, root: Path, name: str | None, reason: str, days: int) -> None:
    """Begin a new epoch after an upgrade: a run in the new environment takes the accepted baseline's place."""
    from ..gate import acceptance
    from ..store.db import Store

    with Store.open(store_url, create=False) as store:
        click.echo(f"Baseline: {acceptance.rebase(store, run_id, root, name, reason=reason, days=days)}")


@baseline.command("list")
@root_option
@json_option
def list_(root: Path, as_json: bool) -> None:
    """Name every baseline under ROOT."""
    from ..gate import baselines

    found = baselines.list_(root)
    if as_json:
        echo_json([asdict(item) for item in found])
        return
    for item in found:
        until = f", until {item.expires}" if item.expires else ""
        held = f"{item.plan}, {item.outcomes} outcomes, saved {item.saved}, epoch {item.epoch}{until}"
        told = item.problem or f"{held}. {item.reason}".strip()
        click.echo(f"{item.machine_class}/{item.name}: {told}")
    if not found:
        click.echo(f"No baseline under {root}. Save one with: cachemark baseline save")


@baseline.command()
@click.argument("path", type=click.Path(path_type=Path))
@store_option
@run_option
@json_option
def diff(path: Path, store_url: str, run_id: int | None, as_json: bool) -> None:
    """Say in what a run differs from the baseline in PATH, without judging it."""
    from ..gate import baselines

    with existing(store_url) as store:
        found = baselines.diff(baselines.load(path), store.outcomes(store.run(run_id).id))
    if as_json:
        echo_json([asdict(item) for item in found])
        return
    for item in found:
        click.echo(f"{item.label}, {item.what}: {item.then or 'absent'} → {item.now or 'absent'}")
    if not found:
        click.echo("No difference.")
