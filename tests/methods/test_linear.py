"""LineAR at the end of a line: what moves, and what is kept of its queries."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import Step
from cachemark.kit.driver import RasterFeed as Feed
from cachemark.kit.driver import drive, layout_of
from cachemark.methods.linear import Linear

LAYOUT = layout_of(kv_heads=2)


class Seen(Linear):
    """Keeps what stood in the bank before and after each eviction."""

    def evict(self, step: Step, slots: SlotBank) -> None:
        before = [part.clone() for part in (slots.visual, *slots.k, *slots.v)]
        lengths = slots.live[0]
        super().evict(step, slots)
        if slots.live[0] < lengths:
            self.moments.append((step, lengths, before, [part.clone() for part in (slots.visual, *slots.k, *slots.v)]))


def moments(ratio: Fraction) -> list[tuple[Step, int, list[Tensor], list[Tensor]]]:
    Seen.moments = []  # type: ignore[attr-defined]
    drive(Seen(**Linear.parameters_for(ratio, LAYOUT)), LAYOUT, Feed(LAYOUT))
    return Seen.moments  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("ratio", [Fraction(1, 2), Fraction(2, 3)])
def test_only_the_line_just_written_moves_and_all_of_it_does(ratio: Fraction) -> None:
    """The n entries of the tail are in the n evicted positions afterwards: keys, values and numbers."""
    n, evictions = LAYOUT.line, moments(ratio)
    assert len(evictions) == LAYOUT.lines * (1 - ratio)
    for step, length, before, after in evictions:
        line = torch.arange((step.line - 1) * n, step.line * n)
        assert (before[0][..., length - n : length].sort(-1).values == line).all()
        kept = length - n
        changed = before[0][..., :kept] != after[0][..., :kept]
        assert (changed.sum(-1) == n).all()
        moved = after[0][..., :kept][changed].view(*changed.shape[:-1], n)
        assert (moved.sort(-1).values == line).all()
        for part, now in zip(before[1:], after[1:], strict=True):
            assert torch.equal(part[..., :kept, :][~changed], now[..., :kept, :][~changed]), "nothing else moves"
            source = (after[0][..., :kept].long() - line[0] + kept).clamp_min(0)
            wide = source[..., None].expand(*source.shape, part.size(-1))
            assert torch.equal(now[..., :kept, :][changed], part.gather(-2, wide)[changed])


def test_the_guide_is_one_line_of_queries() -> None:
    """A ring: one place for each column, written over by the next line."""
    method, feed = Linear(**Linear.parameters_for(Fraction(1, 2), LAYOUT)), Feed(LAYOUT)
    drive(method, LAYOUT, feed)
    rows, n = LAYOUT.rows, LAYOUT.line
    assert method.guide.shape == (LAYOUT.layers, rows, LAYOUT.heads, n, LAYOUT.head_dim)
    for token in range(LAYOUT.visual - 1 - n, LAYOUT.visual - 1):  # the last token is never fed
        assert torch.equal(method.guide[:, :, :, token % n], feed.q[token + 1, :, :, :, 0])


