"""Guidance, truncation and sampling, against loops over single tokens."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from cachemark.cache import random_streams as streams
from cachemark.core.errors import Unsupported
from cachemark.core.spec import Sampling
from cachemark.models.sampling import draw, filter_logits, guide

MANY = streams.seeds_tensor(range(20000), "cpu")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_guidance_goes_beyond_the_condition_and_ends_behind_its_interval() -> None:
    for scale in (1.25, 4.0):
        logits = normal(4, 5)
        condition, null = logits[:2].double(), logits[2:].double()
        assert torch.allclose(guide(logits, Sampling(cfg_scale=scale), 3).double(), null + scale * (condition - null), atol=1e-5)
    for interval, guided in ((-1, range(9)), (0, range(2)), (4, range(6)), (20, range(9))):
        logits = normal(2, 5)
        everywhere, somewhere = Sampling(cfg_scale=2.0), Sampling(cfg_scale=2.0, cfg_interval=interval)
        for position in range(9):
            expected = guide(logits, everywhere, position) if position in guided else logits[:1]
            assert torch.equal(guide(logits, somewhere, position), expected), position
    with pytest.raises(Unsupported, match=r"'linear'.*constant"):
        guide(normal(2, 5), Sampling(cfg_scale=2.0, cfg_schedule="linear"), 0)


# Logits are whole multiples of 1/2, so that many tie; p is never a sum of their probabilities.
rows = st.lists(st.integers(-8, 8), min_size=1, max_size=9)


def kept_tokens(logits: torch.Tensor) -> list[int]:
    return logits[0].isfinite().nonzero()[:, 0].tolist()


@given(rows, st.integers(1, 12))
def test_top_k_keeps_ties_at_the_border(halves: list[int], k: int) -> None:
    logits = torch.tensor([halves]) / 2
    border = sorted(halves, reverse=True)[min(k, len(halves)) - 1]
    filtered = filter_logits(logits, Sampling(top_k=k))
    assert kept_tokens(filtered) == [i for i, half in enumerate(halves) if half >= border]
    assert torch.equal(filtered[filtered.isfinite()], logits[filtered.isfinite()])


@given(rows, st.floats(0.013, 0.987))
def test_top_p_keeps_the_token_that_crosses(halves: list[int], p: float) -> None:
    weights = [math.exp(half / 2) for half in halves]
    order = sorted(range(len(halves)), key=lambda i: -halves[i])  # of equal logits the first token goes last
    before, expected = 0.0, []
    for i in order:
        if abs(before - p) < 1e-6:
            return  # decided by rounding
        if before <= p:
            expected.append(i)
        before += weights[i] / sum(weights)
    assert kept_tokens(filter_logits(torch.tensor([halves]) / 2, Sampling(top_p=p))) == sorted(expected)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.5), Sampling(top_k=3), Sampling(top_p=0.6)])
def test_draws_follow_the_softmax(sampling: Sampling) -> None:
    logits = torch.tensor([[1.0, 0.0, -1.0, 0.5, -0.5]])
    expected = filter_logits(logits, sampling)[0].double().softmax(-1) * len(MANY)
    counts = draw(logits.expand(len(MANY), -1), sampling, MANY, 3).bincount(minlength=5).double()
    possible = expected > 0
    assert counts[~possible].sum() == 0
    squares = float(((counts - expected) ** 2 / expected)[possible].sum())
    freedom = int(possible.sum()) - 1
    assert squares < freedom + 4 * math.sqrt(2 * max(freedom, 1))


def test_a_draw_belongs_to_its_sample_and_position_and_candidates_share_their_noise() -> None:
    """Candidates with similar logits sample mostly equal tokens; with independent noise they would not."""
    logits = normal(1, 64).expand(200, -1)
    drawn = draw(logits, Sampling(), MANY[:200], 5)
    assert torch.equal(draw(logits, Sampling(), MANY[:200].flip(0), 5).flip(0), drawn)
    assert torch.equal(draw(logits[:3], Sampling(), MANY[7:10], 5), drawn[7:10])
    assert not torch.equal(draw(logits, Sampling(), MANY[:200], 6), drawn)
    logits = normal(500, 64)
    near = logits + 0.01 * normal(500, 64, seed=1)
    agree = (draw(logits, Sampling(), MANY[:500], 0) == draw(near, Sampling(), MANY[:500], 0)).double().mean()
    strangers = (draw(logits, Sampling(), MANY[:500], 0) == draw(near, Sampling(), MANY[500:1000], 0)).double().mean()
    assert agree > 0.95
    assert strangers < 0.2
