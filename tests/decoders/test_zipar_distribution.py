"""ZipAR changes the distribution of sequential decoding: 150 000 samples of a toy image of three lines."""

import itertools
from functools import cache

import pytest
import torch
from torch import Tensor

from cachemark.cache import random_streams as streams
from cachemark.cache.layout import Layout
from cachemark.decoders.zipar import ZipAR

from .test_distribution import BOUND, DRAWS, SEEDS
from .toy import deviation

SIDE, LETTERS = 3, 2
PLACES = SIDE**2
LAYOUT = Layout("next-token", (1,), SIDE, SIDE, 1, 1, 1, 1)
WORDS = torch.tensor(list(itertools.product(range(LETTERS), repeat=PLACES)))
MADE = torch.Generator().manual_seed(1)
BIAS = torch.randn(PLACES, LETTERS, generator=MADE)
WEIGHTS = torch.randn(PLACES, PLACES, LETTERS, LETTERS, generator=MADE)  # of a position, an entry's position, and the entry's letter


def log_probabilities(place: int, entries: dict[int, Tensor]) -> Tensor:
    """Return those of a position (words, letters), given the letters of the entries before it."""
    return (BIAS[place] + sum(WEIGHTS[place, other, letters] for other, letters in entries.items() if other < place)).log_softmax(-1)


@cache
def expected() -> Tensor:
    result = torch.zeros(len(WORDS), dtype=torch.float64)
    for place in range(PLACES):
        given = log_probabilities(place, {other: WORDS[:, other] for other in range(place)}).expand(len(WORDS), -1)
        result += given.gather(1, WORDS[:, place : place + 1])[:, 0].double()
    return result.exp()


def drawn(decoder: ZipAR) -> Tensor:
    """Decode a word (images, positions) per seed by the decoder's schedule."""
    words, entries = torch.zeros(DRAWS, PLACES, dtype=torch.int64), dict[int, Tensor]()
    for front in decoder.schedule(LAYOUT):
        for place in front.replaces:
            del entries[place]
        entries |= {place: words[:, token].clone() for place, token in zip(front.step.places, front.takes, strict=True)}
        for place in front.draws:
            noise = streams.gumbel(streams.keys(SEEDS, "token", place), LETTERS)
            words[:, place] = (log_probabilities(place, entries) + noise).argmax(-1)
    return words


@pytest.mark.parametrize(("window", "same"), [(SIDE, True), (2, False)])
def test_the_distribution_is_kept_by_a_window_as_wide_as_a_line_alone(window: int, same: bool) -> None:
    numbers = (drawn(ZipAR(window=window)) * LETTERS ** torch.arange(PLACES - 1, -1, -1)).sum(1)
    off = deviation(numbers.bincount(minlength=len(WORDS)).double(), expected() * DRAWS)
    print(f"zipar {window}: {off:.2f} σ")
    assert (abs(off) < BOUND) == same
