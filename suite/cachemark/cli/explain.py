"""``cachemark explain``: which cases of a plan would run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import echo_json, fresh_option, json_option, plan_options

if TYPE_CHECKING:
    from ..workflows.explain import Explanation
    from ..workflows.session import Machine


@click.command()
@plan_options
@fresh_option
@json_option
def explain(
    plan: str, store_url: str, plugin_files: tuple[str, ...], methods: tuple[str, ...], machine: Machine, fresh: bool, as_json: bool,
) -> None:
    """Show which cases of a plan would run, and why.

    Nothing is run and the store is not changed.
    """
    from ..workflows.explain import explain as explain_cases

    rows = explain_cases(plan, fresh=fresh, store=store_url, machine=machine, plugins=plugin_files, methods=methods)
    if as_json:
        echo_json([{"case": row.case.to_json(), "label": row.case.label, "action": _action(row), "reason": row.reason} for row in rows])
        return
    width = max(len(row.case.title) for row in rows)
    for row in rows:
        click.echo(f"{row.case.title:<{width}}  {_action(row):<4}  {row.reason}")


def _action(row: Explanation) -> str:
    return "skip" if row.stored else "run"
