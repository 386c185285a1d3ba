"""LineAR on lines that end in a token of their own: what that token is to it, by its parameter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cachemark.core.errors import BadBudget, BadParameter
from cachemark.kit.driver import RasterFeed as Feed
from cachemark.kit.driver import drive, layout_of
from cachemark.methods.linear import EXCLUDED, MEMBER, PINNED, Linear

LAYOUT = replace(layout_of(kv_heads=2, lines=8), line_ends=True)
N = LAYOUT.line
SIZES = {"B": 4 * N, "anchor": 3, "recent_lines": 1}
ENDS = set(range(N - 1, LAYOUT.visual, N))


def kept_tokens(line_end: str, feed: Feed, score: str = "inter-line") -> Tensor:
    """Indices of the visual tokens that live at the end, (sites, rows, kv_heads, live)."""
    method = Linear(**SIZES, line_end=line_end, score=score)
    drive(method, LAYOUT, feed)
    return method.banks[0].table()


@pytest.mark.parametrize("score", ["inter-line", "accumulated"])
def test_a_pinned_end_is_never_evicted(score: str) -> None:
    rows = kept_tokens(PINNED, Feed(LAYOUT), score).flatten(0, 2)
    written = {end for end in ENDS if end < LAYOUT.visual - 1}  # the last token is drawn and not fed
    assert all(written <= set(row.tolist()) for row in rows)
    assert not all(written <= set(row.tolist()) for row in kept_tokens(MEMBER, Feed(LAYOUT), score).flatten(0, 2))


@pytest.mark.parametrize("score", ["inter-line", "accumulated"])
def test_an_excluded_end_goes_first(score: str) -> None:
    """Remaining line ends are in the recent line; all others are evicted first."""
    rows = kept_tokens(EXCLUDED, Feed(LAYOUT), score).flatten(0, 2)
    remaining = {end for row in rows for end in set(row.tolist()) & ENDS}
    assert remaining <= {end for end in ENDS if end >= LAYOUT.visual - 2 * N}
    members = kept_tokens(MEMBER, Feed(LAYOUT), score).flatten(0, 2)
    assert {end for row in members for end in set(row.tolist()) & ENDS} - remaining


def test_the_query_of_an_excluded_end_guides_nothing() -> None:
    plain, loud = Feed(LAYOUT), Feed(LAYOUT)
    for token in ENDS - {LAYOUT.visual - 1}:
        loud.q[token + 1] *= -9
    assert torch.equal(kept_tokens(EXCLUDED, plain).sort(-1).values, kept_tokens(EXCLUDED, loud).sort(-1).values)
    assert not torch.equal(kept_tokens(MEMBER, plain).sort(-1).values, kept_tokens(MEMBER, loud).sort(-1).values)


def test_all_keep_the_same_number_of_entries() -> None:
    assert len({kept_tokens(line_end, Feed(LAYOUT)).shape for line_end in (MEMBER, PINNED, EXCLUDED)}) == 1


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(BadParameter, match="line_end = 'pinned': the lines of this model have no end-of-line token"):
        Linear(**SIZES, line_end=PINNED).resolve(replace(LAYOUT, line_ends=False))
    with pytest.raises(BadParameter, match="line_end = 'sink' is unknown"):
        Linear(**SIZES, line_end="sink").resolve(LAYOUT)
    with pytest.raises(BadBudget, match="and 8 ends of lines"):
        Linear(**{**SIZES, "B": 3 * N}, line_end=PINNED).resolve(LAYOUT)
    Linear(**{**SIZES, "B": 3 * N}, line_end=EXCLUDED).resolve(LAYOUT)
