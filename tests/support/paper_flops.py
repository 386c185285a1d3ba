"""FLOPs of an image as LazyMAR's Table 1 prints them, to compare with ours."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources

TERA = 10**12


@dataclass(frozen=True)
class PrintedFlops:
    """FLOPs of an image, in 10¹², as LazyMAR's Table 1 prints them: under its own method (``lazymar``) or none (``full``)."""

    model: str
    steps: int
    method: str
    printed: str

    def off(self, flops: int) -> float:
        """Deviation of ``flops`` from the printed value, as a share of that: negative where they are fewer."""
        return flops / TERA / float(self.printed) - 1


def published(model: str = "") -> list[PrintedFlops]:
    """The values that LazyMAR prints, of one model or of all."""
    text = (resources.files("cachemark") / "data" / "published" / "lazymar.json").read_text(encoding="utf-8")
    return [figure for row in json.loads(text)["flops"] if (figure := PrintedFlops(**row)).model == model or not model]
