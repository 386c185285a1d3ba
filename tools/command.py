"""Entry point of a tool: runs its command and prints the package's errors without a traceback."""

from __future__ import annotations

import sys
import traceback

import click

from cachemark.core.errors import DEFECT, CachemarkError


def run_command(command: click.Command) -> None:
    """Run a command on the process's arguments and exit with its code."""
    module = sys.modules["__main__"].__spec__
    try:
        command(prog_name=f"python -m {module.parent}" if module else None)
    except CachemarkError as error:
        click.echo(f"{command.name}: {error}", err=True)
        click.echo(f"  [{error.slug}; see docs/errors.md#{error.slug}]", err=True)
        sys.exit(error.exit_code)
    except Exception:
        traceback.print_exc()
        sys.exit(DEFECT)
