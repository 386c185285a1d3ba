"""Decoders keep the distribution of sequential decoding: 150 000 samples of a toy model."""

import itertools
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.contract.decoder import Decoder
from cachemark.decoders.scd import SCD
from cachemark.decoders.sjd import SJD
from cachemark.decoders.speculative import DraftWindow

from .toy import LAYOUT, PLACES, distribution, drawn, most, off

DRAWS, BOUND = 150_000, 3.0  # words, and standard deviations of χ² that chance is allowed
DECODERS: dict[str, Callable[..., Decoder]] = {
    "sjd": SJD, "reused": partial(SJD, reuse=0.5), "gumbel": SCD, "maximal": partial(SCD, coupling="maximal"),
}  # fmt: skip
SEEDS = torch.arange(DRAWS)
# Window, proposals, and the position of an eviction that the window looks past; 0 without.
DRAFTS = [(2, "newest", 0), (3, "uniform", 0), (4, "newest", 0), (4, "left", 0), (3, "newest", 2), (4, "newest", 3), (5, "newest", 4)]
DAILY = [(name, 4, "newest", edge, 2) for name, edge in zip(DECODERS, (3, 0, 3, 0), strict=True)]


def deviation(name: str, make: Callable[..., Decoder], together: int = 1, edge: int = 0, draws: int = DRAWS) -> float:
    """Return how many standard deviations off the words of a decoder are; they must take fewer passes than they have places."""
    sample = drawn(make, SEEDS[:draws], together, edge)
    print(f"{name} past {edge}, {together}: {off(sample.words):.2f} σ, {sample.passes.double().mean():.3f} passes")
    assert sample.passes.double().mean() < PLACES
    return off(sample.words)


@pytest.mark.parametrize(("name", "window", "proposals", "edge", "together"), [
    pytest.param(*case, marks=[] if case in DAILY else [pytest.mark.slow])
    for case in ((name, *drafts, together) for name, drafts, together in itertools.product(DECODERS, DRAFTS, (1, 2)))])
def test_the_distribution_is_kept(name: str, window: int, proposals: str, edge: int, together: int) -> None:
    make = partial(DECODERS[name], window=window, proposals=proposals)
    assert abs(deviation(f"{name} {window} {proposals}", make, together, edge)) < BOUND


class Decided(SJD):
    """Faulty: accepts drafts after an eviction by the distribution before it."""

    def judge(self, known: int, logits: Tensor, tokens: Tensor) -> int:
        allowed, self.most = self.most, logits.size(1)
        accepted = super().judge(known, logits, tokens)
        self.most = allowed
        return accepted


class Retested(SJD):
    """Faulty: tests accepted tokens again while another image of the batch waits."""

    def judge(self, known: int, logits: Tensor, tokens: Tensor) -> int:
        accepted = super().judge(known, logits, tokens)
        self.reached, self.final = self.final, torch.zeros_like(self.final)
        return accepted

    def remembered(self, tested: DraftWindow) -> Tensor:
        return torch.where(tested.right.cumprod(1).bool()[..., None], tested.q, tested.p)


def remembering(base: type[Decoder], remembered: Callable[[Decoder, DraftWindow], Tensor]) -> type[Decoder]:
    return type("Remembering", (base,), {"remembered": remembered})


# Faulty: keeps a draft's old distribution after the first rejection, as the published code does, or takes drafts as drawn from p.
OLD = remembering(SCD, lambda self, tested: torch.where(tested.right[..., None], tested.q, tested.p))
DRAWN_FROM_NOW = remembering(SJD, lambda self, tested: tested.p)


@pytest.mark.parametrize(("make", "together", "edge", "draws"), [  # in no more words than it takes
    (partial(Decided, window=4, proposals="newest"), 1, 3, 10_000),
    (partial(OLD, window=4, proposals="newest", coupling="maximal"), 1, 0, 50_000),
    (partial(DRAWN_FROM_NOW, window=4, proposals="newest", reuse=0.5), 1, 0, 75_000),
    (partial(Retested, window=4), 2, 0, DRAWS),
    (partial(SJD, window=4, proposals="newest", group=2), 2, 0, 50_000),  # not faulty: groups are approximate, and say so
])
def test_another_distribution_is_found_out(make: Callable[..., Decoder], together: int, edge: int, draws: int) -> None:
    assert deviation(str(make), make, together, edge, draws) > BOUND


@pytest.mark.parametrize(("name", "together"), [(name, 1 + number % 2) for number, name in enumerate([*DECODERS, "grouped"])])
def test_generations_side_by_side_are_those_of_each_alone(name: str, together: int) -> None:
    """The counts rely on batches that equal single generations."""
    assert (SJD().keeps, SJD(group=2).keeps, SJD(reuse=1.0).keeps) == ("distribution", "", "distribution")
    make = DECODERS.get(name) or partial(SJD, group=2)
    sample = drawn(partial(make, window=4, proposals="newest"), SEEDS[:24], together)
    for first in range(0, 24, together):
        decoder = make(window=4, proposals="newest")
        assert torch.equal(alone(decoder, SEEDS[first : first + together]), sample.words[first : first + together])
        assert {len(decoder.kept)} == set(sample.passes[first : first + together].tolist())


def alone(decoder: Decoder, seeds: Tensor) -> Tensor:
    """Run one generation as the models' loop does."""
    decoder.begin(LAYOUT, seeds, greedy=False, memory=Memory())
    tokens, known, count = torch.zeros(len(seeds), PLACES, dtype=torch.int64), 0, 1
    while known < PLACES:
        decoder.most = most(known, count, 0)
        accepted = decoder.judge(known, distribution(known, count, tokens), tokens)
        decoder.note(count, accepted)
        known += accepted
        count = min(decoder.reach, PLACES - known)
        decoder.propose(known, count, tokens)
    return tokens
