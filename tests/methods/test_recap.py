"""ReCAP: groups, order, head steps, budgets. What a step computes and draws is in the conformance vectors of the released code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
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
from cachemark.roofline.masked_flops import image_flops, share


def layout(steps: int = 64, size: str = "B") -> MaskedLayout:
    return SIZES[size].layout([100], Sampling(cfg_scale=3.0, steps=steps))


def resolved(steps: int = 64, **parameters: Any) -> ReCAP:
    method = ReCAP(**parameters)
    method.resolve(layout(steps))
    return method


def generated(method: Method) -> Tensor:
    return MaskedCell(type(method), (), "native").generate(method, Memory(), SEEDS, None, with_logits=False).tokens


# -- groups -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("steps", "full", "partial"), [(36, 27, 9), (56, 42, 14), (84, 63, 21), (96, 72, 24), (48, 36, 12), (128, 96, 32)])
def test_a_quarter_of_the_published_steps_is_partial(steps: int, full: int, partial: int) -> None:
    method = resolved(steps)
    assert (sum(method.full), len(method.full) - sum(method.full)) == (full, partial)
    assert all(method.full[: steps // 2])


@pytest.mark.parametrize(("parameters", "partial"), [
    ({"full_steps": 2, "partial_steps": 3}, [3, 4, 5, 7]), ({"full_steps": 8}, []), ({"partial_steps": 0}, []),
    ({"full_steps": 0, "partial_steps": 9}, [1, 2, 3, 4, 5, 6, 7]), ({"full_steps": 5}, [6]),
])  # fmt: skip
def test_groups_are_a_full_step_and_partial_ones(parameters: dict[str, Any], partial: list[int]) -> None:
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
@pytest.mark.parametrize(("fraction", "requested", "expected"), [
    (0.5, 100, 50), (0.4, 100, 40), (1.0, 100, 100), (0.01, 100, 2), (0.5, 2, 2),
])  # fmt: skip
def test_head_steps_of_partial_steps(fraction: float, requested: int, expected: int) -> None:
    method = resolved(head_fraction=fraction)
    for step in method.steps:
        (part,) = method.denoising(step, requested)
        assert part == (step.count, requested if method.full[step.index] else expected)


def test_with_all_head_steps_and_the_samples_order_images_are_paired() -> None:
    """Noise belongs to the position, so tokens of the leading full steps are the full model's bit for bit."""
    method = Watched(full_steps=5, order="sample", head_fraction=1.0)
    tokens, full = generated(method), generated(Full())
    known = method.steps_seen[6].known[: len(SEEDS), :, None].expand(-1, -1, CONFIG.channels)
    assert torch.equal(tokens.gather(1, known), full.gather(1, known))
    assert not torch.equal(tokens, full)
    assert (ReCAP().reorders, ReCAP(order="sample").reorders) == (True, False)


# -- budgets ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("partial_steps", [0, 1, 2, 3])
def test_flops_fall_with_every_whole_group(partial_steps: int) -> None:
    shape, size = layout(20), 1 + partial_steps
    flops = [image_flops(ReCAP(full_steps=full, partial_steps=partial_steps), shape) for full in range(20 % size, 21, size)]
    assert flops == sorted(flops)
    assert (flops[0] < flops[-1]) is (partial_steps > 0)


@pytest.mark.parametrize("partial_steps", [1, 2, 3])
def test_a_budget_gives_whole_groups(partial_steps: int) -> None:
    shape, method = layout(), ReCAP(partial_steps=partial_steps)
    fitted = method.fit(Fraction(85, 100), shape)["full_steps"]
    assert (64 - fitted) % (1 + partial_steps) == 0
    assert ReCAP(full_steps=fitted, partial_steps=partial_steps).own_budget(shape) <= Fraction(85, 100)
    assert method.fit(Fraction(1), shape) == {"full_steps": 64}


def test_its_own_budget_gives_its_own_parameters() -> None:
    assert ReCAP.parameters_for(ReCAP().own_budget(layout()), layout()) == {"full_steps": 32}


# TFLOP per image without image decoding: MAR in T steps, ReCAP with 100 and 50 head steps in partial steps, full steps of equal FLOPs.
SHEET = [("L", 96, 45.7, 37.5, 36.2, 72), ("L", 36, 21.4, 18.5, 17.3, 25), ("H", 128, 115.3, 93.9, 91.3, 97),
         ("H", 48, 52.2, 44.5, 41.8, 34)]  # fmt: skip


@pytest.mark.parametrize(("size", "steps", "full", "whole_head", "released", "equal"), SHEET)
def test_flops_of_the_published_scripts(size: str, steps: int, full: float, whole_head: float, released: float, equal: int) -> None:
    """Within 2 %, by an independent count."""
    shape = layout(steps, size)
    counted = [image_flops(method, shape) / 1e12 for method in (Full(), ReCAP(head_fraction=1.0), ReCAP())]
    assert counted == pytest.approx([full, whole_head, released], rel=0.02)
    assert share(FewerSteps(equal), shape) <= share(ReCAP(), shape) < share(FewerSteps(equal + 1), shape)
