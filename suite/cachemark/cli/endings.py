"""The end of a failed command: one line with the problem and its fix, and an exit code.

Code 1 is reserved for verdicts.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shlex
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn, TextIO

import click
from click.core import ParameterSource

from ..core.errors import DEFECT, BadPlugin, CachemarkError, of_system, text_of
from ..core.plugin_modules import fault
from ..core.wording import printed

INTERRUPTED, UNREAD = 130, 141  # as in a shell: 128 plus the number of SIGINT or SIGPIPE
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
_PARENT_DEATH, _FROM_KERNEL = 1, 128  # PR_SET_PDEATHSIG, SI_KERNEL
LONGEST, WORD = 1_500, 200  # characters of a line, and of a word in it
GIVEN = f"{__name__}.given"  # key of a context's meta data
COMMAND = re.compile(r"\bcachemark(?: [a-z][a-z-]*)+")


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP, which end a command as Ctrl-C does.

    What is complete stays, and devices are released."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def terminable(*, own_process: bool) -> Iterator[None]:
    """Raise Terminated for SIGTERM and SIGHUP inside the block, unless they are ignored, as under nohup.

    ``own_process``: nothing follows but the end of Python, where another Ctrl-C would print a traceback, so it is ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: FrameType | None) -> None:
        for each in before:  # a second one would interrupt the release of devices and worktrees
            signal.signal(each, signal.SIG_IGN)
        raise Terminated(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is signal.SIG_DFL:
            signal.signal(number, terminate)
    try:
        yield
    finally:
        after = dict.fromkeys((signal.SIGINT, *before), signal.SIG_IGN) if own_process else before
        for number, handler in after.items():
            signal.signal(number, handler)


@contextmanager
def watched() -> Iterator[None]:
    """Run the block in a copy of this process, which ends as the copy does.

    A plug-in that ends the copy (``os._exit(0)``, a crash) would otherwise choose the exit code, and 0 means passed. For commands that run
    plug-ins in their own process. The copy must not have threads yet; it ends with this process."""
    reader, writer = os.pipe()
    usual, watching = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON), os.getpid()
    if not (copy := os.fork()):
        os.close(reader)
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)
        ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
        if os.getppid() != watching:  # killed before the line above
            os._exit(INTERRUPTED)
        try:
            yield
        finally:
            os.write(writer, b".")
        return
    os.close(writer)
    os.set_blocking(reader, False)
    code = _end_of(copy)
    try:
        complete = bool(os.read(reader, 1))
    except BlockingIOError:  # nothing was written, and a process that was left behind could still
        complete = False
    if not complete and -code not in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        _fail(BadPlugin(f"A plug-in ended the process ({how}) before the command was complete.",
                        remedy="Remove os._exit, or run the file with Python to see the crash."))
    raise SystemExit(code if code >= 0 else 128 - code)


def _end_of(copy: int) -> int:
    """Wait for a child and return its exit code; pass on signals, except those that a terminal sends to both."""
    while not (done := os.waitpid(copy, os.WNOHANG))[0]:
        received = signal.sigwaitinfo(PASSED_ON)
        if received.si_signo != signal.SIGCHLD and received.si_code != _FROM_KERNEL:
            os.kill(copy, received.si_signo)
    return os.waitstatus_to_exitcode(done[1])


@contextmanager
def notes_on_lines() -> Iterator[None]:
    """Print the package's own warnings as one line each, and each text once."""
    usual, printed_before = warnings.showwarning, set[str]()

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
             line: str | None = None) -> None:
        if not category.__module__.startswith("cachemark."):
            usual(message, category, filename, lineno, file, line)
        elif str(message) not in printed_before:
            printed_before.add(str(message))
            click.echo(f"Note: {_shorten(str(message))}", err=True)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = usual


