"""ReCAP: groups, order, head steps, budgets. What a step computes and draws is in the conformance vectors of the released code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Step, Tokens
from cachemark.cache.masked_layout import MaskedLayout, MaskedStep
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.kit.masked import CONFIG, SEEDS, MaskedCell, model
from cachemark.methods.fewer_steps import FewerSteps
from cachemark.methods.full import Full
from cachemark.methods.recap import ReCAP
from cachemark.models.mar import SIZES
from cachemark.roofline.flops_budget import image_flops, share


def layout(steps: int = 64, size: str = "B") -> MaskedLayout:
    return SIZES[size].layout([100], Sampling(cfg_scale=3.0, steps=steps))


def resolved(steps: int = 64, **parameters: Any) -> ReCAP:
    method = ReCAP(**parameters)
    method.resolve(layout(steps))
    return method


def generated(method: Method) -> Tensor:
    return MaskedCell(type(method), (), "native").generate(method, Memory(), SEEDS, None, with_logits=False).tokens


# -- groups -----------------------------------------------------------------------------------------------------------
def test_groups_are_a_full_step_and_partial_ones() -> None:
    for steps in (36, 48, 56, 84, 96, 128):  # of the published scripts, a quarter of them partial
        full = resolved(steps).full
        assert (sum(full), len(full)) == (steps * 3 // 4, steps)
        assert all(full[: steps // 2])
    for parameters, partial in (
        ({"full_steps": 2, "partial_steps": 3}, [3, 4, 5, 7]), ({"full_steps": 8}, []), ({"partial_steps": 0}, []),
        ({"full_steps": 0, "partial_steps": 9}, [1, 2, 3, 4, 5, 6, 7]), ({"full_steps": 5}, [6]),
    ):  # fmt: skip
        assert [index for index, full in enumerate(resolved(8, **parameters).full) if not full] == partial


@dataclass
class Watched(ReCAP):
    """Records the positions that each step predicts."""

    steps_seen: list[MaskedStep] = field(default_factory=list)

    def stack(self, name: str, step: Step, tokens: Tokens, run: Callable[[Tokens], Tensor]) -> Tensor:
        assert isinstance(step, MaskedStep)
        if name == "encoder":
            self.steps_seen.append(step)
        return super().stack(name, step, tokens, run)


@pytest.mark.parametrize("order", ["raster", "sample"])
def test_the_order_within_a_group(order: str) -> None:
    """Groups have the sample's tokens; inside one, raster order or the sample's."""
    method = Watched(full_steps=2, partial_steps=2, order=order)
    generated(method)
    own = model().order(torch.tensor(SEEDS)).flip(1)
    for first in (2, 5):
        passes = method.steps_seen[first : first + 3]
        start, end = passes[0].first, passes[-1].first + passes[-1].count
        for row, places in enumerate(own[:, start:end].tolist()):
            expected = sorted(places) if order == "raster" else places
            for step in passes:
                assert step.generating[row].tolist() == sorted(expected[step.first - start :][: step.count])


# -- the head ---------------------------------------------------------------------------------------------------------
def test_head_steps_of_partial_steps() -> None:
    for fraction, requested, expected in ((0.5, 100, 50), (0.4, 100, 40), (1.0, 100, 100), (0.01, 100, 2), (0.5, 2, 2)):
        method = resolved(head_fraction=fraction)
        for step in method.steps:
            (part,) = method.denoising(step, requested)
            assert part[:2] == (step.count, requested if method.full[step.index] else expected)


def test_with_all_head_steps_and_the_samples_order_images_are_paired() -> None:
    """Noise belongs to the position, so tokens of the leading full steps are the full model's bit for bit."""
    method = Watched(full_steps=5, order="sample", head_fraction=1.0)
    tokens, full = generated(method), generated(Full())
    known = method.steps_seen[6].known[: len(SEEDS), :, None].expand(-1, -1, CONFIG.channels)
    assert torch.equal(tokens.gather(1, known), full.gather(1, known))
    assert not torch.equal(tokens, full)
    assert (ReCAP().reorders, ReCAP(order="sample").reorders) == (True, False)


# -- budgets ----------------------------------------------------------------------------------------------------------


def test_flops_and_budget_of_a_published_script() -> None:
    """MAR-L in 96 steps: TFLOP of an image with the whole head, as released, and in how many full steps, by an independent count."""
    shape = layout(96, "L")
    counted = [image_flops(method, shape) / 1e12 for method in (Full(), ReCAP(head_fraction=1.0), ReCAP())]
    assert counted == pytest.approx([45.7, 37.5, 36.2], rel=0.02)
    assert share(FewerSteps(72), shape) <= share(ReCAP(), shape) < share(FewerSteps(73), shape)
    assert ReCAP.parameters_for(ReCAP().own_budget(shape), shape) == {"full_steps": 48}
