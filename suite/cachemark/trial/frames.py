"""Messages from a worker to its parent: JSON objects with length and checksum.

This distinguishes messages from anything else written into the pipe, and detects truncation.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import IO, Any, NoReturn

HEAD = struct.Struct(">4sII")  # the mark, then length and CRC-32 of what follows
MARK = b"\x93cm\n"
LONGEST = 1 << 30  # bytes of a message: artifacts of a case are among them


class NoMessage(ValueError):
    """Malformed message in the pipe."""


def framed(message: Mapping[str, Any]) -> bytes:
    """Return a message as bytes; ValueError or TypeError if it is not JSON."""
    body = json.dumps(message, allow_nan=False).encode()
    if len(body) > LONGEST:
        raise ValueError(f"a message of {len(body)} bytes; {LONGEST} are the most")
    return HEAD.pack(MARK, len(body), zlib.crc32(body)) + body


def read(stream: IO[bytes]) -> dict[str, Any] | None:
    """Return the next message, or None if the pipe was closed. Raises NoMessage."""
    head = stream.read(HEAD.size)
    if not head.startswith(MARK[: len(head)]):
        raise NoMessage(f"bytes without a mark: {head[:12]!r}")
    if len(head) < HEAD.size:
        return None
    _, length, checksum = HEAD.unpack(head)
    if length > LONGEST:
        raise NoMessage(f"a length of {length} bytes")
    body = stream.read(length)
    if len(body) < length:
        return None
    if zlib.crc32(body) != checksum:
        raise NoMessage("a wrong checksum")
    return _object(body)


def _object(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise NoMessage(f"no JSON: {str(error)[:100]}") from None
    if not isinstance(message, dict):
        raise NoMessage(f"a {type(message).__name__} in place of an object")
    return message


def _refused(constant: str) -> NoReturn:
    raise NoMessage(f"{constant} in place of a number")
