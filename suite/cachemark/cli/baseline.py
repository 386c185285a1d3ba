"""``cachemark baseline``: accepted results, as files that a reviewer can read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from .options import MOST_DAYS, Line, all_of, baseline_option, echo_rows, json_option, stored_run_options
from .remedies import noted, runnable

if TYPE_CHECKING:
    from ..gate.baselines import ListedBaseline

root_option = click.option("--root", type=click.Path(file_okay=False, path_type=Path), default=Path("baselines/accepted"),
                           callback=noted, show_default=True, help="Where baselines are kept.")
days_option = click.option("--days", type=click.IntRange(0, MOST_DAYS), default=180, show_default=True,
                           help="Days until it expires; 0: never.")
name_option = click.option("--name", type=Line(), callback=noted, help="Name of the baseline.  [default: the plan's]")


def accepting(reason: str, required: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of commands that accept a run as a baseline; ``reason`` is the help of --reason."""
    need: dict[str, Any] = {"required": True} if required else {"default": ""}  # with a default, None too, click requires nothing
    reason_option = click.option("--reason", type=Line(), help=f"{reason}; kept in the file.", **need)
    return all_of(stored_run_options, root_option, name_option, reason_option, days_option)


def _accept(how: Literal["save", "promote", "rebase"], store_url: str, run_id: int | None, **options: Any) -> None:
    from ..workflows.accept import accept

    click.echo(f"Baseline: {accept(how, store_url, run=run_id, **options)}")


@click.group()
def baseline() -> None:
    """Save, replace, list and compare accepted results."""


@baseline.command()
@accepting("Why this run is accepted", required=False)
def save(**options: Any) -> None:
    """Accept a finished run as the first baseline of its name.

    Writes ROOT/<machine class>/<name>.json, which must not exist yet.
    """
    _accept("save", **options)


@baseline.command()
@accepting("Why its values are accepted")
def promote(**options: Any) -> None:
    """Replace the accepted baseline by a finished run of the same environment."""
    _accept("promote", **options)


@baseline.command()
@accepting("What was upgraded")
def rebase(**options: Any) -> None:
    """Replace the baseline by a run in an upgraded environment.

    This starts a new series of baselines.
    """
    _accept("rebase", **options)


@baseline.command("list")
@root_option
@json_option
def list_(root: Path, as_json: bool) -> None:
    """List every baseline under ROOT."""
    from ..workflows.accept import accepted

    none = runnable(f"No baseline under {root}. Save one with: cachemark baseline save")
    echo_rows(accepted(root), as_json, _listed, none)


def _listed(item: ListedBaseline) -> str:
    until = f", until {item.expires}" if item.expires else ""
    description = f"{item.plan}, {item.outcomes} outcomes, saved {item.saved}, series {item.series}{until}"
    return f"{item.machine_class}/{item.name}: {item.problem or f'{description}. {item.reason}'.strip()}"


@baseline.command()
@stored_run_options
@baseline_option
def commit(store_url: str, run_id: int | None, baseline: Path | None) -> None:
    """Print the commit of a run's baseline."""
    from ..workflows.accept import baseline_commit

    click.echo(baseline_commit(store_url, run=run_id, baseline=baseline))
