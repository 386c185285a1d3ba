"""Calibrations: facts that were measured once of certain weights for a method, and the digest by which a case names them.

Those that come with the package stand in ``data/calibration``, a file for each method; a user's own, as ``cachemark calibrate`` writes
them, in a folder. A case holds the digest and no path, so the same facts give the same case wherever they lie.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from ...cache.layout import Layout
from ...contract.planning import Planning
from ...core.edited import LINE, PROSE, TABLE, EditedFile, number, text_of
from ...core.errors import BadCalibration, BadParameter, unknown
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


_SOUND: set[tuple[object, ...]] = set()  # calibrations that have been looked at, and the shapes of the models they are for


@dataclass
class Calibrated(Planning):
    """Resolves the parameter ``calibration`` to the digest of the facts, which so becomes part of a case's identity. Left empty it is the
    calibration of the case's weights; a plan may name one that comes with the package, or give a digest."""

    calibration: str = ""

    def __post_init__(self) -> None:
        self._measured: Mapping[str, Any] = {}

    def calibrate(self, measured: Mapping[str, Any]) -> None:
        self._measured = measured

    def facts(self, layout: Layout) -> Mapping[str, Any]:
        """The facts, of a model with these layers, heads and scales or lines; fills in ``calibration``. Raises BadParameter where there are
        none, UnknownName for a name that is none, BadCalibration for those that are broken or of another model."""
        if not self.calibration:
            if not self._measured:
                raise BadParameter(f"{self.name}: no calibration found for these weights.", remedy=f"Run `cachemark calibrate "
                                   f"{self.name} MODEL`, or set calibration = \"…\" to a bundled one.")
            self.calibration = remember(self.name, self._measured)
        self.calibration, facts = named(self.name, self.calibration)
        cache_key = self.name, self.calibration, *_shape(layout).values()
        if cache_key not in _SOUND:
            self._check(facts, layout)
            _SOUND.add(cache_key)
        return facts

    def tables(self, facts: Mapping[str, Any], layout: Layout) -> Mapping[str, tuple[int, ...]]:
        """The facts that the method reads, each a table of finite numbers of that shape."""
        return {}

    def _check(self, facts: Mapping[str, Any], layout: Layout) -> None:
        what, remedy = f"{self.name}: the calibration {facts.get('model')}", f"Measure this model: cachemark calibrate {self.name} MODEL."
        expected = {name: list(value) if isinstance(value, tuple) else value for name, value in _shape(layout).items()}
        wrong = [f"{name} {_brief(facts.get(name))}, not {_brief(value)}" for name, value in expected.items() if facts.get(name) != value]
        if wrong:
            raise BadCalibration(f"{what} is of another model or resolution: {'; '.join(wrong)}.", remedy=remedy)
        for name, sizes in self.tables(facts, layout).items():
            if not _is_table(facts.get(name), sizes):
                raise BadCalibration(f"{what} has no {name} of {' × '.join(map(str, sizes))} finite numbers.", remedy=remedy)


def _shape(layout: Layout) -> dict[str, int | tuple[int, ...]]:
    """The sizes of a model that its calibrations have to have."""
    tokens: dict[str, int | tuple[int, ...]] = {"scales": layout.scales} if layout.scales else {"lines": layout.lines, "line": layout.line}
    return {"layers": layout.layers, "heads": layout.kv_heads, **tokens}


def _brief(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _is_table(value: object, sizes: tuple[int, ...]) -> bool:
    if not sizes:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, list) and len(value) == sizes[0] and all(_is_table(part, sizes[1:]) for part in value)
