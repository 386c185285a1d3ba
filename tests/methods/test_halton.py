"""Halton: the sequence, the tokens of each step, starts by seed, and the comparison with fewer steps of the sample's own order.

The published code's orders and counts are vectors of ``tests/conformance``.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.masked_layout import MaskedLayout, cosine_counts
from cachemark.core.spec import Sampling
from cachemark.kit.masked import CONFIG, SAMPLING, SEEDS, model
from cachemark.methods.fewer_steps import FewerSteps
from cachemark.methods.full import Full
from cachemark.methods.halton import Halton, arccos_counts, halton_order
from cachemark.models.mar import SIZES
from cachemark.roofline.flops_budget import share

LABELS = torch.tensor([seed % CONFIG.classes for seed in SEEDS])


def layout(steps: int = 64) -> MaskedLayout:
    return SIZES["B"].layout([0], Sampling(cfg_scale=3.0, steps=steps))


def order_of(seeds: tuple[int, ...], **parameters: Any) -> Tensor:
    """Return the positions in the order in which they are predicted, (batch, N)."""
    method = Halton(**parameters)
    method.begin(model().layout(seeds, SAMPLING), model().sites, Memory())
    return method.ordered(model().order(torch.tensor(seeds))).flip(1)


def generated(method: Any, **options: Any) -> Tensor:
    return model().generate(LABELS, SEEDS, method, SAMPLING, Memory(), **options)


# -- the sequence -----------------------------------------------------------------------------------------------------
def mirrored(number: int, base: int) -> Fraction:
    """Return the radical inverse: digit k behind the point is digit k of the number, the least significant first."""
    inverse, weight = Fraction(0), Fraction(1, base)
    while number:
        inverse, number, weight = inverse + number % base * weight, number // base, weight / base
    return inverse


@pytest.mark.parametrize(("lines", "line"), [(6, 6), (5, 7)])
def test_positions_are_those_that_the_points_of_the_sequence_visit_first(lines: int, line: int) -> None:
    visited = [(math.floor(lines * mirrored(point, 2)), math.floor(line * mirrored(point, 3))) for point in range(1, 3000)]
    first = sorted({cell: len(visited) - at for at, cell in enumerate(reversed(visited))}.items(), key=lambda entry: entry[1])
    assert halton_order(lines, line) == tuple(row * line + column for (row, column), _ in first)
    assert sorted(halton_order(lines, line)) == list(range(lines * line))


def spread(places: Tensor) -> float:
    """Return the mean distance to the nearest other position, on a grid of 16 × 16."""
    points = torch.stack((places // 16, places % 16), 1).double()
    return float((torch.cdist(points, points) + 99 * torch.eye(len(points))).min(1).values.mean())


def test_the_first_positions_are_farther_apart_than_random_ones() -> None:
    """By an independent count on the published code's order, and on 200 random orders."""
    for count, expected, random in ((8, 4.35, 3.38), (64, 1.45, 1.25)):
        assert spread(torch.tensor(halton_order(16, 16))[:count]) == pytest.approx(expected, abs=0.005)
        draw = torch.Generator().manual_seed(0)
        mean = sum(spread(torch.randperm(256, generator=draw)[:count]) for _ in range(200)) / 200
        assert mean == pytest.approx(random, rel=0.05)


# -- what is predicted in each step -----------------------------------------------------------------------------------
@pytest.mark.parametrize("parameters", [{}, {"rate": "arccos"}, {"rate": "arccos", "steps": 5, "roll": True}])
def test_a_step_predicts_the_next_positions_of_the_sequence(parameters: dict[str, Any]) -> None:
    seen: list[Tensor] = []
    generated(Halton(**parameters), see=lambda places, tokens: seen.append(places))
    steps = parameters.get("steps", CONFIG.steps)
    expected = arccos_counts(CONFIG.tokens, steps) if "rate" in parameters else cosine_counts(CONFIG.tokens, steps)
    parts = order_of(SEEDS, roll=parameters.get("roll", False)).split(list(expected), 1)
    assert all(torch.equal(places, part.sort(1).values) for places, part in zip(seen, parts, strict=True))


def test_the_authors_schedule_predicts_every_token_once() -> None:
    for tokens in (36, 64, 256):
        for steps in range(1, tokens + 1):
            counts = arccos_counts(tokens, steps)
            assert (len(counts), sum(counts), min(counts) >= 1) == (steps, tokens, True)
    assert arccos_counts(256, 32)[-1] == 41


def test_rolled_images_start_at_points_of_their_own() -> None:
    plain, rolled = order_of((5, 11, 23)), order_of((5, 11, 23), roll=True)
    assert (plain == plain[0]).all()
    starts = [plain[0].tolist().index(int(row[0])) for row in rolled]
    assert len(set(starts)) == 3
    assert all(torch.equal(row, plain[0].roll(-start)) for row, start in zip(rolled, starts, strict=True))
    assert torch.equal(order_of((23, 5), roll=True), rolled[[2, 0]]), "the start does not depend on the batch"


def test_starts_are_spread_over_the_sequence() -> None:
    starts = order_of(tuple(range(360)), roll=True)[:, 0]
    assert len(starts.unique()) == CONFIG.tokens, "each of 36 starts is met 10 times on average"


# -- beside fewer steps -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("steps", [3, CONFIG.steps])
def test_the_samples_order_at_mars_rate_is_fewer_steps(steps: int) -> None:
    own = generated(Halton(steps=steps, order="sample"))
    assert torch.equal(own, generated(FewerSteps(steps)))
    assert not torch.equal(own, generated(Halton(steps=steps)))


def test_images_of_a_seed_have_the_same_noise_in_any_order() -> None:
    """In one step all tokens have the condition of an empty image, so the order makes no difference."""
    assert torch.equal(generated(Halton(steps=1)), generated(FewerSteps(1)))
    assert not torch.allclose(generated(Halton()), generated(Full()), atol=1e-2)


def test_the_authors_rate_in_all_of_few_steps_has_the_whole_budget() -> None:
    """It computes a little more than the full model."""
    method, shape = Halton(rate="arccos"), layout(4)
    assert (share(method, shape) > 1, method.own_budget(shape)) == (True, 1)


def test_only_the_sequence_changes_the_order() -> None:
    assert (Halton().reorders, Halton(order="sample", rate="arccos").reorders) == (True, False)
