"""Atomic writing of files, and valid file names."""

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
    """Yield a temporary file that replaces ``path`` when the block ends without an error.

    After a power failure the file is the old or the new one, complete. Creates the folder. Raises OSError."""
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
