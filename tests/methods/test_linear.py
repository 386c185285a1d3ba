"""LineAR at the end of a line: what moves, what is kept of its queries, and what an end-of-line token is to it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import Step
from cachemark.kit.driver import RasterFeed as Feed
from cachemark.kit.driver import drive, layout_of
from cachemark.methods.linear import EXCLUDED, MEMBER, PINNED, Linear

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


# -- lines that end in a token of their own ---------------------------------------------------------------------------
ENDED = replace(layout_of(kv_heads=2, lines=8), line_ends=True)
N = ENDED.line
SIZES = {"B": 4 * N, "anchor": 3, "recent_lines": 1}
ENDS = set(range(N - 1, ENDED.visual, N))


def kept_tokens(line_end: str, feed: Feed, score: str = "inter-line") -> Tensor:
    """Indices of the visual tokens that live at the end, (sites, rows, kv_heads, live)."""
    method = Linear(**SIZES, line_end=line_end, score=score)
    drive(method, ENDED, feed)
    return method.banks[0].table()


@pytest.mark.parametrize("score", ["inter-line", "accumulated"])
def test_a_pinned_end_is_never_evicted(score: str) -> None:
    rows = kept_tokens(PINNED, Feed(ENDED), score).flatten(0, 2)
    written = {end for end in ENDS if end < ENDED.visual - 1}  # the last token is drawn and not fed
    assert all(written <= set(row.tolist()) for row in rows)
    assert not all(written <= set(row.tolist()) for row in kept_tokens(MEMBER, Feed(ENDED), score).flatten(0, 2))


@pytest.mark.parametrize("score", ["inter-line", "accumulated"])
def test_an_excluded_end_goes_first(score: str) -> None:
    """Remaining line ends are in the recent line; all others are evicted first."""
    rows = kept_tokens(EXCLUDED, Feed(ENDED), score).flatten(0, 2)
    remaining = {end for row in rows for end in set(row.tolist()) & ENDS}
    assert remaining <= {end for end in ENDS if end >= ENDED.visual - 2 * N}
    members = kept_tokens(MEMBER, Feed(ENDED), score).flatten(0, 2)
    assert {end for row in members for end in set(row.tolist()) & ENDS} - remaining


def test_the_query_of_an_excluded_end_guides_nothing() -> None:
    plain, loud = Feed(ENDED), Feed(ENDED)
    for token in ENDS - {ENDED.visual - 1}:
        loud.q[token + 1] *= -9
    assert torch.equal(kept_tokens(EXCLUDED, plain).sort(-1).values, kept_tokens(EXCLUDED, loud).sort(-1).values)
    assert not torch.equal(kept_tokens(MEMBER, plain).sort(-1).values, kept_tokens(MEMBER, loud).sort(-1).values)


def test_all_keep_the_same_number_of_entries() -> None:
    assert len({kept_tokens(line_end, Feed(ENDED)).shape for line_end in (MEMBER, PINNED, EXCLUDED)}) == 1
