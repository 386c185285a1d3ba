"""Outcomes as a text file: baselines, and results that move from one machine to another.

The text is JSON with sorted keys, one line per list of numbers, outcomes in order of label and key, so that two files of one
plan can be read side by side. Raw speed samples are rounded to nine significant digits, far below what a clock can tell;
everything else is exact. Artifacts are named, not carried.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import BadBaseline, CachemarkError
from ..core.result import Environment, Outcome
from ..core.units import metric
from ..core.version import __version__
from .schema import finite

FORMAT = "cachemark-exchange"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Exchange:
    """The content of an exchange file. ``metrics`` maps each metric's name to the version of its definition at that time.

    ``source`` names the file for people, ``digest`` is the SHA-256 of its text.
    """

    outcomes: tuple[Outcome, ...]
    environment: Environment
    code: Mapping[str, Any]
    meta: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, int] = field(default_factory=dict)
    source: str = ""
    digest: str = ""


def dump(outcomes: Iterable[Outcome], environment: Environment, code: Mapping[str, Any], **meta: Any) -> str:
    """The text of an exchange file. ``meta`` is free: plan, name, reason. NaN in facts becomes null."""
    ordered = sorted(outcomes, key=lambda o: (o.case.label, o.case.key))
    data = {
        "format": FORMAT, "version": FORMAT_VERSION, "meta": meta, "environment": environment.to_json(), "code": dict(code),
        "metrics": {name: metric(name).version for outcome in ordered for name in outcome.samples},
        "outcomes": [o.to_json() | {"samples": {name: rounded(name, v) for name, v in o.samples.items()}} for o in ordered],
    }
    return _text(finite(data)) + "\n"


def load(text: str, source: str) -> Exchange:
    """Inverse of :func:`dump`. Anything but a whole file of a known format is :class:`BadBaseline`, naming ``source``."""
    data = _parse(text, source)
    found = []
    try:
        for item in data["outcomes"]:
            samples = {name: [float(v) for v in values] for name, values in item["samples"].items()}
            found.append(Outcome.from_json({**item, "samples": samples}))
        environment = Environment.from_json(data["environment"])
        metrics = {str(name): int(version) for name, version in data["metrics"].items()}
        code, meta = dict(data["code"]), dict(data["meta"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, CachemarkError) as error:
        said = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise BadBaseline(f"{source} cannot be used, at outcome {len(found) + 1} or after the last one: {said}.",
                          remedy=f"It was written by another version than {__version__}, or edited. Save it again.") from error
    return Exchange(tuple(found), environment, code, meta, metrics, source, hashlib.sha256(text.encode()).hexdigest())


def rounded(name: str, values: Sequence[float]) -> list[float]:
    """The values as a file holds them: nine significant digits for speed, all of them for everything else."""
    return [float(f"{v:.9g}") for v in values] if metric(name).kind == "speed" else list(values)


def _text(value: Any, indent: str = "") -> str:
    """JSON, indented by one space a level, with a list of plain values on one line."""
    deeper = indent + " "
    if isinstance(value, Mapping) and value:
        lines = [f"{deeper}{json.dumps(str(k))}: {_text(value[k], deeper)}" for k in sorted(value, key=str)]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(v, (Mapping, list)) for v in value):
        return "[\n" + ",\n".join(deeper + _text(v, deeper) for v in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)


def _parse(text: str, source: str) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    try:
        data = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        cut = not text[error.pos:].strip() or "Unterminated" in error.msg
        what = "is cut off" if cut else "is not JSON"
        raise BadBaseline(f"{source} {what}: {error.msg} at line {error.lineno}, column {error.colno}.",
                          remedy="Copy the whole file again, or take it from version control.") from error
    except (ValueError, RecursionError) as error:
        raise BadBaseline(f"{source} is not JSON that we write: {error}.", remedy="Take the file from version control.") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BadBaseline(f"{source} is not an exchange file of cachemark.", remedy="Make one with: cachemark baseline save")
    version = data.get("version")
    if not isinstance(version, int) or version < 1:
        raise BadBaseline(f"{source} has format {version!r}, which is not a version.", remedy="Take the file from version control.")
    if version > FORMAT_VERSION:
        raise BadBaseline(f"{source} has format {version}; cachemark {__version__} reads formats up to {FORMAT_VERSION}.",
                          remedy="Upgrade cachemark, or save the baseline again with this version.")
    return data
