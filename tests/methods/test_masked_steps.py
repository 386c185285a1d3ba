"""Methods that change how many passes a masked model makes, in which order, and what its head spends: DiSA, ReCAP, Halton, GtR."""

from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.masked_layout import MaskedLayout, MaskedStep, cosine_counts, masked_steps
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.kit.masked import CONFIG, SAMPLING, SEEDS, model
from cachemark.methods.base import annealed
from cachemark.methods.disa import DiSA
from cachemark.methods.fewer_steps import FewerSteps
from cachemark.methods.full import Full
from cachemark.methods.gtr import GtR, divided, stage_of
from cachemark.methods.halton import Halton, arccos_counts
from cachemark.methods.lazymar import LazyMAR
from cachemark.methods.marche import MARche
from cachemark.methods.recap import ReCAP
from cachemark.models.catalogue.masked_models import TINY_MAR
from cachemark.models.mar import MAR, SIZES, MARConfig
from cachemark.roofline.flops_budget import image_flops, share


def layout(steps: int = 64, size: str = "B") -> MaskedLayout:
    return SIZES[size].layout([0], Sampling(cfg_scale=3.0, steps=steps))


def resolved(shape: MaskedLayout, **parameters: Any) -> tuple[GtR, list[MaskedStep]]:
    method = GtR.build(parameters)
    method.resolve(shape)
    paced = method.paced(shape)
    return method, masked_steps(paced, paced.steps)


def test_it_makes_the_passes_of_its_authors() -> None:
    """MAR of 16×16 tokens in 32 passes: 64 tokens in 24, 64 in 6, 128 in 2; stages are diagonals from coarse to fine."""
    counts = [step.count for step in resolved(layout())[1]]
    assert len(counts) == 32
    assert [sum(part) for part in (counts[:24], counts[24:30], counts[30:])] == [64, 64, 128]
    assert (set(counts[:24]), set(counts[24:30]), counts[30:]) == ({2, 3}, {10, 11}, [64, 64])
    stages = stage_of(layout(), 4).view(16, 16)
    assert stages[0, :9].tolist() == [0, 3, 2, 3, 1, 3, 2, 3, 0]
    assert torch.equal(stages[1:, :-1], stages[:-1, 1:]), "a place is like its neighbour to the upper right"
    for steps, sizes, expected in ((32, (64, 64, 128), [24, 6, 2]), (20, (64, 64, 128), [15, 4, 1]), (3, (64, 64, 128), [1, 1, 1]),
                                   (10, (4, 4, 8), [4, 4, 2]), (7, (16,), [7]), (32, (128, 128), [30, 2])):
        assert divided(steps, sizes) == expected
    for count in range(1, 7):
        for steps in range(count, 65, 4):
            counts = [step.count for step in resolved(layout(), steps=steps, stages=count)[1]]
            assert (len(counts), sum(counts), min(counts) >= 1) == (steps, 256, True)


def test_places_are_predicted_stage_by_stage_in_the_order_of_the_sample() -> None:
    small = MARConfig(16, (1, 1), 2, 1, 16, grid=8, channels=4, classes=3, buffer=2, steps=16, diffusion=(10, 0))
    model, key, method = MAR(small).initialise(0), torch.tensor([3, 4]), GtR(steps=8)
    method.begin(model.layout([3, 4], Sampling(cfg_scale=2.0)), model.sites, Memory())
    own = model.order(key)
    places, stages = method.ordered(own).flip(1), stage_of(method.layout, 3)
    for row, order in zip(places.tolist(), own.flip(1).tolist(), strict=True):
        assert stages[row].tolist() == sorted(stages.tolist())
        for stage in range(3):
            assert [place for place in row if stages[place] == stage] == [place for place in order if stages[place] == stage]
    assert places[0].tolist() != places[1].tolist()


def test_the_head_spends_less_from_pass_to_pass_and_more_on_detail() -> None:
    method, passes = resolved(layout())
    spent = [method.denoising(step, 100) for step in passes]
    generation = [parts[0].passes for parts in spent[:30]]
    assert all(len(parts) == 1 for parts in spent[:30])
    assert (generation[0], generation[-1], generation) == (50, 20, sorted(generation, reverse=True))
    assert [[part[:2] for part in parts] for parts in spent[30:]] == [[(6, 50), (58, 20)]] * 2
    # tokens with high frequencies come first
    wave = torch.arange(16.0)
    slow, fast = torch.cos(wave * torch.pi / 8), torch.cos(wave * torch.pi * 7 / 8)
    assert GtR().ranked(MaskedStep(0, 1), torch.stack([slow, fast, 0.5 * fast, slow])[None]).tolist() == [[1, 0, 3, 2]]


# -- Halton: the tokens of each step, starts by seed ------------------------------------------------------------------
def order_of(seeds: tuple[int, ...], **parameters: Any) -> Tensor:
    """Return the positions in the order in which they are predicted, (batch, N)."""
    method = Halton(**parameters)
    method.begin(model().layout(seeds, SAMPLING), model().sites, Memory())
    return method.ordered(model().order(torch.tensor(seeds))).flip(1)


def generated(method: Any, **options: Any) -> Tensor:
    return model().generate(torch.tensor(SEEDS) % CONFIG.classes, SEEDS, method, SAMPLING, Memory(), **options)


