"""Calibrations: facts that were measured once of certain weights for a method, and the digest by which a case names them.

Those that come with the package stand in ``data/calibration``, a file for each method; a user's own, as ``cachemark calibrate`` writes
them, in a folder. A case holds the digest and no path, so the same facts give the same case wherever they lie.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from ...core.edited import LINE, PROSE, TABLE, EditedFile, number, text_of
from ...core.errors import BadCalibration, unknown
from ...core.files import is_readable, replacing
from ...core.spec import canonical, digest

VARIABLE, FOLDER = "CACHEMARK_CALIBRATIONS", "calibrations"
COST = ("seconds", "commit", "machine")  # of a calibration: what it took, and no part of what it says
DIGITS = 16
_remembered: dict[str, dict[str, dict[str, Any]]] = {}  # of this process, by method and digest


def fingerprint(facts: Mapping[str, Any]) -> str:
    """The digest of what a calibration says; its cost is left out."""
    return digest({name: value for name, value in facts.items() if name not in COST}, DIGITS)


def folder() -> Path:
    """The folder of the user's own calibrations: what ``CACHEMARK_CALIBRATIONS`` names, else ``calibrations`` in the working directory."""
    return Path(os.environ.get(VARIABLE) or FOLDER)


def place(method: str, weights: str) -> Path:
    """The file of a user's calibration for a method and the identity of weights."""
    return folder() / f"{method}-{digest(_transformer(weights), 12)}.json"


def save(method: str, facts: Mapping[str, Any], to: Path | None = None) -> Path:
    """Write a calibration where it will be found, or to another file, and return its path."""
    path = to or place(method, str(facts["weights"]))
    with replacing(path) as part:
        part.write_text(canonical({"method": method, "facts": dict(facts)}) + "\n", encoding="utf-8")
    return path


def remember(method: str, facts: Mapping[str, Any]) -> str:
    """Let this process find facts by their digest, which is returned."""
    found = fingerprint(facts)
    _remembered.setdefault(method, {})[found] = dict(facts)
    return found


def measured(method: str, weights: str) -> dict[str, Any]:
    """The facts for a method and the identity of weights, of which the transformer's counts: the user's own before the packaged ones;
    empty where there are none. Raises BadCalibration for a file that is broken."""
    own = place(method, weights)
    if is_readable(own):
        return read(own, method)
    return packaged(method).get(_transformer(weights), {})


def named(method: str, name: str) -> tuple[str, Mapping[str, Any]]:
    """The digest and the facts of the calibration that has this digest, or that comes with the package under this name; raises
    UnknownName, the nearest name first."""
    known = _known(method)
    found = known.get(name) or next((own for own in _user(method) if own[0] == name), None)
    if found is None:
        raise unknown(f"calibration of {method}", name, [key for key in known if key != known[key][0]])
    return found


def _known(method: str) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Calibrations that this process has met or that come with the package, by digest, the latter by the name of their model too."""
    return {**_packaged_names(method), **{key: (key, facts) for key, facts in _remembered.get(method, {}).items()}}


@cache
def _packaged_names(method: str) -> dict[str, tuple[str, Mapping[str, Any]]]:
    given = [(fingerprint(facts), facts) for facts in packaged(method).values()]
    return {key: entry for entry in given for key in (entry[0], str(entry[1]["model"]))}


def _user(method: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path in sorted(folder().glob(f"{method}-*.json")):
        if is_readable(path):
            facts = read(path, method)
            yield remember(method, facts), facts


@cache
def packaged(method: str) -> dict[str, dict[str, Any]]:
    """The calibrations of a method that come with the package, by the identity of their weights or the name of a published model."""
    file = resources.files("cachemark") / "data" / "calibration" / f"{method}.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def read(path: Path, method: str) -> dict[str, Any]:
    """The facts of a file that :func:`save` wrote for this method. Raises BadCalibration."""
    edited = EditedFile(str(path), BadCalibration, "Measure it again: cachemark calibrate METHOD MODEL.")
    found = edited.json(text_of(path, BadCalibration))
    edited.check(found, {"method": LINE, "facts": TABLE})
    if found["method"] != method:
        raise edited.wrong(f"is a calibration for {found['method']}, not for {method}.")
    edited.check(found["facts"], {"weights": PROSE, "model": LINE, "samples": number(1, whole=True)}, "facts.")
    if "orders" in found["facts"]:
        raise edited.wrong("has facts.orders, which only what comes with the package has.")
    return dict(found["facts"])


def _transformer(weights: str) -> str:
    return weights.partition("/")[0]
