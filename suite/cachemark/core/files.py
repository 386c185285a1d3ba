"""Atomic writing of files, and valid file names."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import CachemarkError, Infrastructure

PACKAGE = Path(__file__).resolve().parents[1]
HEAD = 4096  # bytes that identify the type of a file
OUTPUTS = {  # first bytes of files that commands write to a path from the user
    "report": rb"<!DOCTYPE html>.*<meta name=\"generator\" content=\"cachemark",
    "list of reports": rb"\{(\}|\n \"\d+\": \{\n  \"run\": )",
    "CSV table": rb"run,commit,machine_class,",
    "Markdown table": rb"### .*\n\n\| method \|",
    "Markdown comment": rb"<!-- cachemark ",
    "LaTeX table": rb"% Needs \\usepackage\{booktabs\}",
    "JUnit file": rb"<\?xml [^>]*>\s*<testsuites",
    "figure": rb"<svg ",
    "PDF figure": rb"%PDF",
    "plan": rb"# Written by cachemark measure",
    "PNG image": rb"\x89PNG",
    "sample batch": rb"PK\x03\x04.{22}\x0d\x00..manifest\.json.{0,99}\{\"tool\": \"cachemark\"",
    "paths of images": rb"\{\n\"[^\n]*\": \"/",
    "baseline": rb"\{\n \"code\": \{",
    "calibration": rb"\{\"facts\":",
}
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"  # of things that are stored as files: no name leaves its folder or looks like an option


@contextmanager
def replacing(path: Path, name: str = "") -> Iterator[Path]:
    """Yield a temporary file, of a random ``name`` if none is given, that replaces ``path`` when the block ends without an error.

    After a power failure the file is the old or the new one, complete. Creates the folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{name or f'{secrets.token_hex(8)}.part'}")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def writing(path: str | Path, remedy: str = "Name another file.") -> Iterator[None]:
    """Raise Infrastructure if the file at ``path`` cannot be written."""
    try:
        yield
    except OSError as error:
        raise Infrastructure(f"{path} cannot be written: {error.strerror}.", remedy=remedy) from error


@contextmanager
def output(path: Path | str, kind: str) -> Iterator[Path]:
    """Yield a temporary file that replaces ``path``: a new file, or an older output of this ``kind``.

    Raises CachemarkError for any other file, so that no command destroys a store, a plan or weights, and OSError."""
    path = Path(path)
    refuse_other(path, kind)
    with replacing(Path(os.path.realpath(path))) as part:
        yield part


def refuse_other(path: Path, kind: str) -> None:
    """Raise CachemarkError if ``path`` has other content than an output of this ``kind`` of OUTPUTS."""
    if not os.path.lexists(path):
        return
    if path.exists() and not path.is_file():
        raise CachemarkError(f"{path} is not an ordinary file.", remedy="Name a file; tables are printed if no path is given.")
    if path.exists() and path.stat().st_size and not is_output(path, kind):
        raise CachemarkError(f"{path} exists and is not a {kind} of cachemark.", remedy="Use another name, or delete the file first.")


def is_output(path: Path, kind: str) -> bool:
    """Return whether a file starts as an output of this ``kind`` of OUTPUTS. Raises OSError."""
    return re.match(OUTPUTS[kind], head_of(path), re.DOTALL) is not None


def umask() -> int:
    """Return the mode that new files lack, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def head_of(path: Path) -> bytes:
    """Return the first bytes of a file, which identify its type. Raises OSError."""
    with path.open("rb") as file:
        return file.read(HEAD)


def is_readable(path: Path | str) -> bool:
    """Return whether a path is an ordinary readable file. Never raises.

    Devices and pipes, which could be read forever, are not."""
    try:
        return Path(path).is_file() and os.access(path, os.R_OK)
    except (OSError, ValueError):
        return False


def read_json(path: Path) -> Any:
    """Read a JSON file that another program may have written. Raises ValueError for anything else.

    That includes pipes and devices, bytes that are not text, huge numbers and too deep nesting."""
    if not is_readable(path):
        raise ValueError("not an ordinary file that can be read")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError) as error:
        raise ValueError(str(error)) from error


def cache_folder() -> Path:
    """Return the folder for files that can be computed again; it may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cachemark"
