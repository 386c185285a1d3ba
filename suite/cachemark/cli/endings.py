"""The end of a command that does not end well: one line that says why, and an exit code. 1 is a verdict, so nothing here ends with it."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn, TextIO

import click

from ..core.errors import DEFECT, CachemarkError, of_system
from ..core.plugin_modules import fault
from ..core.wording import printed
from .remedies import runnable

INTERRUPTED, UNREAD = 130, 141  # as a shell has it: 128 and the number of SIGINT and of SIGPIPE
LONGEST, WORD = 1_500, 200  # characters of a line and of a word in it: a name may have any length, and must not hide what is said of it
MASKED = 10 * LONGEST  # characters that are looked at: what stands behind them is not shown


@contextmanager
def ending(kept: Callable[[], str] = str) -> Iterator[None]:
    """End the process with a code and one line for whatever is raised; ``kept`` states what Ctrl-C leaves."""
    try:
        yield
    except (KeyboardInterrupt, click.Abort):
        _leave(INTERRUPTED, f"\nInterrupted. {kept()}".rstrip())
    except click.exceptions.Exit:
        raise
    except click.ClickException as error:
        if not isinstance(error, click.exceptions.NoArgsIsHelpError):  # whose message is the help
            vars(error).update(message=_line(error.message))  # click declares it final
        with _unheard():
            error.show()
        _leave(click.UsageError.exit_code)
    except BrokenPipeError:
        _leave(UNREAD)
    except SystemExit as error:
        if plugin_error := fault(error):  # it would end a command that has done nothing with any code, 0 among them
            _said(plugin_error)
        raise
    except Exception as error:
        own_error = error if isinstance(error, CachemarkError) else fault(error) or of_system(error)
        _defect(error) if own_error is None else _said(own_error)


def _said(error: CachemarkError) -> NoReturn:
    """One of our errors as a short text."""
    text = f"{error.message} {runnable(error.remedy)}".strip()
    _leave(error.exit_code, f"cachemark: {_line(text)}", f"  [{error.slug}; see docs/errors.md#{error.slug}]")


def _defect(error: Exception) -> NoReturn:
    """An error that nobody expected: all of it, for whoever mends it, and a line for whoever meets it."""
    name = _line(f"{type(error).__name__}: {error}")
    _leave(DEFECT, "".join(traceback.format_exception(error)),
           f"cachemark: A defect of cachemark, not of what was given or measured: {name}",
           f"  [exit code {DEFECT}; report the lines above with the command, see docs/errors.md#defects]")


def _line(text: str) -> str:
    """A text on one line, its long words cut."""
    return printed(re.sub(rf"\S{{{WORD},}}", lambda word: f"{word[0][: WORD // 2]}…{word[0][-WORD // 4 :]}", text[:MASKED]), LONGEST)


def _leave(code: int, *lines: str) -> NoReturn:
    """Exit with this code after printing these lines on standard error.

    Both streams are flushed first: Python exits with codes of its own where output cannot be written.
    """
    with _unheard():
        for line in lines:
            click.echo(line, err=True)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            _redirect(stream)
    sys.exit(code)


@contextmanager
def _unheard() -> Iterator[None]:
    """Ignore that last words cannot be written: no reader, a full disk, or a second Ctrl-C."""
    with suppress(OSError, ValueError, KeyboardInterrupt):
        yield


def _redirect(stream: TextIO) -> None:
    """Lead a stream nowhere, with what it has not written yet."""
    with suppress(OSError, ValueError):  # a stream that is no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
