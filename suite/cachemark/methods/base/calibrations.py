"""Calibrations: facts measured once of a model's weights for a method, identified by a digest.

Bundled ones are in ``data/calibration``, one file per method; a user's own, written by ``cachemark calibrate``, in a folder. A case has the
digest and no path, so equal facts give the same case wherever they are stored.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, PositiveInt, create_model
from pydantic_core import from_json

from ...cache.layout import Layout
from ...contract.planning import Planning, Profiler
from ...core.edited import LONGEST, text_of, validating
from ...core.errors import BadCalibration, BadParameter, unknown
from ...core.files import is_readable, output
from ...core.spec import canonical, digest
from .profiles import AttentionProfile, LineProfile, stated_scales

VARIABLE, FOLDER = "CACHEMARK_CALIBRATIONS", "calibrations"
COST = ("seconds", "commit", "machine")  # how a calibration was made, which is not part of its facts
DIGITS = 16
BY_LINE = ("recency", "concentration")  # tables of next-token models
Line = Annotated[str, Field(max_length=LONGEST, pattern=r"^[^\p{Cc}\p{Zl}\p{Zp}]*$")]
_FACTS = create_model("_FACTS", __config__=ConfigDict(strict=True), weights=(str, ...), model=(Line, ...), samples=(PositiveInt, ...))
_FILE = create_model("_FILE", method=(Line, ...), facts=(_FACTS, ...))
_remembered: dict[str, dict[str, dict[str, Any]]] = {}  # of this process, by method and digest


def fingerprint(facts: Mapping[str, Any]) -> str:
    """Return the digest of a calibration, without its cost."""
    return digest({name: value for name, value in facts.items() if name not in COST}, DIGITS)


def folder() -> Path:
    """Return the folder of the user's calibrations: ``CACHEMARK_CALIBRATIONS``, else ``calibrations``."""
    return Path(os.environ.get(VARIABLE) or FOLDER)


def place(method: str, weights: str, scales: object = ()) -> Path:
    """Return the file of a user's calibration for a method and the identity of weights.

    ``scales``: the scales of the facts; token maps that are not square have a file of their own."""
    last = scales[-1] if isinstance(scales, list) and scales else 0
    shape = f"-{last[0]}x{last[1]}" if isinstance(last, list) else ""
    return folder() / f"{method}-{digest(weights.partition('/')[0], 12)}{shape}.json"


def save(method: str, calibrated: Mapping[str, Any], to: Path | None = None) -> Path:
    """Write a calibration to its file, or to another, and return the path."""
    path = to or place(method, str(calibrated["weights"]), calibrated.get("scales"))
    with output(path, "calibration") as part:
        part.write_text(canonical({"method": method, "facts": dict(calibrated)}) + "\n", encoding="utf-8")
    return path


def remember(method: str, facts: Mapping[str, Any]) -> str:
    """Register facts in this process and return their digest."""
    key = fingerprint(facts)
    _remembered.setdefault(method, {})[key] = dict(facts)
    return key


def measured(method: str, weights: str, scales: object = ()) -> dict[str, Any]:
    """Return the facts for a method, weights and scales; empty if there are none.

    The user's own facts precede bundled ones. Only the transformer's part of the weights' identity counts. Raises BadCalibration for a
    broken file.
    """
    own = place(method, weights, scales)
    if is_readable(own):
        return read(own, method)
    return packaged(method).get(weights.partition("/")[0], {})


def named(method: str, name: str) -> tuple[str, Mapping[str, Any]]:
    """Return digest and facts of a calibration, by digest or bundled name; raise UnknownName."""
    calibrations = {**_packaged_names(method), **{key: (key, facts) for key, facts in _remembered.get(method, {}).items()}}
    if name in calibrations:
        return calibrations[name]
    for path in sorted(folder().glob(f"{method}-*.json")):
        if is_readable(path) and remember(method, facts := read(path, method)) == name:
            return name, facts
    raise unknown(f"calibration of {method}", name, [key for key in calibrations if key != calibrations[key][0]])


