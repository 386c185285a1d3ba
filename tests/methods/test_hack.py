"""HACK against its rules written once more, one head at a time, and its budgets."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Site, Step, scale_steps
from cachemark.core.errors import BadBudget, BadCalibration, BadParameter
from cachemark.kit.driver import tokens_by_head
from cachemark.methods.base.head_aware import HeadClasses
from cachemark.methods.hack import HACK
from contracts.per_head import made
from contracts.scales import SIDES, Feed, layout_of


def by_hand(feed: Feed, step: Step, site: Site, row: int, head: int, before: list[int], budget: int, few: bool) -> tuple[list[int], Tensor]:
    """Return the tokens of a head after a pass and its output, from all tokens ever fed."""
    steps = scale_steps(layout_of())[: step.index + 1]
    keys, values = (torch.cat([feed.at(s, site)[part] for s in steps], 2)[row, head].double() for part in (1, 2))
    q, tokens = feed.at(step, site)[0][row, head].double(), [*before, *range(step.first, step.first + step.count)]
    if len(tokens) > budget:
        queries = [int((i + 0.5) * step.count / min(32, step.count)) for i in range(min(32, step.count))]
        weights = (q[queries] @ keys[tokens].T / 4).softmax(-1).sum(0).tolist()
        score = dict(zip(tokens, weights, strict=True))
        always = [] if few else [t for t in tokens if t < 5 or (t >= step.first and 5 + step.count <= budget)]
        ranked = sorted((t for t in tokens if t not in always), key=lambda t: -score[t])
        tokens = sorted([*always, *ranked[: budget - len(always)]])
    return tokens, (q @ keys[tokens].T / 4).softmax(-1) @ values[tokens]


@pytest.mark.parametrize("budget", [Fraction(5, 11), Fraction(8, 11)])
def test_every_head_keeps_and_sees_what_the_rules_say(budget: Fraction) -> None:
    layout, method = layout_of(), made(HACK, budget=budget)
    feed, sites = Feed(layout), [Site("decoder", layer) for layer in range(layout.layers)]
    method.begin(layout, sites, Memory())
    tokens: dict[tuple[int, int, int], list[int]] = {}
    cut = 0
    for step in scale_steps(layout):
        for site in sites:
            out = method.attend(site, step, *feed.at(step, site))
            for row in range(layout.rows):
                for head in range(layout.kv_heads):
                    few = method.classes.contextual[site.layer][head]
                    size = method.small if few else method.large
                    key = site.layer, row, head
                    expected, answer = by_hand(feed, step, site, row, head, tokens.get(key, []), size, few)
                    cut += len(expected) < len(tokens.get(key, [])) + step.count
                    assert (out[row, head].double() - answer).abs().max() < 1e-5
                    tokens[key] = expected
                    if not step.last:
                        assert tokens_by_head(method.ragged[site])[head][row].tolist() == expected
        method.end_step(step)
    assert cut > 20


def test_the_lowest_variance_is_contextual() -> None:
    classes = HeadClasses.by_variance([[0.5, 0.1], [0.1, 0.9]], 0.5)
    assert classes.contextual == ((False, True), (True, False))
    assert HeadClasses.by_variance([[0.1, 0.1], [0.1, 0.1]], 0.5).contextual == ((True, True), (False, False)), "the lower layer first"


@pytest.mark.parametrize(("mean", "expected"), [(10, (5, 15)), (60, (30, 90)), (80, (69, 91)), (91, (91, 91))])
def test_budgets_meet_their_mean(mean: int, expected: tuple[int, int]) -> None:
    """No head has more than all 91 tokens; the others get what it leaves."""
    classes = HeadClasses.by_variance([[0.5, 0.1], [0.1, 0.9]], 0.5)
    assert classes.budgets(mean, Fraction(1, 2), sum(side**2 for side in SIDES)) == expected


@pytest.mark.parametrize(("parameters", "error", "words"), [
    ({"contextual": 1.0}, BadParameter, "contextual = 1.0 is out of range"),
    ({"contrast": 0.0}, BadParameter, "contrast = 0.0 is out of range"),
    ({"queries": 0}, BadParameter, "queries = 0 is out of range"), ({"mean": 92}, BadParameter, "mean = 92 of 91 tokens"),
    ({"mean": 2}, BadBudget, "mean = 2 leaves structural heads 3 entries, less than the 5 of the sinks"),
    ({"calibration": "", "mean": 30}, BadParameter, "hack: no calibration found for these weights"),
])  # fmt: skip
def test_what_cannot_be_used_is_refused(parameters: dict[str, Any], error: type[Exception], words: str) -> None:
    usable = made(HACK).parameters()
    with pytest.raises(error, match=words):
        HACK.build({**usable, **parameters}).resolve(layout_of())


def test_a_calibration_for_another_number_of_scales_is_refused() -> None:
    with pytest.raises(BadCalibration, match=r"hack: .* is of another model or resolution: scales 1 2 3 4 5 6, not 1 2 3 4 5"):
        HACK.build(made(HACK).parameters()).resolve(layout_of(sides=SIDES[:-1]))


def test_a_budget_below_the_sinks_is_refused() -> None:
    with pytest.raises(BadBudget, match=r"a budget of 0.05 leaves structural heads less than the 5 of the sinks, the first 2 scales"):
        made(HACK, budget=Fraction(1, 20))
