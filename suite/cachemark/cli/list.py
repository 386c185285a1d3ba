"""``cachemark list``: names of everything there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import echo_rows, json_option, plugin_option, store_option

if TYPE_CHECKING:
    from ..workflows.list import Kind

KINDS = ("models", "methods", "decoders", "metrics", "plans", "runs")


@click.command("list")
@click.argument("kind", type=click.Choice(KINDS), metavar="KIND")
@store_option
@plugin_option
@json_option
def list(kind: Kind, store_url: str, plugin_files: tuple[str, ...], as_json: bool) -> None:
    """List models, methods, decoders, metrics, plans or runs.

    Brackets give the plug-in or package of an entry.
    """
    from ..workflows.list import listing

    rows = listing(kind, store=store_url, plugins=plugin_files)
    width = max((len(str(row["name"])) for row in rows), default=0)
    echo_rows(rows, as_json, lambda row: f"{row['name']:<{width}}  {row['summary']}{_origin(row)}", f"No {kind}.")


def _origin(row: dict[str, Any]) -> str:
    """Return package or file, and version, unless it is built in."""
    return "" if row.get("origin", "cachemark") == "cachemark" else f"  [{row['origin']} {row['version']}]"