@contextmanager
def ending(kept_results: Callable[[], str] = str) -> Iterator[None]:
    """Turn every exception into an exit code and one line; ``kept_results`` describes what Ctrl-C leaves."""
    try:
        yield
    except Terminated as error:
        _leave(128 + error.number, f"Ended by {signal.Signals(error.number).name}. {kept_results()}".rstrip())
    except (KeyboardInterrupt, click.Abort):
        _leave(INTERRUPTED, f"\nInterrupted. {kept_results()}".rstrip())
    except (click.exceptions.Exit, SystemExit) as error:
        if plugin_error := fault(error):  # a plug-in could exit with any code
            _fail(plugin_error)
        raise
    except click.ClickException as error:
        if not isinstance(error, click.exceptions.NoArgsIsHelpError):  # its message is the help
            vars(error).update(message=_shorten(f"{error.message}{_elsewhere(error)}"))  # click declares it final
        with suppress(OSError, ValueError, KeyboardInterrupt):
            error.show()
        _leave(click.UsageError.exit_code)
    except BrokenPipeError:
        _leave(UNREAD)
    except Exception as error:
        if own_error := error if isinstance(error, CachemarkError) else fault(error) or of_system(error):
            _fail(own_error)
        if (isinstance(error, OSError) and error.errno == errno.EBADF) or text_of(error) == "I/O operation on closed file.":
            _fail(BadPlugin("A plug-in closed the standard streams.", remedy="Remove that; its prints may go to files of its own."))
        _leave(DEFECT, "".join(traceback.format_exception(error)),
               f"cachemark: Internal error: {_shorten(f'{type(error).__name__}: {text_of(error)}')}",
               f"  [exit code {DEFECT}; please report the command and the lines above, see docs/errors.md#internal-errors]")


def _elsewhere(error: click.ClickException) -> str:
    """Name the commands that have an unknown option, or those of a group for an unknown one, where click suggests nothing."""
    if not isinstance(error, click.UsageError) or error.ctx is None or getattr(error, "possibilities", None):
        return ""
    group = error.ctx.command if isinstance(error.ctx.command, click.Group) else error.ctx.find_root().command
    commands = group.commands if isinstance(group, click.Group) else {}
    if isinstance(error, click.NoSuchOption):
        owners = [name for name, command in commands.items() if any(error.option_name in each.opts for each in command.params)]
        return f" Commands with this option: {', '.join(owners)}." if owners else ""
    return f" Use one of: {', '.join(commands)}." if error.message.startswith("No such command") else ""


def _fail(error: CachemarkError) -> NoReturn:
    text = f"{error.message} {runnable(error.remedy)}".strip()
    _leave(error.exit_code, f"cachemark: {_shorten(text)}", f"  [{error.slug}; see docs/errors.md#{error.slug}]")


def _shorten(text: str) -> str:
    """Return a text on one line, with long words cut."""
    return printed(re.sub(rf"\S{{{WORD},}}", lambda word: f"{word[0][: WORD // 2]}…{word[0][-WORD // 4 :]}", text[: 10 * LONGEST]), LONGEST)


def _leave(code: int, *lines: str) -> NoReturn:
    """Exit with this code after printing these lines on standard error, even if it is closed.

    Both streams are flushed first: Python exits with codes of its own if output cannot be written.
    """
    with suppress(OSError, ValueError, KeyboardInterrupt):  # no reader, a full disk, or a second Ctrl-C
        for line in lines:
            click.echo(line, err=True)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):  # a stream that is not a file
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    raise SystemExit(code)  # a plug-in may have replaced sys.exit


def open_closed_streams() -> None:
    """Open /dev/null in place of closed standard streams, so that no file of ours takes their descriptors."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free descriptor


# -- suggested commands -----------------------------------------------------------------------------------------------
def note(context: click.Context, option: click.Parameter, value: Any) -> Any:
    """Remember an option of the command line or the environment, to add it to the commands that a message suggests.

    The variable of a nightly job is unset where a person copies the command to.
    """
    if value and context.get_parameter_source(str(option.name)) in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
        values = value if isinstance(value, tuple) else (value,)
        context.meta.setdefault(GIVEN, []).extend((option.opts[0], str(each)) for each in values)
    return value


def runnable(text: str) -> str:
    """Add the noted options to every cachemark command in the text that accepts them and does not have them."""
    context = click.get_current_context(silent=True)
    noted_options = context.meta.get(GIVEN) if context else None

    def completed(match: re.Match[str]) -> str:
        assert context is not None
        words, names, command = match[0].split(" "), 1, context.find_root().command
        while isinstance(command, click.Group) and names < len(words):
            command = command.commands.get(words[names], click.Command(None))
            names += 1
        accepted = {name for parameter in command.params for name in parameter.opts}
        given = text[match.end():].partition("cachemark ")[0]
        missing = [(name, value) for name, value in noted_options or () if name in accepted and f" {name} " not in given]
        options = [word for name, value in missing for word in (name, shlex.quote(value))]
        return " ".join([*words[:names], *options, *words[names:]])

    return COMMAND.sub(completed, text) if noted_options else text
