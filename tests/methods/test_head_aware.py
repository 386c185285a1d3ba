"""HACK and HACK++ against their rules written once more, one head and one token at a time, and their budgets."""

import itertools
import statistics
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Site, Step, scale_steps
from cachemark.kit.driver import tokens_by_head
from cachemark.kit.next_scale import SIDES, ScaleFeed, layout_of
from cachemark.methods.base import calibrations
from cachemark.methods.base.head_aware import HeadAware, HeadClasses
from cachemark.methods.hack import HACK
from cachemark.methods.hackpp import HACKPlusPlus, RelianceBudgets, reliance_of
from contracts.scales import made

TOKENS = [side**2 for side in SIDES]
BEFORE = [sum(TOKENS[:scale]) for scale in range(len(TOKENS))]


def scale_of(token: int) -> int:
    return max(scale for scale, first in enumerate(BEFORE) if first <= token)


class ByHand:
    """The rules, from all tokens that were ever fed to one head of one row."""

    def __init__(self, method: HeadAware, feed: ScaleFeed, site: Site, row: int, head: int) -> None:
        self.method, self.feed, self.site, self.row, self.head = method, feed, site, row, head
        self.contextual = method.classes.contextual[site.layer][head]
        self.held: list[int] = []

    def fed(self, step: Step, part: int) -> Tensor:
        steps = scale_steps(layout_of())[: step.index + 1]
        return torch.cat([self.feed.at(s, self.site)[part] for s in steps], 2)[self.row, self.head].double()

    def score(self, step: Step, tokens: list[int]) -> list[float]:
        q = self.feed.at(step, self.site)[0][self.row, self.head].double()
        queries = [int((i + 0.5) * step.count / min(32, step.count)) for i in range(min(32, step.count))]
        weights = (q[queries] @ self.fed(step, 1)[tokens].T / 4).softmax(-1)
        if isinstance(self.method, HACK):
            always = [t for t in tokens if t < 5 or (t >= step.first and 5 + step.count <= self.method.large)]
            return [torch.inf if t in always and not self.contextual else score
                    for t, score in zip(tokens, weights.sum(0).tolist(), strict=True)]
        if self.contextual:
            mean = weights.mean(0).tolist()
            return [max(mean[max(0, at - 2) : at + 3]) for at in range(len(tokens))]
        factor = calibrations.named("hackpp", self.method.calibration)[1]["mass"][self.site.layer][self.head][step.index]
        return [factor[scale_of(t)] / TOKENS[scale_of(t)] * float(self.fed(step, 2)[t].norm()) for t in tokens]

    def budgets(self, step: Step) -> tuple[int, int]:
        """Most entries that are visible, and that are kept."""
        if isinstance(self.method, HACK):
            return (self.method.small if self.contextual else self.method.large,) * 2
        kept = 91 if step.last else self.method.plan.retained[step.index + 1][self.site.layer, self.contextual]
        return self.method.attention_budget, kept

    def step(self, step: Step) -> tuple[Tensor, bool, bool]:
        """Return the head's answer, and whether entries were hidden and dropped."""
        tokens, (attention, cache) = [*self.held, *range(step.first, step.first + step.count)], self.budgets(step)
        score = dict(zip(tokens, self.score(step, tokens), strict=True))
        ranked = sorted(tokens, key=lambda t: (-score[t], t))
        visible, self.held = sorted(ranked[:attention]), sorted(ranked[:cache])
        q = self.feed.at(step, self.site)[0][self.row, self.head].double()
        answer = (q @ self.fed(step, 1)[visible].T / 4).softmax(-1) @ self.fed(step, 2)[visible]
        return answer, len(tokens) > attention, not step.last and len(tokens) > cache


@pytest.mark.parametrize(("cls", "eleventh", "parameters", "fewer"), [
    (HACK, 5, {}, "both"), (HACK, 8, {}, "both"), (HACKPlusPlus, 5, {}, "kept"), (HACKPlusPlus, 5, {"attention_budget": 30}, "both"),
    (HACKPlusPlus, 8, {"attention_budget": 16}, "both")])  # fmt: skip
def test_every_head_keeps_and_sees_what_the_rules_say(cls: type[HeadAware], eleventh: int, parameters: dict[str, Any], fewer: str) -> None:
    layout = layout_of()
    method = cls.build({**made(cls, budget=Fraction(eleventh, 11)).parameters(), **parameters})
    feed, sites = ScaleFeed(layout), [Site("decoder", layer) for layer in range(layout.layers)]
    method.begin(layout, sites, Memory())
    heads = {(site, row, head): ByHand(method, feed, site, row, head)
             for site in sites for row in range(layout.rows) for head in range(layout.kv_heads)}  # fmt: skip
    hidden = dropped = 0
    for step in scale_steps(layout):
        for site in sites:
            out = method.attend(site, step, *feed.at(step, site))
            for (_, row, head), rule in ((where, rule) for where, rule in heads.items() if where[0] == site):
                answer, hides, drops = rule.step(step)
                assert (out[row, head].double() - answer).abs().max() < 1e-5
                hidden, dropped = hidden + hides, dropped + drops
                if not step.last:
                    assert tokens_by_head(method.ragged[site])[head][row].tolist() == rule.held
        method.end_step(step)
    assert dropped > 20
    assert hidden > 20 or fewer == "kept"


def test_the_lowest_variance_is_contextual_and_budgets_of_hack_meet_their_mean() -> None:
    """No head has more than all 91 tokens; the others get what it leaves."""
    assert HeadClasses.by_variance([[0.1, 0.1], [0.1, 0.1]], 0.5).contextual == ((True, True), (False, False)), "the lower layer first"
    classes = HeadClasses.by_variance([[0.5, 0.1], [0.1, 0.9]], 0.5)
    assert classes.contextual == ((False, True), (True, False))
    for mean, expected in ((10, (5, 15)), (60, (30, 90)), (80, (69, 91)), (91, (91, 91))):
        assert classes.budgets(mean, Fraction(1, 2), sum(TOKENS)) == expected


def test_reliance_is_what_later_scales_look_at_and_decides_budgets() -> None:
    """Token by token: every later scale's mean of what the tokens before it receive."""
    mass = calibrations.named("hackpp", made(HACKPlusPlus).calibration)[1]["mass"]
    reliance = reliance_of(mass, TOKENS)
    for layer, head, scale in itertools.product(range(3), range(4), range(len(TOKENS))):
        means = [statistics.fmean(mass[layer][head][later][scale_of(t)] / TOKENS[scale_of(t)] for t in range(BEFORE[later]))
                 for later in range(scale + 1, len(TOKENS))]
        assert reliance[layer][head][scale] == pytest.approx(sum(means), abs=1e-12)
    assert reliance[0][0][-1] == 0, "nothing comes behind the last scale"
    # shares are in proportion to it: two layers of two heads of one class each, 3 to 1 of 40 entries, unless there are only 13
    classes = HeadClasses(((True, True), (False, False)))
    by_hand = (((3.0,) * 3,) * 2, ((1.0,) * 3,) * 2)
    rows = RelianceBudgets((4, 9, 16), classes, by_hand, 5, 1.0).retained
    assert [sorted(by_group.items()) for by_group in rows[1:]] == [[((0, True), 4), ((1, False), 4)], [((0, True), 7), ((1, False), 2)]]
    capped = RelianceBudgets((4, 9, 16), classes, by_hand, 10, 1.0).retained[-1]
    assert capped == {(0, True): 13, (1, False): 7}, "what the first cannot hold goes to the second"
