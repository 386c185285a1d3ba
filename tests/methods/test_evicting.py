"""Evicting methods: random eviction, edges and scores, LineAR at ends of lines, and budgets of layers and heads."""

import itertools
import math
import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cachemark.cache.bank import SlotBank
from cachemark.cache.codec import NATIVE
from cachemark.cache.layout import Layout, Site, Step, scale_steps, squares
from cachemark.kit.driver import RasterFeed, drive, layout_of
from cachemark.kit.next_token import Cell
from cachemark.methods.adakv import shared
from cachemark.methods.base.evicting import Evicting, Scored
from cachemark.methods.linear import EXCLUDED, MEMBER, PINNED, Linear
from cachemark.methods.pyramidkv import pyramid
from cachemark.methods.random import Random

from .test_rules import kept_by

B = 9
LONG = layout_of((1,) * 48, lines=5, line=8, head_dim=4)
# -- LineAR where lines end in a token of their own --------------------------------------------------------------------
ENDED = replace(layout_of(kv_heads=2, lines=8), line_ends=True)
N = ENDED.line
SIZES = {"B": 4 * N, "anchor": 3, "recent_lines": 1}
ENDS = set(range(N - 1, ENDED.visual, N))


def ranks(layout: Layout = LONG) -> Tensor:
    """Return how many live visual tokens were older than the one that went, (turns, layers, rows, kv_heads)."""
    kept = kept_by(Random(B=B), layout, RasterFeed(layout), NATIVE)

    def rank(turn: int, *place: int) -> int:
        token = B + turn
        (_, before), (condition, after) = kept[token, *place], kept[token + 1, *place]
        (gone,) = {*before, token} - {*after}
        assert condition == 1, "the condition went"
        return [*before, token].index(gone)

    shape = LONG.visual - 1 - B, layout.layers, layout.rows, layout.kv_heads
    return torch.tensor([rank(*place) for place in itertools.product(*map(range, shape))]).view(shape)


def test_one_goes_as_soon_as_the_budget_is_exceeded_drawn_uniformly_for_each_token_layer_row_head_and_branch() -> None:
    drawn = ranks()
    assert (int(drawn.min()), int(drawn.max())) == (0, B - 1), "the token just fed is never drawn, each of the B others may be"
    counts = drawn.flatten().bincount(minlength=B).double()
    squares = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    assert abs(squares - (B - 1)) < 4 * math.sqrt(2 * (B - 1))
    for axis, name in enumerate(("token", "layer", "row", "head")):
        latter, other = drawn.narrow(axis, 1, drawn.size(axis) - 1), drawn.narrow(axis, 0, drawn.size(axis) - 1)
        same = float((latter == other).double().mean())
        assert abs(same - 1 / B) < 4 * math.sqrt((1 / B) * (1 - 1 / B) / latter.numel()), name
    assert torch.equal(ranks(replace(LONG, seeds=LONG.seeds[::-1])).flip(2), drawn), "the place in the batch counts"
    unguided = replace(LONG, branches=(1,) * LONG.rows)
    assert float((ranks(unguided) == drawn).double().mean()) < 2 / B, "the two branches of a sample share their draws"


@pytest.mark.parametrize("edge", ["token", "line"])
def test_a_next_scale_model_has_no_lines_to_evict_by(edge: str) -> None:
    layout = Layout("next-scale", (1,), 0, 0, 2, 2, 4, 1, seeds=(0,), branches=(0,), dtype=torch.float32, scales=squares((1, 2, 4)))
    method = type("Edged", (Evicting,), {"name": "edged", "paradigms": ("next-token", "next-scale"), "evict_after": edge})(B=3)
    seen = [method.attended(layout, Site("decoder", 0), step) for step in scale_steps(layout)]
    assert seen == [1 + 0 + 1, 1 + 1 + 4, 1 + 3 + 16]
    assert [method.evicted(layout, step) for step in scale_steps(layout)] == [0, 0, 0]


