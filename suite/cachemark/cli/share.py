"""``cachemark share``: one share of the quality images of a plan."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import click

from .options import plan_options

if TYPE_CHECKING:
    from ..workflows.session import Machine

MOST_SHARES = 10_000


def _part(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, int]:
    """``2/8`` as (1, 8)."""
    index, _, total = value.partition("/")
    if not (re.fullmatch(r"\d{1,5}/\d{1,5}", value, re.ASCII) and 1 <= int(index) <= int(total) <= MOST_SHARES):
        raise click.BadParameter(f"{value!r} is not a share; write 2/8 for the second of eight (at most {MOST_SHARES}).")
    return int(index) - 1, int(total)


@click.command()
@plan_options
@click.argument("part", callback=_part, metavar="I/N")
def share(
    plan: str, part: tuple[int, int], store_url: str, plugin_files: tuple[str, ...], methods: tuple[str, ...], machine: Machine,
) -> None:
    """Generate one share of a plan's quality images.

    Several processes or machines can each generate share I of N into one store; a later `cachemark run` of the plan uses all of them.
    """
    from ..core.errors import Infrastructure
    from ..workflows.run import share as generate_share
    from .progress import Follower

    with Follower() as follower:
        failed = generate_share(plan, part, store_url, machine=machine, plugins=plugin_files, methods=methods, watcher=follower)
    sys.exit(Infrastructure.exit_code if failed else 0)
