"""Fewer passes: GtR with its stages and what the head spends, and the full model asked for fewer steps."""

from __future__ import annotations

from typing import Any

import torch

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Layout
from cachemark.cache.masked_layout import MaskedLayout, MaskedStep, masked_steps
from cachemark.core.spec import Sampling
from cachemark.methods.fewer_steps import FewerSteps
from cachemark.methods.full import Full
from cachemark.methods.gtr import GtR, divided, stage_of
from cachemark.models.mar import MAR, SIZES, MARConfig

CONFIG = MARConfig(16, (1, 1), 2, 1, 16, grid=8, channels=4, classes=3, buffer=2, steps=16, diffusion=(10, 0))
GUIDED = Sampling(cfg_scale=2.0)


def layout(steps: int = 64) -> MaskedLayout:
    return SIZES["B"].layout([0], Sampling(cfg_scale=3.0, steps=steps))


def resolved(shape: Layout, **parameters: Any) -> GtR:
    method = GtR.build(parameters)
    method.resolve(shape)
    return method


def passes(method: GtR, shape: MaskedLayout) -> list[MaskedStep]:
    paced = method.paced(shape)
    return masked_steps(paced, paced.steps)


def test_it_makes_the_passes_of_its_authors() -> None:
    """MAR of 16×16 tokens in 32 passes: 64 tokens in 24, 64 in 6, 128 in 2."""
    counts = [step.count for step in passes(resolved(layout()), layout())]
    assert len(counts) == 32
    assert [sum(part) for part in (counts[:24], counts[24:30], counts[30:])] == [64, 64, 128]
    assert (set(counts[:24]), set(counts[24:30]), counts[30:]) == ({2, 3}, {10, 11}, [64, 64])


def test_stages_are_diagonals_from_coarse_to_fine() -> None:
    stages = stage_of(layout(), 4).view(16, 16)
    assert stages[0, :9].tolist() == [0, 3, 2, 3, 1, 3, 2, 3, 0]
    assert torch.equal(stages[1:, :-1], stages[:-1, 1:]), "a place is like its neighbour to the upper right"


def test_passes_of_stages() -> None:
    for steps, sizes, expected in ((32, (64, 64, 128), [24, 6, 2]), (20, (64, 64, 128), [15, 4, 1]), (3, (64, 64, 128), [1, 1, 1]),
                                   (10, (4, 4, 8), [4, 4, 2]), (7, (16,), [7]), (32, (128, 128), [30, 2])):
        assert divided(steps, sizes) == expected
    shape = layout()
    for stages in range(1, 7):
        for steps in range(stages, 65, 4):
            counts = [step.count for step in passes(resolved(shape, steps=steps, stages=stages), shape)]
            assert (len(counts), sum(counts), min(counts) >= 1) == (steps, 256, True)


def test_places_are_predicted_stage_by_stage_in_the_order_of_the_sample() -> None:
    model, key = MAR(CONFIG).initialise(0), torch.tensor([3, 4])
    method = GtR(steps=8)
    method.begin(model.layout([3, 4], GUIDED), model.sites, Memory())
    own = model.order(key)
    places, stages = method.ordered(own).flip(1), stage_of(method.layout, 3)
    for row, order in zip(places.tolist(), own.flip(1).tolist(), strict=True):
        assert stages[row].tolist() == sorted(stages.tolist())
        for stage in range(3):
            assert [place for place in row if stages[place] == stage] == [place for place in order if stages[place] == stage]
    assert places[0].tolist() != places[1].tolist()


def test_the_head_spends_less_from_pass_to_pass_and_more_on_detail() -> None:
    shape = layout()
    method = resolved(shape)
    spent = [method.denoising(step, 100) for step in passes(method, shape)]
    generation = [parts[0].passes for parts in spent[:30]]
    assert all(len(parts) == 1 for parts in spent[:30])
    assert (generation[0], generation[-1], generation) == (50, 20, sorted(generation, reverse=True))
    assert [[part[:2] for part in parts] for parts in spent[30:]] == [[(6, 50), (58, 20)]] * 2


def test_tokens_with_high_frequencies_come_first() -> None:
    wave = torch.arange(16.0)
    slow, fast = torch.cos(wave * torch.pi / 8), torch.cos(wave * torch.pi * 7 / 8)
    z = torch.stack([slow, fast, 0.5 * fast, slow])[None]
    assert GtR().ranked(MaskedStep(0, 1), z).tolist() == [[1, 0, 3, 2]]


class Chosen(GtR):
    """Counts the tokens that the head draws in so many passes."""

    def stack(self, name: str, step: Any, tokens: Any, run: Any) -> Any:
        if name == "head" and step.inner == 0:
            drawn.append((step.index, tokens.x.size(1), step.inners))
        return super().stack(name, step, tokens, run)


drawn: list[tuple[int, int, int]] = []


def test_the_head_draws_every_token_once_as_long_as_was_said() -> None:
    drawn.clear()
    model, method = MAR(CONFIG).initialise(0).eval(), Chosen(steps=8)
    model.generate(torch.tensor([0, 1]), [3, 4], method, GUIDED, Memory())
    shape = model.layout([3, 4], GUIDED)
    assert drawn == [(step.index, *part[:2]) for step in passes(resolved(shape, steps=8), shape) for part in method.denoising(step, 10)]
    assert sum(count for _, count, _ in drawn) == 64
    assert {count for _, count, inners in drawn if inners == 5 and count < 4}, "some tokens with detail"


def test_images_of_one_seed_are_more_alike_than_those_of_two() -> None:
    """Noise belongs to places, whatever their order."""
    model = MAR(CONFIG).initialise(0).eval()
    full, other = (model.generate(torch.tensor([0, 1]), seeds, Full(), GUIDED, Memory()) for seeds in ([3, 4], [5, 6]))
    own = model.generate(torch.tensor([0, 1]), [3, 4], GtR(steps=16, most=1.0, least=1.0), GUIDED, Memory())
    assert (own - full).square().mean() < 0.5 * (other - full).square().mean()


def test_fewer_steps_is_the_full_model_asked_for_fewer_passes() -> None:
    config = MARConfig(16, (1, 1), 2, 1, 16, grid=4, channels=4, classes=3, buffer=2, diffusion=(3, 0))
    model = MAR(config).initialise(0).eval()
    tokens = [model.generate(torch.tensor([0, 1]), [3, 4], method, Sampling(cfg_scale=2.0, steps=steps), Memory())
              for method, steps in ((FewerSteps(5), 12), (Full(), 5), (Full(), 12))]  # fmt: skip
    assert torch.equal(tokens[0], tokens[1])
    assert not torch.equal(tokens[0], tokens[2])