def test_a_step_predicts_the_next_positions_of_the_sequence_and_rolled_images_start_at_points_of_their_own() -> None:
    for parameters, counts, steps in (({}, cosine_counts, CONFIG.steps), ({"rate": "arccos"}, arccos_counts, CONFIG.steps),
                                      ({"rate": "arccos", "steps": 5, "roll": True}, arccos_counts, 5)):
        seen: list[Tensor] = []
        generated(Halton(**parameters), see=lambda places, tokens, seen=seen: seen.append(places))
        parts = order_of(SEEDS, roll="roll" in parameters).split(list(counts(CONFIG.tokens, steps)), 1)
        assert all(torch.equal(places, part.sort(1).values) for places, part in zip(seen, parts, strict=True))
    plain, rolled = order_of((5, 11, 23)), order_of((5, 11, 23), roll=True)
    assert (plain == plain[0]).all()
    starts = [plain[0].tolist().index(int(row[0])) for row in rolled]
    assert len(set(starts)) == 3
    assert all(torch.equal(row, plain[0].roll(-start)) for row, start in zip(rolled, starts, strict=True))
    assert torch.equal(order_of((23, 5), roll=True), rolled[[2, 0]]), "the start does not depend on the batch"


def test_the_samples_order_at_mars_rate_is_fewer_steps_and_images_of_a_seed_have_the_same_noise_in_any_order() -> None:
    """In one step all tokens have the condition of an empty image, so the order makes no difference."""
    for steps in (3, CONFIG.steps):
        own = generated(Halton(steps=steps, order="sample"))
        assert torch.equal(own, generated(FewerSteps(steps)))
        assert not torch.equal(own, generated(Halton(steps=steps)))
    assert torch.equal(generated(Halton(steps=1)), generated(FewerSteps(1)))
    assert not torch.allclose(generated(Halton()), generated(Full()), atol=1e-2)
    method, shape = Halton(rate="arccos"), layout(4)
    assert (share(method, shape) > 1, method.own_budget(shape)) == (True, 1), "a little more than the full model has the whole budget"


# -- DiSA beyond its vectors ------------------------------------------------------------------------------------------
def timesteps(method: Method, shape: MaskedLayout) -> list[tuple[int, ...]]:
    method.resolve(shape)
    return [part.process(shape) for step in masked_steps(shape, shape.steps) for part in method.denoising(step, shape.diffusion)]


def test_the_start_of_the_code_is_for_heads_that_start_at_the_noisiest_step() -> None:
    rival = FewerSteps(steps=64, head_annealing="constant", head_least=0.2)  # the same under both names
    assert timesteps(rival, layout()) == timesteps(DiSA(annealing="constant", least=0.2), layout())
    assert {len(times) for times in timesteps(rival, layout())} == {20}
    ends = [{times[-1] for times in timesteps(DiSA(most=1.0, start=start), layout())} for start in ("code", "full")]
    assert ends == [{annealed.LATEST}, {999}]
    tiny = TINY_MAR.layout([0], Sampling())
    code, full = (timesteps(DiSA(most=1.0, least=0.5, start=start), tiny) for start in ("code", "full"))
    assert code == full, "a process that starts elsewhere, as the bundled model's, keeps its own spacing"
    for cls in (LazyMAR, MARche, ReCAP, Halton, FewerSteps):
        assert not cls().parameters().keys() & annealed.HEAD_PARAMETERS.keys()
        assert cls(head_annealing="linear").parameters().keys() >= annealed.HEAD_PARAMETERS.keys()


# -- ReCAP: groups, head steps, budgets -------------------------------------------------------------------------------
def test_groups_are_a_full_step_and_partial_ones() -> None:
    def recap(**parameters: Any) -> ReCAP:
        method = ReCAP(**parameters)
        method.resolve(layout(8))
        return method

    for parameters, partial in (
        ({"full_steps": 2, "partial_steps": 3}, [3, 4, 5, 7]), ({"full_steps": 8}, []), ({"partial_steps": 0}, []),
        ({"full_steps": 0, "partial_steps": 9}, [1, 2, 3, 4, 5, 6, 7]), ({"full_steps": 5}, [6])):  # fmt: skip
        assert [index for index, full in enumerate(recap(**parameters).full) if not full] == partial
    (part,) = recap(full_steps=5, head_fraction=0.01).denoising(recap().steps[6], 100)
    assert part.passes == 2, "the least that a process can be respaced to"


def test_flops_and_budget_of_published_scripts() -> None:
    """Shares of 64 passes of MAR-H with 100 steps of the head by hand from the published code; TFLOP of MAR-L by an independent count."""
    for method, expected in (
        (DiSA(), 0.816), (DiSA(annealing="cosine"), 0.813), (DiSA(annealing="two-stage"), 0.809), (DiSA(annealing="constant"), 0.780),
        (LazyMAR(head_annealing="linear"), 0.299), (MARche(head_annealing="linear"), 0.571), (ReCAP(head_annealing="linear"), 0.648),
    ):  # fmt: skip
        assert float(share(method, layout(size="H"))) == pytest.approx(expected, rel=0.01)
    shape = layout(96, "L")
    counted = [image_flops(method, shape) / 1e12 for method in (Full(), ReCAP(head_fraction=1.0), ReCAP())]
    assert counted == pytest.approx([45.7, 37.5, 36.2], rel=0.02)
    assert share(FewerSteps(72), shape) <= share(ReCAP(), shape) < share(FewerSteps(73), shape)
    assert ReCAP.parameters_for(ReCAP().own_budget(shape), shape) == {"full_steps": 48}
