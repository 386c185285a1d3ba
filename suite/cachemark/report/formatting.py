"""Numbers as text: one spelling for each unit, used by tables, sentences and charts alike."""

from __future__ import annotations

import re

from ..core.units import metric

DASH = "–"
_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def plain(text: object, limit: int = 0) -> str:
    """Text without control characters and lone surrogates (neither is XML), cut to ``limit`` characters where that is above 0."""
    clean = str(text)
    if not clean.isprintable():  # which is quick, and true of nearly all
        clean = _UNFIT.sub(" ", clean)
    return clean if not limit or len(clean) <= limit else clean[: limit - 1].rstrip() + "…"


def name(text: str) -> str:
    """A user's name inside a sentence: short, and unable to turn the direction of what follows it."""
    short = plain(text, 60)
    return short if short.isascii() else f"\u2068{short}\u2069"


def times(value: float) -> str:
    """``1.52×``"""
    return f"{value:.2f}×"


def percent(value: float) -> str:
    """A share as ``74.4 %``."""
    return f"{100 * value:.1f} %".replace("-", "−")


def size(value: float) -> str:
    """Bytes in binary units, three digits: ``1.12 MiB``."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{_three(value)} {unit}"


def binary(most: float) -> tuple[float, str]:
    """The binary unit for figures up to ``most`` bytes, and its name."""
    return next(((1024.0**k, name) for k, name in ((3, "GiB"), (2, "MiB"), (1, "KiB")) if most >= 1024.0**k), (1.0, "B"))


def flops(value: float) -> str:
    """Floating-point operations, three digits: ``14.6 TFLOP``."""
    unit = ""
    for larger in ("k", "M", "G", "T", "P"):
        if abs(value) < 1000:
            break
        value, unit = value / 1000, larger
    return f"{_three(value)} {unit}FLOP"


def seconds(value: float) -> str:
    """A duration as ``840 ms`` or ``1.23 s``."""
    return f"{_three(1000 * value)} ms" if value < 1 else f"{_three(value)} s"


def figure(value: float, name: str) -> str:
    """A value of the metric ``name`` in its own unit."""
    unit = metric(name).unit
    if unit == "s":
        return seconds(value)
    if unit == "B":
        return size(value)
    if unit == "share":
        return percent(value)
    if unit in ("token/s", "image/s"):
        return _three(value)
    if unit == "image":
        return f"{value:.0f}"
    if unit == "FLOP":
        return flops(value)
    if unit == "dB":
        return f"{value:.1f}".replace("-", "−")
    return _small(value)


def with_unit(value: float, name: str) -> str:
    """Like :func:`figure`, with the unit where the figure alone does not show it."""
    unit = metric(name).unit
    return f"{figure(value, name)} {unit}" if unit in ("token/s", "image/s", "dB", "nat/token") else figure(value, name)


def of_full(value: float) -> str:
    """A figure given as a ratio to the full cache of its run."""
    return f"{value:.3f} × full"


def _three(value: float) -> str:
    """Three digits, more where the whole part has more."""
    size_ = abs(value)
    text = f"{value:.0f}" if size_ >= 100 else f"{value:.1f}" if size_ >= 10 else f"{value:.2f}"
    return text.replace("-", "−")


def _small(value: float) -> str:
    """Three decimals, or three digits where there are more before the point, or a power of ten where decimals would say nothing."""
    if abs(value) >= 10:
        return _three(value)
    text = f"{value:.1e}".replace("e-0", "e-") if 0 < abs(value) < 0.0005 else f"{value:.3f}"
    return text.replace("-", "−")
