"""The end of a failed command: one line with the reason, and an exit code.

Code 1 is reserved for verdicts.
"""

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
def ending(kept_results: Callable[[], str] = str) -> Iterator[None]:
    """Turn every exception into an exit code and one line; ``kept_results`` states what Ctrl-C leaves."""
    try:
        yield
    except (KeyboardInterrupt, click.Abort):
        _leave(INTERRUPTED, f"\nInterrupted. {kept_results()}".rstrip())
    except click.exceptions.Exit:
        raise
    except click.ClickException as error:
        if not isinstance(error, click.exceptions.NoArgsIsHelpError):  # whose message is the help
            vars(error).update(message=_shortened(error.message))  # click declares it final
        with _unheard():
            error.show()
        _leave(click.UsageError.exit_code)
    except BrokenPipeError:
        _leave(UNREAD)
    except SystemExit as error:
        if plugin_error := fault(error):  # it would end a command that has done nothing with any code, 0 among them
            _fail(plugin_error)
        raise
    except Exception as error:
        own_error = error if isinstance(error, CachemarkError) else fault(error) or of_system(error)
        _defect(error) if own_error is None else _fail(own_error)


def _fail(error: CachemarkError) -> NoReturn:
    text = f"{error.message} {runnable(error.remedy)}".strip()
    _leave(error.exit_code, f"cachemark: {_shortened(text)}", f"  [{error.slug}; see docs/errors.md#{error.slug}]")


def _defect(error: Exception) -> NoReturn:
    """Print the traceback of an unexpected error, and a line for the user."""
    name = _shortened(f"{type(error).__name__}: {error}")
    _leave(DEFECT, "".join(traceback.format_exception(error)),
           f"cachemark: A defect of cachemark, not of what was given or measured: {name}",
           f"  [exit code {DEFECT}; report the lines above with the command, see docs/errors.md#defects]")


def _shortened(text: str) -> str:
    """Return a text on one line, with long words cut."""
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
    """Ignore failures to write the last lines: no reader, a full disk, or a second Ctrl-C."""
    with suppress(OSError, ValueError, KeyboardInterrupt):
        yield


def _redirect(stream: TextIO) -> None:
    """Redirect a stream to /dev/null with its pending output."""
    with suppress(OSError, ValueError):  # a stream that is no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