@pytest.mark.parametrize("when", ["token", "line"])
def test_the_condition_stays_when_every_entry_is_protected(when: str) -> None:
    conditions = set()

    def score(self: Scored, step: Step, slots: SlotBank) -> Tensor:
        conditions.add(int((slots.table() < 0).sum(-1).min()))
        return torch.full(slots.table().shape, float("inf"))

    protects = type("Protects", (Scored,), {"name": "protects", "evict_after": when, "slack": int(when == "token"), "score": score})
    cell = Cell(protects, (), "native", "mha")
    cell.run(cell.tight(), bare=True)
    assert conditions == {1}


def kept_tokens(line_end: str, feed: RasterFeed, score: str = "inter-line") -> list[set[int]]:
    """Return the visual tokens that live at the end, of each site, row and head."""
    method = Linear(**SIZES, line_end=line_end, score=score)
    drive(method, ENDED, feed)
    return [set(row) for row in method.banks[0].table().flatten(0, 2).tolist()]


@pytest.mark.parametrize("score", ["inter-line", "accumulated"])
def test_a_pinned_end_is_never_evicted_and_an_excluded_end_goes_first(score: str) -> None:
    """Remaining line ends are in the recent line; all others are evicted first."""
    pinned, members, excluded = (kept_tokens(line_end, RasterFeed(ENDED), score) for line_end in (PINNED, MEMBER, EXCLUDED))
    written = {end for end in ENDS if end < ENDED.visual - 1}  # the last token is drawn and not fed
    assert (all(written <= tokens for tokens in pinned), all(written <= tokens for tokens in members)) == (True, False)
    remaining = set().union(*excluded) & ENDS
    assert remaining <= {end for end in ENDS if end >= ENDED.visual - 2 * N}
    assert set().union(*members) & ENDS - remaining


def test_the_query_of_an_excluded_end_guides_nothing() -> None:
    plain, loud = RasterFeed(ENDED), RasterFeed(ENDED)
    for token in ENDS - {ENDED.visual - 1}:
        loud.q[token + 1] *= -9
    assert kept_tokens(EXCLUDED, plain) == kept_tokens(EXCLUDED, loud)
    assert kept_tokens(MEMBER, plain) != kept_tokens(MEMBER, loud)


def test_a_pyramid_has_the_requested_sum_and_falls() -> None:
    for layers, mean in itertools.product((1, 2, 6, 36), (2, 3, 8, 15, 16)):
        lines = pyramid(mean, layers, beta=20.0, least=2, most=16)
        assert sum(lines) == mean * layers
        assert lines == sorted(lines, reverse=True)
        assert all(2 <= count <= 16 for count in lines)
    assert pyramid(5, 4, beta=5.0, least=1, most=16) == [9, 6, 4, 1]
    assert pyramid(5, 4, beta=1.0, least=1, most=16) == [5, 5, 5, 5]


def test_heads_share_lines_so_that_most_attention_stays() -> None:
    draw = random.Random(0)
    for _ in range(20):
        weights = [sorted((draw.random() ** 3 for _ in range(6)), reverse=True) for _ in range(3)]
        curves = [[sum(head[: n + 1]) / sum(head) for n in range(6)] for head in weights]
        lines = shared(curves, mean=3, least=1)
        best = max(sum(curve[n - 1] for curve, n in zip(curves, split, strict=True))
                    for split in itertools.product(range(1, 7), repeat=3) if sum(split) == 9)
        assert sum(lines) == 9
        assert sum(curve[n - 1] for curve, n in zip(curves, lines, strict=True)) == pytest.approx(best)
    assert shared([[1.0, 1.0, 1.0, 1.0], [0.1, 0.4, 0.7, 1.0]], mean=2, least=1) == [1, 3], "every head gets the least"
    # where attention is all within the first line, the others, which gain nothing, are spread evenly
    assert shared([[1.0] * 16] * 4, mean=8, least=2) == [8, 8, 8, 8]
    assert shared([[0.999999] + [1.0] * 15, [1.0] * 16, [0.5] + [1.0] * 15], mean=4, least=1) == [4, 4, 4]
    assert shared([[0.999, 0.9995, *[1.0] * 14], [1.0] * 16], mean=2, least=1) == [3, 1]
