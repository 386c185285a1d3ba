"""Files that people edit or other programs write: an error is one line with file and key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import CachemarkError
from .wording import shown

LARGEST = 200_000_000  # bytes of a file
LONGEST = 4_000  # characters of a text on one line
LFS = b"version https://git-lfs.github.com/"
_FOREIGN = (  # first bytes of a file, the problem and its fix
    (LFS, "is a pointer of Git LFS, not the file itself", "Run: git lfs pull"),
    (b"\xef\xbb\xbf", "starts with a byte order mark", "Save it as UTF-8 without one."),
    (b"\xff\xfe", "is UTF-16", "Save it as UTF-8."),
    (b"\xfe\xff", "is UTF-16", "Save it as UTF-8."),
)
REMEDY = "Fix that value, or take the file from version control."


def parsed(text: str) -> Any:
    """Return parsed JSON. Raises ValueError for a key that an object has twice, of which other readers take one silently."""
    return json.loads(text, object_pairs_hook=_once, parse_constant=_refuse)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r:.80} is there twice")
    return table


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number of JSON")


@contextmanager
def validating(source: str, error: type[CachemarkError], remedy: str = REMEDY) -> Iterator[None]:
    """Raise ``error`` for the first fault that pydantic finds inside the block in the file ``source``."""
    try:
        yield
    except ValueError as invalid:
        faults = getattr(invalid, "errors", None)  # a ValidationError; this package does not import pydantic
        fault = faults()[0] if faults else {"type": "", "loc": (), "msg": str(invalid)}
        key = ".".join(map(str, fault["loc"]))
        if fault["type"] == "missing":
            problem = f"lacks {key}"
        else:
            problem = f"has {key} = {shown(fault['input'])}: {fault['msg']}" if key else f"cannot be read: {fault['msg']}"
        raise error(f"{source} {problem}.", remedy=remedy) from invalid


def text_of(path: Path, error: type[CachemarkError]) -> str:
    """Read a text file. Raises ``error``, also for anything but an ordinary file."""
    remedy = "Use the path of an ordinary file, or take it from version control."
    try:
        if not path.is_file():
            path.stat()
            raise error(f"{path} cannot be read: it is not an ordinary file.", remedy=remedy)
        if path.stat().st_size > LARGEST:
            raise error(f"{path} has more than {LARGEST} bytes.", remedy=remedy)
        data = path.read_bytes()
    except OSError as fault:
        raise error(f"{path} cannot be read: {fault.strerror}.", remedy=remedy) from fault
    for start, problem, fix in _FOREIGN:
        if data.startswith(start):
            raise error(f"{path} {problem}.", remedy=fix)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise error(f"{path} is not text.", remedy=remedy) from fault
