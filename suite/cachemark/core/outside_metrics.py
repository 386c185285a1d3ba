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
from collections.abc import Iterable, Mapping
from typing import Any

from .units import FAMILIES, METRICS, OUTSIDE, Metric, set_title

KEY = "metrics"  # of a case's evaluation
DIGITS = 12
KINDS = {"image": ("fidelity", "quality"), "set": ("quality",), "case": ("speed", "work", "memory")}  # by image, set or case
ENDS = ("lower", "higher")
NAME, PLAIN = re.compile(r"[a-z][a-z0-9_]{0,39}"), re.compile(r"[A-Za-z0-9 .,()/+-]{0,40}")
LONGEST = 400  # letters of a meaning
OF_SET = "set"  # a field of metrics of whole sets: the preset and the number of images, ``scene_2k``


def fault_of(name: str, definition: Mapping[str, Any]) -> str:
    """Return why a plug-in's definition is invalid, as text after the metric's name; empty if it is valid."""
    kind, kinds, meaning = definition["kind"], KINDS[definition["per"]], definition["meaning"]
    rules = {
        "has a name that is not at most 40 small letters, digits and underscores, the first a letter": bool(NAME.fullmatch(name)),
        "has the name of a metric of cachemark itself, or starts with one": name not in METRICS and name.split("_")[0] not in FAMILIES,
        f"is of kind {kind!r:.40}, not of {' or '.join(kinds)}, for each {definition['per']!r}": kind in kinds,
        f"has better = {definition['better']!r:.40}, not 'lower' or 'higher'; where neither is better, measure the distance from the full "
        "cache's image, which is better lower": definition["better"] in ENDS,
        "has a title or a unit that is not at most 40 letters, digits, blanks and .,()/+-":
            bool(definition["title"] and PLAIN.fullmatch(definition["title"]) and PLAIN.fullmatch(definition["unit"])),
        f"has no docstring whose first paragraph, of at most {LONGEST} letters, states what it measures":
            0 < len(meaning) <= LONGEST and meaning.isprintable(),
        "has a range (within) that is not two numbers, the smaller first and not too far apart": _is_range(*definition["within"]),
    }
    return next((fault for fault, valid in rules.items() if not valid), "")


def full_name(name: str, definition: Mapping[str, Any]) -> str:
    """Return the name of a metric with the digest of its definition."""
    text = json.dumps([name, dict(definition)], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:DIGITS]}"


def stored_names(name: str, stored: Iterable[str]) -> list[str]:
    """Return the stored names of the plug-in's metrics with this name, which end in their digests."""
    return [full for full in stored if full in OUTSIDE and full[: -DIGITS - 1] == name]


def know(evaluation: Mapping[str, Any]) -> None:
    """Register the plug-in metrics that a case defines, in this process.

    A definition that does not match the digest in its name is ignored. Raises ValueError for one that cannot be used."""
    try:
        for name, definition in evaluation.get(KEY, {}).items():
            if name not in OUTSIDE and "code" in definition and name == full_name(name[: -DIGITS - 1], definition):
                declared = {field: value for field, value in definition.items() if field not in ("within", "code", OF_SET)}
                if of_set := definition.get(OF_SET):
                    declared["title"] = set_title(declared["title"], of_set)
                OUTSIDE[name] = Metric(name, **declared, within=_ends(*definition["within"]))
    except (AttributeError, TypeError, KeyError) as error:
        raise ValueError(f"the evaluation has {KEY} that define no metrics") from error


def _ends(low: float | None, high: float | None) -> tuple[float, float]:
    """Return the range of a definition; None means no end."""
    return -math.inf if low is None else float(low), math.inf if high is None else float(high)


def _is_range(low: float | None, high: float | None) -> bool:
    """Return whether these are ends of a range whose differences, in both directions, are finite too."""
    first, last = _ends(low, high)
    return first < last and (None in (low, high) or math.isfinite(2 * (last - first)))
