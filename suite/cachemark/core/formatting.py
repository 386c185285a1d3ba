"""Numbers as text, in one spelling per unit, durations, and names as in papers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from .files import PACKAGE, read_json
from .units import metric
from .wording import plain as plain  # for callers of this module

DASH = "–"
_WORD = re.compile(r"(?<!\S)[^\s:]+(?=$|[ :])")
TITLES: dict[str, str] = read_json(PACKAGE / "data" / "titles.json")  # of built-in methods and decoders, from their classes


def display_name(label: str, titles: Mapping[str, str] | None = None) -> str:
    """Return a label such as ``linear 1/4 + sjd`` with titles: ``LineAR 1/4 + SJD``.

    ``titles``: further ones, of plug-ins.
    """
    known = {**TITLES, **(titles or {})}
    return _WORD.sub(lambda match: known.get(match[0], match[0]), label)


def name(text: str) -> str:
    """Return a user's name shortened to 60 characters and isolated from the text around it."""
    short = plain(text, 60)
    return short if short.isascii() else f"\u2068{short}\u2069"


def times(value: float) -> str:
    """Return ``1.52×``."""
    return f"{value:.2f}×"


def percent(value: float) -> str:
    """Return a fraction as ``74.4 %``."""
    return f"{100 * value:.1f} %".replace("-", "−")


def size(value: float) -> str:
    """Return bytes in binary units with three digits: ``1.12 MiB``."""
    scaled, unit = _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))
    return f"{value:.0f} B" if unit == "B" else f"{_three(scaled)} {unit}"


def binary(most: float) -> tuple[float, str]:
    """Return the binary unit for values up to ``most`` bytes, and its name."""
    return next(((1024.0**k, name) for k, name in ((3, "GiB"), (2, "MiB"), (1, "KiB")) if most >= 1024.0**k), (1.0, "B"))


def flops(value: float) -> str:
    """Return floating-point operations with three digits: ``14.6 TFLOP``."""
    scaled, unit = _scaled(value, 1000, ("", "k", "M", "G", "T", "P"))
    return f"{_three(scaled)} {unit}FLOP"


def energy(value: float) -> str:
    """Return joules with three digits: ``14.6 J``."""
    return f"{_three(1000 * value)} mJ" if abs(value) < 1 else f"{_three(value)} J"


def _scaled(value: float, step: float, units: Sequence[str]) -> tuple[float, str]:
    power = next((k for k in range(len(units)) if abs(value) < step ** (k + 1)), len(units) - 1)
    return value / step**power, units[power]


def seconds(value: float) -> str:
    """Return a duration as ``840 ms`` or ``1.23 s``."""
    return f"{_three(1000 * value)} ms" if value < 1 else f"{_three(value)} s"


def metric_value(value: float, name: str) -> str:
    """Return a value of the metric ``name`` in its own unit."""
    return in_unit(value, metric(name).unit)


def in_unit(value: float, unit: str) -> str:
    """Return a value in its unit."""
    return _BY_UNIT.get(unit, _small)(value)


def with_unit(value: float, name: str) -> str:
    """Return :func:`metric_value`, with the unit where the value alone does not show it."""
    unit = metric(name).unit
    return f"{metric_value(value, name)} {unit}" if unit in ("token/s", "image/s", "dB", "nat/token") else metric_value(value, name)


def looks_equal(then: float, now: float, name: str) -> bool:
    """Return whether two values of the metric ``name`` are printed alike."""
    return metric_value(then, name) == metric_value(now, name)


def _three(value: float) -> str:
    size_ = abs(value)
    text = f"{value:.0f}" if size_ >= 100 else f"{value:.1f}" if size_ >= 10 else f"{value:.2f}"
    return text.replace("-", "−")


def _small(value: float) -> str:
    if abs(value) >= 10:
        return _three(value)
    text = f"{value:.1e}".replace("e-0", "e-") if 0 < abs(value) < 0.0005 else f"{value:.3f}"
    return text.replace("-", "−")


_BY_UNIT: Mapping[str, Callable[[float], str]] = {
    "s": seconds, "B": size, "share": percent, "token/s": _three, "image/s": _three, "image": "{:.0f}".format, "FLOP": flops,
    "J": energy, "W": lambda value: f"{_three(value)} W",
    "pass": _three, "token": _three, "dB": lambda value: f"{value:.1f}".replace("-", "−"),
}


def duration(started: str, finished: str | None) -> float | None:
    """Return the seconds between two times in ISO 8601, None if one is missing or not a time."""
    try:
        return (datetime.fromisoformat(finished or "") - datetime.fromisoformat(started)).total_seconds()
    except (TypeError, ValueError):  # TypeError: only one of them has a time zone
        return None
