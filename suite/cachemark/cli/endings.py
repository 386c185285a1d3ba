"""The end of a command that does not end well: one line that says why, and an exit code. 1 is a verdict, so nothing here ends with it."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from ..core.errors import DEFECT, CachemarkError, of_system
from ..core.secrets import mask
from ..core.wording import printed

INTERRUPTED, UNREAD = 130, 141  # as a shell has it: 128 and the number of SIGINT and of SIGPIPE
LONGEST = 1_500  # characters of a line; a name may have any length


@contextmanager
def ending(kept: Callable[[], str]) -> Iterator[None]:
    """Whatever is raised inside ends the process with its code and a line. ``kept`` says what Ctrl-C leaves behind."""
    try:
        yield
    except (KeyboardInterrupt, click.Abort):
        click.echo(f"\nInterrupted. {kept()}".rstrip(), err=True)
        sys.exit(INTERRUPTED)
    except click.exceptions.Exit:
        raise
    except click.ClickException as error:
        error.message = printed(mask(error.message), LONGEST)
        raise
    except BrokenPipeError:
        _unread()
    except Exception as error:
        known = error if isinstance(error, CachemarkError) else of_system(error)
        _defect(error) if known is None else _said(known)


def _said(error: CachemarkError) -> NoReturn:
    """One of our errors as a short text."""
    click.echo(f"cachemark: {printed(mask(str(error)), LONGEST)}", err=True)
    click.echo(f"  [{error.slug}; see docs/errors.md#{error.slug}]", err=True)
    sys.exit(error.exit_code)


def _defect(error: Exception) -> NoReturn:
    """An error that nobody expected: all of it, for whoever mends it, and a line for whoever meets it."""
    click.echo(mask("".join(traceback.format_exception(error))), err=True)
    name = printed(mask(f"{type(error).__name__}: {error}"), LONGEST)
    click.echo(f"cachemark: A defect of cachemark, not of what was given or measured: {name}", err=True)
    click.echo(f"  [exit code {DEFECT}; report the lines above with the command, see docs/errors.md#defects]", err=True)
    sys.exit(DEFECT)


def _unread() -> NoReturn:
    """Whoever read what is printed went away: there is nobody to tell."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    sys.exit(UNREAD)
