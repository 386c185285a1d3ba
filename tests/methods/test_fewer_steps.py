"""Fewer steps: passes, budgets, wrong parameters."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from cachemark.cache.arena import Memory
from cachemark.cache.masked_layout import MaskedLayout
from cachemark.core.errors import BadBudget, BadParameter
from cachemark.core.spec import Sampling
from cachemark.methods.fewer_steps import FewerSteps
from cachemark.methods.full import Full
from cachemark.models import mar
from cachemark.models.mar import MAR, SIZES, MARConfig
from cachemark.roofline.masked_flops import share, work


def layout(steps: int = 64) -> MaskedLayout:
    return mar.layout(SIZES["B"], [0], Sampling(cfg_scale=3.0, steps=steps), torch.float32, "cpu")


def test_it_is_the_full_model_asked_for_fewer_passes() -> None:
    config = MARConfig(16, (1, 1), 2, 1, 16, grid=4, channels=4, classes=3, buffer=2, diffusion=(3, 0))
    model = MAR(config).initialise(0).eval()
    tokens = [model.generate(torch.tensor([0, 1]), [3, 4], method, Sampling(cfg_scale=2.0, steps=steps), Memory())
              for method, steps in ((FewerSteps(5), 12), (Full(), 5), (Full(), 12))]  # fmt: skip
    assert torch.equal(tokens[0], tokens[1])
    assert not torch.equal(tokens[0], tokens[2])


def test_it_costs_what_fewer_passes_cost() -> None:
    assert work(FewerSteps(32), layout(64)) == work(Full(), layout(32))


@pytest.mark.parametrize("budget", [Fraction(1), Fraction(1, 2), Fraction(1, 3)])
def test_a_budget_is_a_share_of_the_flops(budget: Fraction) -> None:
    steps = FewerSteps.parameters_for(budget, layout())["steps"]
    assert share(FewerSteps(steps), layout()) <= budget
    assert steps == 64 or share(FewerSteps(steps + 1), layout()) > budget


def test_the_head_alone_is_more_than_some_budgets() -> None:
    with pytest.raises(BadBudget, match=r"fewer_steps: it computes at least 0\.\d+ of the FLOPs"):
        FewerSteps.parameters_for(Fraction(1, 5), layout())


@pytest.mark.parametrize("steps", [0, -1, 65])
def test_passes_that_are_no_fewer_are_refused(steps: int) -> None:
    with pytest.raises(BadParameter, match=rf"fewer_steps: steps = {steps} of 64 requested\. Use 1 … 64, or a budget"):
        FewerSteps(steps).resolve(layout())
