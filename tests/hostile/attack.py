"""One attack: arguments of the command line, the required result, and the files that may change; and its possible faults."""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

LONGEST = 2_000  # characters of the line with the problem
PASSING = ("leases", "tmp/torchinductor")
PWNED = "::error::pwned"  # to be put into names and notes: a workflow command at the start of a line
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_COMMAND = re.compile(r"^\s*(::|##\[)", re.MULTILINE)


@dataclass(frozen=True)
class Attack:
    """One row. ``arguments`` follow ``cachemark``; the command runs in a furnished folder that ``prepare`` may change.

    ``slug``: of the error; empty for a usage error or a verdict. ``says``: what its line, or the output of a verdict, must contain.
    ``changes``: patterns of the files in the folder that may change.
    """

    name: str
    arguments: tuple[str, ...]
    slug: str = ""
    says: tuple[str, ...] = ()
    code: int = 2
    prepare: Callable[[Path], object] = lambda folder: None
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ending:
    """The end of a command: exit code (None: it was killed because it hung), output, and changes outside its folder."""

    code: int | None
    stdout: str
    stderr: str
    outside: tuple[str, ...] = ()


def state_of(folder: Path) -> Mapping[str, str]:
    """Return every path below a folder with a digest of its content, without leases, caches and SQLite's own logs."""
    names = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*"))}
    return {name: _content(path) for name, path in names.items() if not name.startswith(PASSING) and not name.endswith(("-shm", "-wal"))}


def _content(path: Path) -> str:
    if path.is_symlink():
        return f"link to {path.readlink()}"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else f"{path.stat().st_mode:o}"


def faults(row: Attack, end: Ending, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """Yield every fault of an end. ``before`` and ``after``: states of the ground, whose folder is ``here``."""
    if end.code != row.code:
        yield f"it ended with {end.code} instead of {row.code}"
    output, lines = end.stdout + "\n" + end.stderr, end.stderr.splitlines()
    yield from (f"it printed {match[0]!r}" for match in (_CONTROL.search(output), _COMMAND.search(output)) if match)
    if "Traceback" in output:
        yield "it printed a traceback"
    ours = [line for line in lines if line.startswith("cachemark: ")]
    answer = lines[-1] if lines else ""
    if row.slug:
        answer = ours[0] if ours else ""
        if len(ours) != 1 or lines[-1] != f"  [{row.slug}; see docs/errors.md#{row.slug}]":
            yield f"it did not end with one line and the slug {row.slug}"
    elif row.code != 2:
        answer = output
        if ours:
            yield f"it printed the error {ours[0][:200]}"
    elif not answer.startswith("Error: "):
        yield "it did not end with one line of a usage error"
    if row.code == 2 and len(answer) > LONGEST:
        yield f"its line has {len(answer)} characters"
    yield from (f"it does not contain {words!r}" for words in row.says if words not in answer)
    yield from (f"it touched {path}, outside its folder" for path in end.outside)
    for path in sorted({*before, *after}):
        if before.get(path) != after.get(path) and not any(fnmatchcase(path, f"here/{pattern}") for pattern in row.changes):
            yield f"it changed {path}"
