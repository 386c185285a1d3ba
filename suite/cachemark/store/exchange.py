"""Outcomes as a text file, for baselines.

The text is JSON with sorted keys, one line per list of numbers, and outcomes in order of label and key, so that two files of a plan can be
compared line by line. Speed samples are rounded to nine significant digits, far below the resolution of a clock; everything else is exact.
Artifacts are named, not included.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from ..core.edited import MOMENT, PROSE, TABLE, EditedFile, many, maybe, number, one_of
from ..core.errors import BadBaseline, CachemarkError
from ..core.result import Environment, Outcome, Status
from ..core.spec import Case, Sampling
from ..core.units import is_metric, metric
from ..core.version import __version__
from ..core.wording import shown
from .schema import finite

FORMAT = "cachemark-exchange"
FORMAT_VERSION = 1
COUNTED = ("speed", "memory", "work")  # kinds of metrics that are never negative

# Expected values, because people edit these files.
_COUNT = number(0, 1e12, whole=True)
_BY_TYPE = {"str": PROSE, "int": _COUNT, "Mapping[str, Any]": TABLE, "tuple[int, int]": many(_COUNT, 2), "Sampling": TABLE}
META = {"plan": PROSE, "name": PROSE, "reason": PROSE, "saved": MOMENT, "expires": MOMENT, "run": _COUNT, "replaces": TABLE}
ENVIRONMENT = {"device": PROSE, "machine_class": PROSE, "fingerprint": PROSE, "facts": TABLE}
OUTCOME = {"case": TABLE, "status": one_of(*map(str, Status)), "samples": TABLE, "judgement": PROSE, "log": PROSE,
           "seconds": number(0, 1e9), "result_key": PROSE, "output_hash": PROSE, "facts": TABLE, "artifacts": TABLE}
CASE = {column.name: _BY_TYPE[str(column.type)] for column in fields(Case)}
OPTIONAL = [column.name for column in fields(Case) if column.default is not MISSING or column.default_factory is not MISSING]
SAMPLING = {column.name: {"str": PROSE, "int": number(-1, 1e12, whole=True)}.get(str(column.type), number()) for column in fields(Sampling)}
FACTS = {"kernel": maybe(PROSE, None), "images_hash": maybe(PROSE, None), "result_parts": TABLE, "limit": maybe(TABLE, None)}


@dataclass(frozen=True)
class Exchange:
    """Content of an exchange file.

    ``metrics`` maps each metric to the version of its definition. ``source`` names the file, ``digest`` is the SHA-256 of its text.
    """

    outcomes: tuple[Outcome, ...]
    environment: Environment
    code: Mapping[str, Any]
    meta: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, int] = field(default_factory=dict)
    source: str = ""
    digest: str = ""


def dump(outcomes: Iterable[Outcome], environment: Environment, code: Mapping[str, Any], **meta: Any) -> str:
    """Return the text of an exchange file. ``meta``: plan, name and reason. NaN in facts becomes null."""
    ordered = sorted(outcomes, key=lambda o: (o.case.label, o.case.key))
    data = {
        "format": FORMAT, "version": FORMAT_VERSION,
        "metrics": {name: metric(name).version for outcome in ordered for name in outcome.samples},
        "outcomes": [o.to_json() | {"samples": {name: rounded(name, v) for name, v in o.samples.items()}} for o in ordered],
        "meta": meta, "environment": environment.to_json(), "code": dict(code),
    }
    return _json(finite(data)) + "\n"


def load(text: str, source: str) -> Exchange:
    """Read the text of :func:`dump`. Raises BadBaseline, with ``source``, for any other or cut text."""
    file = EditedFile(source, BadBaseline)
    data = _parse(text, file)
    try:
        file.check(data, {"outcomes": many(TABLE), "environment": TABLE, "code": TABLE, "metrics": TABLE, "meta": TABLE})
        file.check(data["meta"], META, "meta.", optional=META)
        file.check(data["environment"], ENVIRONMENT, "environment.", optional=("facts",))
        outcomes = tuple(_outcome(item, f"outcomes.{place}.", file) for place, item in enumerate(data["outcomes"]))
        file.check(data["metrics"], dict.fromkeys(data["metrics"], number(1, whole=True)), "metrics.")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise file.wrong(f"was written by another version than {__version__}, or edited: {type(error).__name__}, {error}.") from error
    environment, code, meta = Environment.from_json(data["environment"]), data["code"], data["meta"]
    return Exchange(outcomes, environment, code, meta, dict(data["metrics"]), source, hashlib.sha256(text.encode()).hexdigest())


def _outcome(item: Mapping[str, Any], where: str, file: EditedFile) -> Outcome:
    file.check(item, OUTCOME, where)
    file.check(item["case"], CASE, f"{where}case.", optional=OPTIONAL)
    file.check(item["case"]["sampling"], SAMPLING, f"{where}case.sampling.", optional=SAMPLING)
    for name in item["samples"]:
        counted = is_metric(name) and metric(name).kind in COUNTED
        file.check(item["samples"], {name: many(number(0 if counted else -math.inf), 1)}, f"{where}samples.")
    file.check(item["artifacts"], dict.fromkeys(item["artifacts"], PROSE), f"{where}artifacts.")
    file.check(item["facts"], FACTS, f"{where}facts.", optional=FACTS)
    try:
        samples = {name: [float(v) for v in values] for name, values in item["samples"].items()}
        return Outcome.from_json({**item, "samples": samples})
    except (ValueError, CachemarkError) as error:
        raise file.wrong(f"cannot be used at {where.rstrip('.')}: {error}.") from error


def rounded(name: str, values: Sequence[float]) -> list[float]:
    """Return values with nine significant digits for speed, and unchanged for other metrics."""
    return [float(f"{v:.9g}") for v in values] if metric(name).kind == "speed" else list(values)


def _json(value: Any, indent: str = "") -> str:
    """Return JSON, indented by one space per level, with lists of plain values on one line."""
    deeper = indent + " "
    if isinstance(value, Mapping) and value:
        lines = [f"{deeper}{json.dumps(str(k))}: {_json(value[k], deeper)}" for k in sorted(value, key=str)]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(v, (Mapping, list)) for v in value):
        return "[\n" + ",\n".join(deeper + _json(v, deeper) for v in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)


def _parse(text: str, file: EditedFile) -> dict[str, Any]:
    data = file.json(text)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BadBaseline(f"{file.source} is not an exchange file of cachemark.", remedy="Make one with: cachemark baseline save")
    version = data.get("version")
    if type(version) is not int or version < 1:
        raise file.wrong(f"has format {shown(version)}, which is not a version.")
    if version > FORMAT_VERSION:
        raise BadBaseline(f"{file.source} has format {shown(version)}; cachemark {__version__} reads formats up to {FORMAT_VERSION}.",
                          remedy="Upgrade cachemark, or save the baseline again with this version.")
    return data
