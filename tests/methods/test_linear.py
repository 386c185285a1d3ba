"""LineAR at the end of a line: what is kept of its queries, and what an end-of-line token is to it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from cachemark.kit.driver import RasterFeed as Feed
from cachemark.kit.driver import drive, layout_of
from cachemark.methods.linear import EXCLUDED, MEMBER, PINNED, Linear

LAYOUT = layout_of(kv_heads=2)


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
