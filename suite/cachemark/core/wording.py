"""Figures inside sentences."""

from __future__ import annotations


def percent(share: float, sign: str = "") -> str:
    """A share to two digits, whole per cent from a hundred on: ``5.1 %``, ``150 %``; with ``sign`` ``+``: ``+5.1 %``."""
    value = round(100 * share, 4) + 0.0  # no power of ten near nought, and no -0
    digits = ".0f" if abs(value) >= 99.5 else ".2g"
    return f"{value:{sign}{digits}} %"


def count(number: int, noun: str) -> str:
    """``1 alarm``, ``3 alarms``"""
    return f"{number} {noun}{'' if number == 1 else 's'}"
