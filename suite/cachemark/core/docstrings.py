"""The first paragraph of a docstring."""

from __future__ import annotations


def sentence(text: str | None) -> str:
    """The first sentence of a docstring, on one line."""
    first, dot, _ = " ".join((text or "").split("\n\n")[0].split()).partition(". ")
    return first + dot.rstrip()
