"""Outcomes as a text file, for baselines.

The text is JSON with sorted keys, one line per list of numbers, and outcomes in order of label and key, so that two files of a plan can be
compared line by line. Speed samples are rounded to nine significant digits, far below the resolution of a clock; everything else is exact.
Artifacts are named, not included.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import GenericAlias
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, PositiveInt, create_model
from pydantic_core import from_json

from ..core.edited import REMEDY, parsed, validating
from ..core.errors import BadBaseline, CachemarkError
from ..core.result import Environment, Outcome, Status
from ..core.spec import FORCED_SAMPLES, RANGES, REFERENCE_SAMPLES, Case, finite
from ..core.units import is_metric, metric
from ..core.version import __version__
from ..core.wording import shown

FORMAT = "cachemark-exchange"
FORMAT_VERSION = 1
COUNTED = ("speed", "energy", "memory", "work")  # kinds of metrics that are never negative

NUMBERS = ("batch", REFERENCE_SAMPLES, FORCED_SAMPLES)  # of the evaluation of a case
LEAST, MOST = {"batch": 1, "samples": 0, "warmup": 0, "repeats": 0}, 10**12  # of fields of a case


# -- expected values, because people edit these files ----------------------------------------------------------------------
def _moment(text: str) -> str:
    if not 1970 <= datetime.fromisoformat(text).year < 9999:
        raise ValueError("a date from 1970 on is expected")
    return text


Table = dict[str, Any]
Count = Annotated[int, Field(ge=0, le=MOST)]
Moment = Annotated[str, AfterValidator(_moment)]
_CONFIG = ConfigDict(strict=True, allow_inf_nan=False)
_META = create_model("_META", __config__=_CONFIG, plan=(str, ""), name=(str, ""), reason=(str, ""), saved=(Moment, ""),
                     expires=(Moment, ""), run=(Count, 0), replaces=(Table, None), series=(Annotated[Count, Field(ge=1)], 1))
_OUTCOME = create_model(
    "_OUTCOME", __config__=_CONFIG, case=(Case, ...), status=(Status, ...), judgement=(str, ...), log=(str, ...), result_key=(str, ...),
    samples=(dict[str, Annotated[list[float], Field(min_length=1)]], ...), seconds=(Annotated[float, Field(ge=0, le=1e9)], ...),
    output_hash=(str, ...), facts=(Table, ...), artifacts=(dict[str, str], ...),
)
_OUTCOMES: Any = GenericAlias(list, (_OUTCOME,))
_FILE = create_model("_FILE", __config__=_CONFIG, outcomes=(_OUTCOMES, ...), environment=(Environment, ...),
                     code=(Table, ...), meta=(_META, ...), metrics=(dict[str, PositiveInt], ...))


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
    with validating(source, BadBaseline):
        data = _parsed(text)
    _check_format(data, source)
    with validating(source, BadBaseline):
        _FILE.model_validate_json(text)
    outcomes = tuple(_outcome(item, f"outcomes.{place}", source) for place, item in enumerate(data["outcomes"]))
    results = Counter(outcome.case.key for outcome in outcomes)
    if twice := next((outcome.case for outcome in outcomes if results[outcome.case.key] > 1), None):
        raise BadBaseline(f"{source} has two results of one case, {twice.full_title}.", remedy=REMEDY)
    environment, code, meta = Environment.from_json(data["environment"]), data["code"], data["meta"]
    return Exchange(outcomes, environment, code, meta, dict(data["metrics"]), source, hashlib.sha256(text.encode()).hexdigest())


def _parsed(text: str) -> Any:
    try:
        return parsed(text)
    except (ValueError, RecursionError):
        from_json(text, allow_inf_nan=False)  # its message has the line
        raise


def _check_format(data: Any, source: str) -> None:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BadBaseline(f"{source} is not an exchange file of cachemark.", remedy="Make one with: cachemark baseline save")
    version = data.get("version")
    if type(version) is not int or version < 1:
        raise BadBaseline(f"{source} has format {shown(version)}, which is not a version.", remedy=REMEDY)
    if version > FORMAT_VERSION:
        raise BadBaseline(f"{source} has format {shown(version)}; cachemark {__version__} reads formats up to {FORMAT_VERSION}.",
                          remedy="Upgrade cachemark, or save the baseline again with this version.")


def _outcome(item: Mapping[str, Any], where: str, source: str) -> Outcome:
    case = item["case"]
    counts: list[tuple[str, Any, tuple[float, float]]] = [("grid", side, (0, MOST)) for side in case["grid"]]  # 0: a micro-benchmark
    counts += [(name, case.get(name, least), (least, MOST)) for name, least in LEAST.items()]
    counts += [(f"evaluation.{name}", case["evaluation"][name], (1, MOST)) for name in NUMBERS if name in case["evaluation"]]
    numbers = [(f"sampling.{name}", case["sampling"][name], ends) for name, ends in RANGES.items() if name in case["sampling"]]
    for kinds, checked in (((int,), counts), ((int, float), numbers)):
        for name, number, (low, high) in checked:
            if type(number) not in kinds or not low <= number <= high:
                raise BadBaseline(f"{source} has {where}.case.{name} = {shown(number)}; {low} to {high} are possible.", remedy=REMEDY)
    for name, values in item["samples"].items():
        if is_metric(name) and metric(name).kind in COUNTED and min(values) < 0:
            raise BadBaseline(f"{source} has {where}.samples.{name} = {shown(values)}: a value is negative.", remedy=REMEDY)
    try:
        samples = {name: [float(v) for v in values] for name, values in item["samples"].items()}
        return Outcome.from_json({**item, "samples": samples})
    except (ValueError, TypeError, OverflowError, CachemarkError) as error:
        raise BadBaseline(f"{source} cannot be used at {where}: {error}.", remedy=REMEDY) from error


def rounded(name: str, values: Sequence[float]) -> list[float]:
    """Return values with nine significant digits for speed, and unchanged for other metrics."""
    return [float(f"{v:.9g}") for v in values] if metric(name).relative else list(values)


def _json(value: Any, indent: str = "") -> str:
    """Return JSON, indented by one space per level, with lists of plain values on one line."""
    deeper = indent + " "
    if isinstance(value, Mapping) and value:
        lines = [f"{deeper}{json.dumps(str(k))}: {_json(value[k], deeper)}" for k in sorted(value, key=str)]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(v, (Mapping, list)) for v in value):
        return "[\n" + ",\n".join(deeper + _json(v, deeper) for v in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)
