"""Acceptance rules of decoders: against decisions of the released code, and against exact fractions."""

from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cachemark.decoders import rules

from .checks import Vector

GROUP, GAP, DISTANCE = 14, 0.15, 0.5  # of the released GSD
Law = tuple[Fraction, ...]


@pytest.fixture(scope="module")
def golden() -> Vector:
    return Vector.load(Path(__file__).parent / "decoders" / "golden_rules.safetensors")


# -- the released code --------------------------------------------------------------------------------------------------
def kept(right: Tensor) -> list[int]:
    """Return how many tokens the windows accept: the drafts before the first rejected one, and the model's own."""
    return (1 + right.cumprod(1).sum(1)).tolist()


def windows(golden: Vector) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return coins, p, q, drafts and ranked scores, each aligned with the drafts."""
    return (golden["coins"][:, 1:], golden["p"][:, :-1], golden["q"][:, 1:], golden["drafts"].long()[:, 1:], golden["rank_by"][:, :-1])


@pytest.mark.parametrize(("size", "gap", "distance", "differing"), [
    (GROUP, GAP, DISTANCE, 0), (GROUP, 2.0, DISTANCE, 12), (GROUP, GAP, float("inf"), 7), (0, GAP, DISTANCE, 15),
])  # fmt: skip
def test_groups_decide_as_the_released_gsd(golden: Vector, size: int, gap: float, distance: float, differing: int) -> None:
    """A rule without one of its parts decides other windows otherwise."""
    coins, p, q, drafts, scores = windows(golden)
    group = rules.group_of(scores, p, drafts, size, gap) & (golden["distance"][drafts] < distance)
    accepted = kept(rules.group_accepted(coins, p, q, group))
    assert sum(a != b for a, b in zip(accepted, golden["gsd/kept"].tolist(), strict=True)) == differing


def test_the_released_gsd_accepts_a_token_that_top_k_excludes(golden: Vector) -> None:
    """The decoder rejects it, so that images keep to top-k and to the format of the model."""
    coins, p, q, drafts, scores = windows(golden)
    group = rules.group_of(scores, p, drafts, GROUP, GAP) & (golden["distance"][drafts] < DISTANCE)
    right, possible = rules.group_accepted(coins, p, q, group), p.gather(-1, drafts[..., None])[..., 0] > 0
    assert int((right & ~possible).sum()) == 1
    assert sum(a != b for a, b in zip(kept(right & possible), golden["gsd/kept"].tolist(), strict=True)) == 1


def test_a_group_of_one_decides_as_the_released_sjd(golden: Vector) -> None:
    coins, p, q, drafts, scores = windows(golden)
    assert kept(rules.group_accepted(coins, p, q, rules.group_of(scores, p, drafts, 0, GAP))) == golden["sjd/kept"].tolist()
# -- exact fractions ----------------------------------------------------------------------------------------------------
P: Law = tuple(Fraction(n, 20) for n in (9, 1, 6, 0, 4))
Q: Law = tuple(Fraction(n, 20) for n in (3, 8, 4, 5, 0))


def scaled(weights: Law) -> Law:
    return tuple(weight / sum(weights) for weight in weights) if sum(weights) else weights


@pytest.mark.parametrize("ratio", [Fraction(1, 2), Fraction(1), Fraction(2)])
def test_reused_drafts_have_the_distribution_that_is_noted(ratio: Fraction) -> None:
    law = [Fraction(0)] * len(P)
    for draft, weight in enumerate(Q):
        for token in range(len(P)):
            law[token] += weight * ((token == draft) if P[draft] > ratio * weight else P[token])
    p, q = (torch.tensor([float(weight) for weight in given], dtype=torch.float64) for given in (P, Q))
    assert rules.reused_distribution(p, q, float(ratio)).tolist() == pytest.approx([float(weight) for weight in law])
    assert tuple(law) != P
    drafts = torch.arange(len(P))
    stays = rules.reused(p.expand(len(P), -1), q.expand(len(P), -1), drafts, float(ratio))
    assert stays.tolist() == [P[draft] > ratio * Q[draft] for draft in range(len(P))]
