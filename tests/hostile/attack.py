"""One try of the attack: what is given to the command line, what it must answer, and what may change on disk; and the judgement of a try.

An area has a file of its own in this folder with a list ``ROWS``; ``test_hostile.py`` finds it there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

LONGEST = 2_000  # characters of the line that says what is wrong
PASSING = ("leases", "tmp/torchinductor")
QUIET = frozenset({0, 1, 3})  # codes of a verdict, of which nothing is said on standard error
PWNED = "::error::pwned"  # to be put into names and notes: a workflow command, where it begins a line
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_COMMAND = re.compile(r"^\s*(::|##\[)", re.MULTILINE)


@dataclass(frozen=True)
class Attack:
    """One row. ``arguments`` follow ``cachemark``; the command runs in a folder of its own that ``prepare`` may change, and that holds at
    first what :func:`hostile.ground.furnish` puts there.

    ``code`` is the exit code; ``slug`` that of the error (empty: one of click, or a verdict), ``says`` what its line must hold, or for a
    verdict all that is printed. ``changes``: patterns of the files in the folder that may change. ``process``: an interpreter is
    started for it, instead of a copy of one; ``trials``: it measures, in processes that are copies too."""

    name: str
    arguments: tuple[str, ...]
    slug: str = ""
    says: tuple[str, ...] = ()
    code: int = 2
    prepare: Callable[[Path], object] = field(default=lambda folder: None)
    changes: tuple[str, ...] = ()
    process: bool = False
    trials: bool = False


@dataclass(frozen=True)
class Ending:
    """The end of a command: its exit code (None: it was killed because it did not end), what it printed, and what it did outside."""

    code: int | None
    stdout: str
    stderr: str
    outside: tuple[str, ...] = ()


State = Mapping[str, str]  # of a folder: each path in it, and what tells its content


def state_of(folder: Path) -> State:
    """Every path below a folder with its kind and content; of what is no file its kind alone. Without leases, PyTorch's own
    cache, and the files that SQLite keeps beside a database while it is read."""
    result = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*"))}
    return {name: _content(path) for name, path in result.items() if not name.startswith(PASSING) and not name.endswith(("-shm", "-wal"))}


def _content(path: Path) -> str:
    if path.is_symlink():
        return f"link to {path.readlink()}"
    if not path.is_file():
        return f"{path.stat().st_mode:o}"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def faults(row: Attack, end: Ending, before: State, after: State) -> Iterator[str]:
    """Everything in which a try did not end as it must. ``before`` and ``after`` are states of the ground, of which the folder is
    ``here``."""
    if end.code is None:
        yield "it did not end in time"
        return
    if end.code != row.code:
        yield f"it ended with {end.code} instead of {row.code}"
    messages = end.stdout + "\n" + end.stderr
    if "Traceback" in messages:
        yield "it printed a traceback"
    if odd := _CONTROL.search(messages):
        yield f"it printed the control character {odd[0]!r}"
    if (result := _COMMAND.search(messages)):
        yield f"it printed a workflow command: {messages[result.start():][:60]!r}"
    yield from _line_faults(row, end)
    yield from (f"it touched {path}, outside its folder" for path in end.outside)
    changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    allowed = [f"here/{pattern}" for pattern in row.changes]
    yield from (f"it changed {path}" for path in sorted(changed) if not any(fnmatchcase(path, pattern) for pattern in allowed))


def _line_faults(row: Attack, end: Ending) -> Iterator[str]:
    """What is wrong with the line that says what was wrong."""
    lines = end.stderr.splitlines()
    ours = [line for line in lines if line.startswith("cachemark: ")]
    if row.slug:
        if len(ours) != 1 or lines[-2:] != [ours[0], f"  [{row.slug}; see docs/errors.md#{row.slug}]"]:
            yield f"it did not end with one line and the slug {row.slug}"
            return
        line = ours[0]
    elif row.code in QUIET or row.code != 2:
        line = f"{end.stdout}\n{end.stderr}"
        if ours:
            yield f"it said: {ours[0][:200]}"
    else:
        line = lines[-1] if lines else ""
        if not line.startswith("Error: "):
            yield "it did not end with one line of a usage error"
            return
    if line.startswith(("cachemark: ", "Error: ")) and len(line) > LONGEST:
        yield f"its line has {len(line)} characters"
    yield from (f"its line does not say {words!r}" for words in row.says if words not in line)
