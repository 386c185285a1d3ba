"""Files that appear whole or not at all, and their names."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"  # of what has a file of its own: it stays in its folder and does not look like an option


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its place when the block ends without an error; after a power cut it is the old file or
    all of the new one. Makes the folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def is_readable(path: Path | str) -> bool:
    """True for the path of an ordinary file that can be opened. Devices and pipes, which could be read without end or not at all, are
    none. Never raises: a name may be too long, or hold what no name can."""
    try:
        return Path(path).is_file() and os.access(path, os.R_OK)
    except (OSError, ValueError):
        return False


def read_json(path: Path) -> Any:
    """The content of a JSON file that somebody else may have written. Raises ValueError for whatever is none: a pipe or a device, bytes
    that are no text, a number of thousands of digits, what is nested too deeply."""
    if not is_readable(path):
        raise ValueError("not an ordinary file that can be read")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError) as error:
        raise ValueError(str(error)) from error
