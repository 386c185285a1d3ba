"""Speed from raw marks: when each watched token had been drawn."""

from __future__ import annotations

from collections.abc import Mapping


def watched(tokens: int, line: int) -> list[int]:
    """Indices of the tokens whose completion is marked: line ends, the end of the first half, the last."""
    ends = set(range(line - 1, tokens, line)) | {tokens // 2 - 1, tokens - 1}
    return sorted(i for i in ends if i >= 0)


def halves(marks: Mapping[int, float], tokens: int, batch: int) -> tuple[float, float]:
    """Tokens per second of the whole batch over the first ⌊N/2⌋ tokens and over the rest.

    ``marks`` maps a token's index to the seconds since the start at which it had been drawn. What a step costs besides its
    token (an eviction at a line end) falls into the half in which it runs. A CFG pair counts as one token.
    """
    half = tokens // 2
    middle, end = marks[half - 1], marks[tokens - 1]
    return half * batch / middle, (tokens - half) * batch / (end - middle)
