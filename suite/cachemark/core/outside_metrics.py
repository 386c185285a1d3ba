"""Plug-in metrics as a case stores them: a complete definition under a name that ends in its digest.

A store is read without its plug-ins. The evaluation of a case therefore contains title, unit, direction, kind and range of each plug-in
metric and the digest of its code, under a name such as ``contrast_3f6a90c2d1b7``: the metric's name and the digest of that definition. An
edited metric gets another name, so values of one name always have one definition.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections.abc import Mapping
from typing import Any

from .units import FAMILIES, METRICS, OUTSIDE, Metric, set_title

KEY = "metrics"  # of a case's evaluation
FAULTS = "metric_faults"  # of an outcome's facts: by name what was wrong with a metric that has no values, ``fault`` and ``said``
DIGITS = 12
KINDS = {"image": ("fidelity", "quality"), "set": ("quality",), "case": ("speed", "work", "memory")}  # by what has a value
ENDS = ("lower", "higher")
NAME, PLAIN = re.compile(r"[a-z][a-z0-9_]{0,39}"), re.compile(r"[A-Za-z0-9 .,()/+-]{0,40}")
LONGEST = 400  # letters of a meaning
FIELDS = ("title", "unit", "better", "kind", "per", "meaning", "within", "deterministic", "code")
OF_SET = "set"  # one more field, of metrics of whole sets: the preset and the number of images, ``scene_2k``
SET_NAME = re.compile(r"([a-z0-9]{1,40}_[1-9][0-9]{0,9}k?)?")


def fault_of(name: str, definition: Mapping[str, Any]) -> str:
    """Return the reason why a definition is invalid, to follow the metric's name, or an empty text."""
    if not NAME.fullmatch(name):
        return "has a name that is not at most 40 small letters, digits and underscores, the first a letter"
    if name in METRICS or name.split("_")[0] in FAMILIES:
        return "has the name of a metric of cachemark itself, or starts with one"
    fields = (*FIELDS, OF_SET) if definition.get("per") == "set" else FIELDS
    if set(definition) != set(fields):
        return f"does not state just {', '.join(fields)}"
    if not isinstance(of_set := definition.get(OF_SET, ""), str) or not SET_NAME.fullmatch(of_set):
        return "is of a set of images that is not named by a preset and a number"
    kinds = KINDS.get(str(definition["per"]), ())
    if definition["kind"] not in kinds:
        return f"is of kind {definition['kind']!r:.40}, not of {' or '.join(kinds)}, for each {definition['per']!r:.40}"
    if definition["better"] not in ENDS:
        return f"is better {definition['better']!r:.40}, not {' or '.join(ENDS)}"
    texts = [definition[name] for name in ("title", "unit", "code")]
    if not texts[0] or not all(isinstance(text, str) and PLAIN.fullmatch(text) for text in texts):
        return "has a title or a unit that is not at most 40 letters, digits, blanks and .,()/+-"
    meaning = definition["meaning"]
    if not isinstance(meaning, str) or not 0 < len(meaning) <= LONGEST or not meaning.isprintable():
        return f"has no docstring whose first paragraph, of at most {LONGEST} letters, says what it measures"
    if type(definition["deterministic"]) is not bool or _range(definition["within"]) is None:
        return ("has a range (within) that is not two numbers, the smaller first and not too far apart, or says of its determinism neither "
                "true nor false")
    return ""


def full_name(name: str, definition: Mapping[str, Any]) -> str:
    """Return the name of a metric with the digest of its definition."""
    text = json.dumps([name, dict(definition)], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:DIGITS]}"


def know(evaluation: object) -> None:
    """Register the plug-in metrics that a case defines, in this process.

    Invalid definitions, and those whose digest does not match, are ignored: a damaged store has no such metric."""
    definitions = evaluation.get(KEY) if isinstance(evaluation, Mapping) else None
    for name, definition in definitions.items() if isinstance(definitions, Mapping) else ():
        if name in OUTSIDE or not isinstance(name, str) or not isinstance(definition, Mapping):
            continue
        base = name[: -DIGITS - 1]
        if not fault_of(base, definition) and name == full_name(base, definition):
            declared = {field: definition[field] for field in FIELDS if field not in ("within", "code")}
            if of_set := definition.get(OF_SET):
                declared["title"] = set_title(str(declared["title"]), str(of_set))
            OUTSIDE[name] = Metric(name, **declared, within=_range(definition["within"]) or (-math.inf, math.inf))


def _range(within: object) -> tuple[float, float] | None:
    """Return the range of a definition, in which None means no end; None if it is invalid."""
    if not isinstance(within, list | tuple) or len(within) != 2:
        return None
    if not all(end is None or (type(end) in (int, float) and abs(end) <= sys.float_info.max) for end in within):
        return None
    low, high = (infinite if end is None else float(end) for end, infinite in zip(within, (-math.inf, math.inf), strict=True))
    if None not in within and not math.isfinite(2 * (high - low)):
        return None  # differences reach as far to both sides, and no interval could be computed
    return (low, high) if low < high else None