@cache
def _packaged_names(method: str) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return bundled calibrations by digest and by model name."""
    entries = [(fingerprint(facts), facts) for facts in packaged(method).values()]
    return {key: entry for entry in entries for key in (entry[0], str(entry[1]["model"]))}


@cache
def packaged(method: str) -> dict[str, dict[str, Any]]:
    """Return the bundled calibrations of a method, by weights or by the name of a published model."""
    file = resources.files("cachemark") / "data" / "calibration" / f"{method}.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def read(path: Path, method: str) -> dict[str, Any]:
    """Return the facts of a file written by :func:`save` for this method. Raises BadCalibration."""
    remedy = "Measure it again: cachemark calibrate METHOD MODEL."
    text = text_of(path, BadCalibration)
    with validating(str(path), BadCalibration, remedy):
        content = from_json(text, allow_inf_nan=False)
        _FILE.model_validate_json(text)
    if content["method"] != method:
        raise BadCalibration(f"{path} is a calibration for {content['method']}, not for {method}.", remedy=remedy)
    if "orders" in content["facts"]:
        raise BadCalibration(f"{path} has facts.orders, which only bundled calibrations may have.", remedy=remedy)
    return dict(content["facts"])


def even(layout: Layout, method: str) -> str:
    """Register a uniform calibration of a method with per-head budgets, for arithmetic; return its digest.

    For ``hack``, ``hackpp``, ``ssd_heads`` and ``adakv``. All heads are alike, and attention to a scale or line is proportional to its
    tokens.
    """
    def all_heads(value: object) -> list[list[object]]:
        return [[value] * layout.kv_heads] * layout.layers

    facts: dict[str, Any] = {"model": "even", "layers": layout.layers, "heads": layout.kv_heads}
    if not layout.scales:
        shares = all_heads([(line + 1) / layout.lines for line in range(layout.lines)])
        return remember(method, {**facts, "lines": layout.lines, "line": layout.line, **dict.fromkeys(BY_LINE, shares)})
    tokens = layout.scale_tokens
    shares = [[own / sum(tokens[: made + 1]) * (source <= made) for source, own in enumerate(tokens)] for made in range(len(tokens))]
    return remember(method, {**facts, "scales": stated_scales(layout), "variance": all_heads(0.0), "mass": all_heads(shares)})


_SOUND: set[tuple[object, ...]] = set()  # checked calibrations, and the shapes of their models


@dataclass
class Calibrated(Planning):
    """A method that needs facts measured of the weights.

    The parameter ``calibration`` resolves to the digest of the facts, which becomes part of the case. Empty: the calibration of the case's
    weights. A plan may name a bundled one, or give a digest. ``parts`` names the measured tables that the method reads.
    """

    parts: ClassVar[tuple[str, ...]] = ()

    calibration: str = ""

    def __post_init__(self) -> None:
        self._measured: Mapping[str, Any] = {}

    @classmethod
    def profiler(cls) -> Profiler:
        return LineProfile(*cls.parts) if set(cls.parts) <= set(BY_LINE) else AttentionProfile(*cls.parts)

    def calibrate(self, measured: Mapping[str, Any]) -> None:
        self._measured = measured

    def facts(self, layout: Layout) -> Mapping[str, Any]:
        """Return the facts for a model of this layout; fill in ``calibration``.

        Raises BadParameter without facts, UnknownName for an unknown name, BadCalibration for broken facts or facts of another model.
        """
        if not self.calibration:
            if not self._measured:
                raise BadParameter(f"{self.name}: no calibration found for these weights.", remedy=f"Run `cachemark calibrate "
                                   f"{self.name} MODEL`, or set calibration = \"…\" to a bundled one.")
            self.calibration = remember(self.name, self._measured)
        self.calibration, facts = named(self.name, self.calibration)
        cache_key = self.name, self.calibration, str(shape_of(layout))
        if cache_key not in _SOUND:
            self._check(facts, layout)
            _SOUND.add(cache_key)
        return facts

    def tables(self, calibrated: Mapping[str, Any], layout: Layout) -> Mapping[str, tuple[int, ...]]:
        """Return the tables that the method reads, with their shapes."""
        return {part: all_tables(layout)[part] for part in self.parts}

    def _check(self, calibrated: Mapping[str, Any], layout: Layout) -> None:
        what = f"{self.name}: the calibration {calibrated.get('model')}"
        remedy = f"Measure this model: cachemark calibrate {self.name} MODEL."
        shape = shape_of(layout).items()
        wrong = [f"{name} {_brief(calibrated.get(name))}, not {_brief(value)}" for name, value in shape if calibrated.get(name) != value]
        if wrong:
            raise BadCalibration(f"{what} is of another model or resolution: {'; '.join(wrong)}.", remedy=remedy)
        for name, sizes in self.tables(calibrated, layout).items():
            if not _is_table(calibrated.get(name), sizes):
                raise BadCalibration(f"{what} has no {name} of {' × '.join(map(str, sizes))} finite numbers.", remedy=remedy)


def all_tables(layout: Layout) -> dict[str, tuple[int, ...]]:
    """Return the shape of every table that a profile measures."""
    heads, scales = (layout.layers, layout.kv_heads), len(layout.scales)
    return {"scas": (*heads, scales - 1), "asi": (layout.layers, scales - 1), "variance": heads, "mass": (*heads, scales, scales),
            **dict.fromkeys(BY_LINE, (*heads, layout.lines))}


def shape_of(layout: Layout) -> dict[str, Any]:
    """Return the sizes that a calibration must share with the model."""
    tokens = {"scales": stated_scales(layout)} if layout.scales else {"lines": layout.lines, "line": layout.line}
    return {"layers": layout.layers, "heads": layout.kv_heads, **tokens}


def _brief(value: object) -> str:
    """Return sizes as text: ``1 2 5×4``."""
    if not isinstance(value, list):
        return str(value)
    return " ".join("×".join(map(str, item)) if isinstance(item, list) else str(item) for item in value)


def _is_table(value: object, sizes: tuple[int, ...]) -> bool:
    if not sizes:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, list) and len(value) == sizes[0] and all(_is_table(part, sizes[1:]) for part in value)
