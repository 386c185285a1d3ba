"""AMS-KV's rivals in a next-scale model against a second implementation on token numbers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.layout import Layout, Site, scale_steps
from cachemark.kit.next_scale import LAYERS, SIDES, ScaleFeed, layout_of
from cachemark.methods.registry import METHODS
from cachemark.methods.scale_groups import ScaleGroups
from cachemark.methods.streaming import Streaming
from contracts.scales import contents_of

SITES = [Site("decoder", layer) for layer in range(LAYERS)]
SIZES = [side**2 for side in SIDES]


def rolling(B: int, sinks: int) -> list[list[int]]:
    """What is held after each scale but the last: the first ``sinks`` and the latest tokens, B in all."""
    tokens: list[int] = []
    history, first = [], 0
    for size in SIZES[:-1]:
        tokens = tokens + list(range(first, first + size))
        first += size
        if len(tokens) > B:
            tokens = tokens[:sinks] + tokens[len(tokens) - (B - sinks) :]
        history.append(tokens)
    return history


@pytest.mark.parametrize(("name", "parameters", "sinks"), [
    ("window", {"B": 35}, 0), ("window", {"B": 7}, 0), ("streaming", {"B": 35, "sinks": 5}, 5), ("streaming", {"B": 6, "sinks": 5}, 5),
    ("streaming", {"B": 20, "sinks": 0}, 0), ("streaming", {"B": 20, "sinks": 14}, 14),
])  # fmt: skip
def test_the_first_and_the_latest_stay(name: str, parameters: dict[str, Any], sinks: int) -> None:
    layout = layout_of()
    kept_after = contents_of(METHODS.get(name).build(parameters), layout)[0]
    for contents, expected in zip(kept_after, rolling(parameters["B"], sinks), strict=False):
        assert all((numbers.long() == torch.tensor(expected)).all() for numbers in contents.values())


def test_the_default_of_sinks_is_that_of_the_family() -> None:
    half = Fraction(1, 2)
    assert Streaming.parameters_for(half, layout_of()) == {"B": 27, "sinks": 5}
    assert Streaming.parameters_for(half, Layout("next-token", (1,), 6, 6, 4, 4, 16, 2)) == {"B": 18}


def heavy(layout: Layout, B: int) -> list[dict[Site, Tensor]]:
    """H2O's rule by hand: full matrices, one row and head at a time."""
    feed, steps = ScaleFeed(layout), scale_steps(layout)
    history: list[dict[Site, Tensor]] = [{} for _ in steps[:-1]]
    for site in SITES:
        keys = torch.cat([feed.at(step, site)[1] for step in steps], 2).double()
        for row in range(layout.rows):
            for head in range(layout.kv_heads):
                tokens: list[int] = []
                mass, queries = torch.zeros(layout.visual, dtype=torch.float64), torch.zeros(layout.visual, dtype=torch.float64)
                for step in steps[:-1]:
                    tokens = tokens + list(range(step.first, step.first + step.count))
                    group = layout.heads // layout.kv_heads
                    q = feed.at(step, site)[0][row, head * group : (head + 1) * group].double()
                    weights = (q @ keys[row, head, tokens].T * layout.head_dim**-0.5).softmax(-1)
                    mass[tokens] += weights.sum((0, 1))
                    queries[tokens] += step.count
                    ranked = sorted(tokens, key=lambda i: float(mass[i] / queries[i]), reverse=True)
                    tokens = sorted(ranked[:B])
                    table = history[step.index].setdefault(site, torch.zeros(layout.rows, layout.kv_heads, len(tokens), dtype=torch.int64))
                    table[row, head] = torch.tensor(tokens)
    return history


@pytest.mark.parametrize("kv_heads", [4, 1])
def test_heavy_hitters_are_those_with_most_mass_per_query(kv_heads: int) -> None:
    layout = layout_of(kv_heads)
    kept_after = contents_of(METHODS.get("h2o")(B=20), layout)[0]
    for contents, expected in zip(kept_after, heavy(layout, 20), strict=False):
        assert all(torch.equal(numbers.long().sort(-1).values, expected[site]) for site, numbers in contents.items())


def test_random_is_uniform_over_what_was_seen() -> None:
    """20 of the 55 tokens of five scales stay, in shares that follow from the draws alone.

    A token of the last scale takes part in one draw, B of live + own; earlier ones were thinned by earlier draws.
    """
    layout = layout_of(rows=200)
    contents = contents_of(METHODS.get("random")(B=20), layout)[0][4]
    shares = torch.stack([torch.nn.functional.one_hot(n.long(), 55).sum(-2).double().mean((0, 1)) for n in contents.values()]).mean(0)
    third, fourth = 20 / 30, 20 / 45  # 14 + 16 seen after the fourth scale, 20 + 25 after the fifth
    expected = torch.tensor([third * fourth] * 30 + [fourth] * 25, dtype=torch.float64)
    draws = 200 * layout.kv_heads * LAYERS
    assert ((shares - expected).abs() <= 5 * (expected * (1 - expected) / draws).sqrt()).all()


def test_random_differs_by_layer_head_and_sample_and_not_by_batch() -> None:
    layout = layout_of()
    contents = contents_of(METHODS.get("random")(B=20), layout)[0][4]
    first, second = contents[SITES[0]].sort(-1).values, contents[SITES[1]].sort(-1).values
    assert not torch.equal(first, second)
    assert not torch.equal(first[:, 0], first[:, 1])
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize(("scale", "now", "group"), [(0, 5, "condensed"), (1, 5, "condensed"), (2, 5, "intermediate"), (3, 5, "local"),
                                                     (4, 5, "local"), (5, 5, "own"), (1, 2, "condensed"), (2, 3, "local")])  # fmt: skip
def test_groups_of_scales(scale: int, now: int, group: str) -> None:
    assert ScaleGroups().group(scale, now) == group
