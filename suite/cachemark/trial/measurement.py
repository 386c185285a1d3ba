"""The result of a case as its process measured it, its message, and the outcome built from it."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, Any, NoReturn

from ..core.files import NAME
from ..core.result import Outcome, Status, check_values
from ..core.spec import finite
from ..machine.monitor import Disturbance
from ..plans.expand import Planned

LOG, LINE = 20_000, 2_000  # characters of a log and of each of its lines
NOTE, NOTES = 1_000, 20  # characters of a footnote or a source, and the number of footnotes
HEAD = struct.Struct(">4sII")  # of a message: the mark, then length and CRC-32 of its JSON, to tell it from other bytes in the pipe
MARK = b"\x93cm\n"
LONGEST = 1 << 30  # bytes of a message, which includes the artifacts of a case


@dataclass(frozen=True)
class Measurement:
    """Everything that the process of a case reports; fields as in :class:`~cachemark.core.result.Outcome`.

    ``artifacts`` are the contents of files by name. Raises ValueError for an ok measurement without finite samples or a judgement, or
    another one without a log."""

    status: Status
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    judgement: str = ""
    log: str = ""
    seconds: float = 0.0
    output_hash: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_values(self.status, self.samples, self.judgement, self.log)

    def to_json(self) -> dict[str, Any]:
        """Return the measurement as JSON; a number in its facts that JSON cannot express becomes null."""
        return {
            "status": str(self.status), "samples": {name: list(values) for name, values in self.samples.items()},
            "judgement": self.judgement, "log": self.log, "seconds": self.seconds, "output_hash": self.output_hash,
            "facts": finite(self.facts),
            "artifacts": {name: base64.b64encode(content).decode() for name, content in self.artifacts.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measurement:
        """Invert :meth:`to_json`. Raises ValueError, KeyError or TypeError for anything else."""
        artifacts = {name: base64.b64decode(text, validate=True) for name, text in dict(data["artifacts"]).items()}
        if not all(re.fullmatch(NAME, name) for name in artifacts):
            raise ValueError("an artifact outside its folder")
        return cls(Status(data["status"]), data["samples"], data["judgement"], data["log"], float(data["seconds"]), data["output_hash"],
                   dict(data["facts"]), artifacts)


def failed(status: Status, log: str, facts: Mapping[str, Any] | None = None) -> Measurement:
    """Return a measurement without values."""
    return Measurement(status, log=log, facts=facts or {})


def outcome_of(
    planned: Planned, measured: Measurement, place: Mapping[str, Any] | None = None, disturbance: Disturbance | None = None,
) -> Outcome:
    """Return the outcome of a measured case with its result key and the facts of the ``place`` it ran in.

    A ``disturbance`` by the device invalidates the values."""
    facts = {**measured.facts, **(place or {}), **({"result_parts": dict(planned.result_parts)} if planned.result_parts else {})}
    if disturbance is not None:
        log = bounded_log(f"{disturbance.reason}\n{measured.log}".strip())
        return Outcome(planned.case, disturbance.status, log=log, seconds=measured.seconds, result_key=planned.result_key, facts=facts)
    return Outcome(planned.case, measured.status, measured.samples, measured.judgement, bounded_log(measured.log), measured.seconds,
                   planned.result_key, measured.output_hash, facts)


# -- messages of a worker ------------------------------------------------------------------------------------------------
class BadMessage(ValueError):
    """Malformed message in the pipe."""


def framed(message: Mapping[str, Any]) -> bytes:
    """Return a message as bytes. Raises ValueError or TypeError if it is not JSON."""
    body = json.dumps(message, allow_nan=False).encode()
    if len(body) > LONGEST:
        raise ValueError(f"a message of {len(body)} bytes; {LONGEST} are the most")
    return HEAD.pack(MARK, len(body), zlib.crc32(body)) + body


def read_message(stream: IO[bytes]) -> dict[str, Any] | None:
    """Return the next message, or None if the pipe was closed. Raises BadMessage."""
    head = stream.read(HEAD.size)
    if not head.startswith(MARK[: len(head)]):
        raise BadMessage(f"bytes without a mark: {head[:12]!r}")
    if len(head) < HEAD.size:
        return None
    _, length, checksum = HEAD.unpack(head)
    if length > LONGEST:
        raise BadMessage(f"a length of {length} bytes")
    body = stream.read(length)
    if len(body) < length:
        return None
    try:
        message = json.loads(body, parse_constant=_reject)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"no JSON: {str(error)[:100]}") from None
    if zlib.crc32(body) != checksum or not isinstance(message, dict):
        raise BadMessage("a wrong checksum, or no object")
    return message


def _reject(constant: str) -> NoReturn:
    raise ValueError(f"{constant} in place of a number")


# -- limits on the length of texts from other people's code --------------------------------------------------------------
def bounded_log(text: str) -> str:
    """Shorten long lines and the middle of a long log, and note what was omitted."""
    text = _without_middle(text, 2 * LOG)  # before it is split into lines: there may be millions
    return _without_middle("\n".join(_beginning(line, LINE) for line in text.split("\n")), LOG)


def bounded_text(value: Any) -> str:
    """Return a method's text, shortened; for another type, a note of it."""
    return _beginning(value if isinstance(value, str) else f"(of type {type(value).__name__}, not a text)", NOTE)


def bounded_notes(value: str | Iterable[str]) -> list[str]:
    """Return a method's first footnotes, shortened; a single text counts as one."""
    notes = [value] if isinstance(value, str) else value
    return [bounded_text(note) for note in islice(notes, NOTES)]


def _without_middle(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}\n… {len(text) - most} letters are left out …\n{text[-(most // 2) :]}"


def _beginning(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more letters)"
