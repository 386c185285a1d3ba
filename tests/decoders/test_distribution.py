"""Decoders keep the distribution of sequential decoding: 150 000 samples of a toy model."""

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
GRID = [(*drafts, together) for drafts in ((2, "newest"), (3, "uniform"), (4, "newest"), (4, "left")) for together in (1, 2)]
DAILY = 4, "newest", 2


@pytest.mark.parametrize(("window", "proposals", "together"),
                         [pytest.param(*case, marks=[] if case == DAILY else [pytest.mark.slow]) for case in GRID])
@pytest.mark.parametrize("name", DECODERS)
def test_the_distribution_is_kept(name: str, window: int, proposals: str, together: int) -> None:
    sample = drawn(partial(DECODERS[name], window=window, proposals=proposals), SEEDS, together)
    print(f"{name} {window} {proposals} {together}: {off(sample.words):.2f} σ, {sample.passes.double().mean():.3f} passes")
    assert abs(off(sample.words)) < BOUND
    assert sample.passes.double().mean() < PLACES


DAILY_AHEAD = [(name, 4, 3, 2) for name in ("sjd", "gumbel", "maximal")]
AHEAD = [(name, window, edge, together) for name in DECODERS for window, edge in ((3, 2), (4, 3), (5, 4)) for together in (1, 2)]


@pytest.mark.parametrize(("name", "window", "edge", "together"), [
    pytest.param(*case, marks=[] if case in DAILY_AHEAD else [pytest.mark.slow]) for case in AHEAD])
def test_the_distribution_is_kept_by_windows_that_look_past_an_eviction(name: str, window: int, edge: int, together: int) -> None:
    sample = drawn(partial(DECODERS[name], window=window, proposals="newest"), SEEDS, together, edge)
    print(f"{name} {window} past {edge}, {together}: {off(sample.words):.2f} σ, {sample.passes.double().mean():.3f} passes")
    assert abs(off(sample.words)) < BOUND
    assert sample.passes.double().mean() < PLACES


class Decided(SJD):
    """Faulty: accepts drafts after an eviction by the distribution before it."""

    def judge(self, known: int, logits: Tensor, tokens: Tensor) -> int:
        allowed, self.most = self.most, logits.size(1)
        accepted = super().judge(known, logits, tokens)
        self.most = allowed
        return accepted


def test_what_is_decided_before_an_eviction_is_found_out() -> None:
    sample = drawn(partial(Decided, window=4, proposals="newest"), SEEDS, edge=3)
    print(f"decided past 3: {off(sample.words):.1f} σ")
    assert off(sample.words) > BOUND


class OldDistribution(SCD):
    """Faulty: keeps a draft's old distribution after the first rejection, as the published code does."""

    def remembered(self, tested: DraftWindow) -> Tensor:
        return torch.where(tested.right[..., None], tested.q, tested.p)


@pytest.mark.parametrize(("window", "proposals"), [pytest.param(3, "uniform", marks=pytest.mark.slow), (4, "newest")])
def test_maximal_coupling_with_the_old_distribution_is_found_out(window: int, proposals: str) -> None:
    sample = drawn(partial(OldDistribution, window=window, proposals=proposals, coupling="maximal"), SEEDS)
    print(f"old distribution, {window} {proposals}: {off(sample.words):.1f} σ")
    assert off(sample.words) > BOUND


class DrawnFromNow(SJD):
    """Faulty: takes drafts that stay as drawn from p."""

    def remembered(self, tested: DraftWindow) -> Tensor:
        return tested.p


@pytest.mark.parametrize(("ratio", "window"), [pytest.param(1.0, 3, marks=pytest.mark.slow), (0.5, 4)])
def test_reused_drafts_with_the_distribution_of_new_ones_are_found_out(ratio: float, window: int) -> None:
    sample = drawn(partial(DrawnFromNow, window=window, proposals="newest", reuse=ratio), SEEDS)
    print(f"reused as new, {ratio} {window}: {off(sample.words):.1f} σ, {sample.passes.double().mean():.3f} passes")
    assert off(sample.words) > BOUND


@pytest.mark.parametrize(("window", "proposals", "together"), [pytest.param(3, "uniform", 1, marks=pytest.mark.slow), DAILY])
def test_groups_change_the_distribution(window: int, proposals: str, together: int) -> None:
    sample = drawn(partial(SJD, window=window, proposals=proposals, group=2), SEEDS, together)
    print(f"groups of 2, {window} {proposals} {together}: {off(sample.words):.1f} σ, {sample.passes.double().mean():.3f} passes")
    assert off(sample.words) > BOUND
    assert (SJD().keeps, SJD(group=2).keeps, SJD(reuse=1.0).keeps) == ("distribution", "", "distribution")


class Retested(SJD):
    """Faulty: tests accepted tokens again while another image of the batch waits."""

    def judge(self, known: int, logits: Tensor, tokens: Tensor) -> int:
        accepted = super().judge(known, logits, tokens)
        self.reached, self.final = self.final, torch.zeros_like(self.final)
        return accepted

    def remembered(self, tested: DraftWindow) -> Tensor:
        return torch.where(tested.right.cumprod(1).bool()[..., None], tested.q, tested.p)


@pytest.mark.slow
@pytest.mark.parametrize(("together", "wrong"), [(1, False), (2, True)])
def test_two_images_that_are_tested_again_are_found_out(together: int, wrong: bool) -> None:
    sample = drawn(partial(Retested, window=4), SEEDS, together)
    print(f"tested again, {together}: {off(sample.words):.1f} σ")
    assert (off(sample.words) > BOUND) == wrong


@pytest.mark.parametrize(("name", "together"), [(name, 1 + number % 2) for number, name in enumerate([*DECODERS, "grouped"])])
def test_generations_side_by_side_are_those_of_each_alone(name: str, together: int) -> None:
    """The counts rely on batches that equal single generations."""
    make = DECODERS.get(name) or partial(SJD, group=2)
    sample = drawn(partial(make, window=4, proposals="newest"), SEEDS[:60], together)
    for first in range(0, 60, together):
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
