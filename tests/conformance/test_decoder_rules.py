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


def kept(right: Tensor) -> list[int]:
    """Return how many tokens the windows accept: the drafts before the first rejected one, and the model's own."""
    return (1 + right.cumprod(1).sum(1)).tolist()


def test_groups_decide_as_the_released_gsd_and_a_group_of_one_as_the_released_sjd() -> None:
    """A rule without one of its parts decides other windows otherwise. A token that top-k excludes is rejected by the decoder alone."""
    golden = Vector.load(Path(__file__).parent / "decoders" / "golden_rules.safetensors")
    coins, drafts = golden["coins"][:, 1:], golden["drafts"].long()[:, 1:]  # all aligned with the drafts
    p, q, scores = golden["p"][:, :-1], golden["q"][:, 1:], golden["rank_by"][:, :-1]

    def decided(size: int, gap: float, distance: float) -> Tensor:
        group = rules.group_of(scores, p, drafts, size, gap) & (golden["distance"][drafts] < distance)
        return rules.group_accepted(coins, p, q, group)

    def differing(right: Tensor, released: str = "gsd/kept") -> int:
        return sum(a != b for a, b in zip(kept(right), golden[released].tolist(), strict=True))

    for size, gap, distance, others in (
        (GROUP, GAP, DISTANCE, 0), (GROUP, 2.0, DISTANCE, 12), (GROUP, GAP, float("inf"), 7), (0, GAP, DISTANCE, 15),
    ):  # fmt: skip
        assert differing(decided(size, gap, distance)) == others
    assert differing(decided(0, GAP, float("inf")), "sjd/kept") == 0
    right, possible = decided(GROUP, GAP, DISTANCE), p.gather(-1, drafts[..., None])[..., 0] > 0
    assert (int((right & ~possible).sum()), differing(right & possible)) == (1, 1)


# -- exact fractions ----------------------------------------------------------------------------------------------------
P: Law = tuple(Fraction(n, 20) for n in (9, 1, 6, 0, 4))
Q: Law = tuple(Fraction(n, 20) for n in (3, 8, 4, 5, 0))


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
