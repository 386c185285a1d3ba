"""The end of a command that does not end well: one line that says why, and an exit code. 1 is a verdict, so nothing here ends with it."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from ..core import plugins
from ..core.errors import DEFECT, CachemarkError, of_system
from ..core.secrets import mask
from ..core.wording import printed

INTERRUPTED, UNREAD = 130, 141  # as a shell has it: 128 and the number of SIGINT and of SIGPIPE
LONGEST, WORD = 1_500, 200  # characters of a line and of a word in it: a name may have any length, and must not hide what is said of it
MASKED = 10 * LONGEST  # characters that are looked at: what stands behind them is not shown


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
        vars(error).update(message=_line(error.message))  # final, for those who do not print it
        raise
    except BrokenPipeError:
        _unread()
    except SystemExit as error:
        if fault := plugins.fault(error):  # it would end a command that has done nothing with any code, 0 among them
            _said(fault)
        raise
    except Exception as error:
        known = error if isinstance(error, CachemarkError) else plugins.fault(error) or of_system(error)
        _defect(error) if known is None else _said(known)


def _said(error: CachemarkError) -> NoReturn:
    """One of our errors as a short text."""
    click.echo(f"cachemark: {_line(str(error))}", err=True)
    click.echo(f"  [{error.slug}; see docs/errors.md#{error.slug}]", err=True)
    sys.exit(error.exit_code)


def _defect(error: Exception) -> NoReturn:
    """An error that nobody expected: all of it, for whoever mends it, and a line for whoever meets it."""
    click.echo(mask("".join(traceback.format_exception(error))), err=True)
    name = _line(f"{type(error).__name__}: {error}")
    click.echo(f"cachemark: A defect of cachemark, not of what was given or measured: {name}", err=True)
    click.echo(f"  [exit code {DEFECT}; report the lines above with the command, see docs/errors.md#defects]", err=True)
    sys.exit(DEFECT)


def _line(text: str) -> str:
    """A text on one line, without secrets, its long words cut."""
    return printed(re.sub(rf"\S{{{WORD},}}", lambda word: f"{word[0][: WORD // 2]}…{word[0][-WORD // 4 :]}", mask(text[:MASKED])), LONGEST)


def _unread() -> NoReturn:
    """Whoever read what is printed went away: there is nobody to tell."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    sys.exit(UNREAD)
