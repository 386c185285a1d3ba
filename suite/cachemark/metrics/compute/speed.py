"""Speed from raw marks, the times when tokens were generated."""

from __future__ import annotations

from itertools import accumulate

from ...cache.layout import Layout
from ...cache.masked_layout import MaskedLayout, masked_steps
from ...core.errors import Unsupported


def ends(layout: Layout) -> list[int]:
    """Return the index of the last token of every line, scale or masked step."""
    if isinstance(layout, MaskedLayout):
        return [step.first + step.count - 1 for step in masked_steps(layout, layout.steps)]
    if layout.scales:
        return [total - 1 for total in accumulate(layout.scale_tokens)]
    return list(range(layout.line - 1, layout.visual, layout.line))


def first_half(layout: Layout) -> int:
    """Return the tokens of the first half: ⌊N/2⌋.

    Tokens of a scale come at once, so the boundary of two scales nearest to N/2 counts, the later of two. A masked model is split by its
    *steps*, and the first half generates far fewer tokens. Raises Unsupported for a single step or scale.
    """
    if isinstance(layout, MaskedLayout):
        if layout.steps < 2:
            raise Unsupported("One step has no halves to time.", remedy="Pass at least 2 steps.")
        return ends(layout)[layout.steps // 2 - 1] + 1
    if not layout.scales:
        return layout.visual // 2
    if len(layout.scales) < 2:
        raise Unsupported("One scale has no halves to time.", remedy="Generate at least 2 scales.")
    return min((end + 1 for end in ends(layout)[:-1]), key=lambda tokens: (abs(2 * tokens - layout.visual), -tokens))


def watched(layout: Layout) -> list[int]:
    """Return the indices of marked tokens: ends of lines, scales or steps, of the first half, the last."""
    return sorted({*ends(layout), first_half(layout) - 1, layout.visual - 1})
