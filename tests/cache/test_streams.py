"""Random streams against Python's unbounded integers and SplitMix64's published outputs."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from cachemark.cache import random_streams as streams

MASK, GOLDEN = (1 << 64) - 1, 0x9E3779B97F4A7C15
PURPOSES = {"token": 1, "evict": 2, "order": 3, "noise": 4, "time": 5, "draft": 6, "coin": 7,
            "residual": 8}  # a number once given stays: results are stored
KEYS = streams.keys(torch.arange(256), "token", torch.arange(64)[:, None])  # neighbours in seed and position, as in use


def mix(x: int) -> int:
    x &= MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def key_of(seed: int, purpose: str, position: int, branch: int = 0, inner: int = 0) -> int:
    key = mix(seed + GOLDEN)
    for word in (PURPOSES[purpose], branch, position, inner):
        key = mix((key ^ word) + GOLDEN)
    return key


small = st.integers(0, 5000)


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from(sorted(PURPOSES)), small, st.integers(0, 1), small)
def test_every_key_is_that_of_the_unbounded_integers(seed: int, purpose: str, position: int, branch: int, inner: int) -> None:
    key = streams.keys(torch.tensor([seed]), purpose, position, branch=branch, inner=inner)
    expected = [mix(key_of(seed, purpose, position, branch, inner) + number * GOLDEN) >> 32 for number in range(1, 10)]
    assert streams.integers(key, 9)[0].tolist() == expected


def test_the_counter_is_splitmix64_and_a_number_belongs_to_its_sample_branch_and_position() -> None:
    """The five outputs for seed 1234567 by which implementations of SplitMix64 are commonly checked."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert streams.integers(torch.tensor(1234567), 5).tolist() == [value >> 32 for value in published]
    batch = streams.integers(streams.keys(torch.tensor([3, 1, 2]), "token", 5), 4)
    assert torch.equal(batch[2], streams.integers(streams.keys(torch.tensor([2]), "token", 5), 4)[0])
    assert torch.equal(batch[:, :2], streams.integers(streams.keys(torch.tensor([3, 1, 2]), "token", 5), 2))
    of_tensors = streams.keys(torch.tensor([4, 4]), "evict", torch.tensor([7, 8]), branch=torch.tensor([0, 1]))
    assert [value & MASK for value in of_tensors.tolist()] == [key_of(4, "evict", 7), key_of(4, "evict", 8, branch=1)]


@given(st.integers(1, 1 << 31))
def test_below_is_the_high_word_of_a_product(bound: int) -> None:
    values = streams.below(KEYS[0], 4, bound)
    assert values.dtype == torch.int64
    assert values[0].tolist() == [value * bound >> 32 for value in streams.integers(KEYS[0], 4)[0].tolist()]


def test_uniform_numbers_lie_strictly_inside_and_those_of_neighbouring_keys_and_counters_are_uncorrelated() -> None:
    values = streams.uniform(KEYS, 8).double() - 0.5
    sides = {"counter": (values[..., 1:], values[..., :-1]), "seed": (values[:, 1:], values[:, :-1]), "position": (values[1:], values[:-1])}
    for name, (first, other) in sides.items():
        assert abs(float((first * other).mean() * 12)) < 4 / math.sqrt(first.numel()), name
    values = streams.uniform(KEYS, 64)
    assert values.dtype == torch.float32
    assert 0 < float(values.min()) < 1e-4
    assert 1 - 1e-4 < float(values.max()) < 1
    counts = (values * 50).long().flatten().bincount(minlength=50).double()
    squares = ((counts - counts.mean()) ** 2 / counts.mean()).sum()  # of mean 49 and variance 98
    assert abs(float(squares) - 49) < 4 * math.sqrt(98)
    odd = values.double() * 2**24
    assert torch.equal(odd, odd.round())
    assert (odd % 2 == 1).all()


def test_gumbel_numbers_are_those_of_the_uniform_ones_and_finite_at_the_extremes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.testing.assert_close(streams.gumbel(KEYS, 4).double(), -(-streams.uniform(KEYS, 4).double().log()).log(), rtol=1e-4, atol=1e-5)
    for integer, u in ((0, 2.0**-24), ((1 << 32) - 1, 1 - 2.0**-24)):
        monkeypatch.setattr(streams, "integers", lambda key, count, integer=integer: torch.full((*key.shape, count), integer))
        assert float(streams.gumbel(torch.tensor([1]), 1)) == pytest.approx(-math.log(-math.log(u)), rel=1e-5)
