"""Speed from raw marks: when each watched token had been drawn."""

from __future__ import annotations

from itertools import accumulate

from ...cache.layout import Layout
from ...cache.masked_layout import MaskedLayout, masked_steps
from ...core.errors import Unsupported


def ends(layout: Layout) -> list[int]:
    """Index of the last token of every line, of every scale, or in the order of drawing of every masked step."""
    if isinstance(layout, MaskedLayout):
        return [step.first + step.count - 1 for step in masked_steps(layout, layout.steps)]
    if layout.scales:
        return [total - 1 for total in accumulate(side**2 for side in layout.scales)]
    return list(range(layout.line - 1, layout.visual, layout.line))


def first_half(layout: Layout) -> int:
    """Tokens of the first half: ⌊N/2⌋. A scale's tokens come all at once, so there the boundary between two scales that is
    nearest to N/2 divides them, the later one of two that are equally near. A masked model's halves are those of its *steps*,
    whose first half draws far fewer tokens than the last; raises Unsupported where there is but one."""
    if isinstance(layout, MaskedLayout):
        if layout.steps < 2:
            raise Unsupported("One step has no halves to time.", remedy="Give at least 2 steps.")
        return ends(layout)[layout.steps // 2 - 1] + 1
    if not layout.scales:
        return layout.visual // 2
    return min((end + 1 for end in ends(layout)[:-1]), key=lambda tokens: (abs(2 * tokens - layout.visual), -tokens))


def watched(layout: Layout) -> list[int]:
    """Indices of the tokens whose completion is marked: ends of lines, scales or steps, the end of the first half, the last."""
    return sorted({*ends(layout), first_half(layout) - 1, layout.visual - 1})
