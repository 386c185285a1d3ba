"""MAR and its diffusion head beyond their vectors: order, noise per sample, spacings, and training."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cachemark.cache import random_streams as streams
from cachemark.cache.layout import Layout
from cachemark.cache.masked_layout import masked_steps, placed
from cachemark.cache.timesteps import STEPS, respaced
from cachemark.core.errors import BadCheckpoint, Unsupported
from cachemark.core.spec import Sampling
from cachemark.models import mar
from cachemark.models.catalogue import masked_models
from cachemark.models.catalogue.masked_models import TINY_MAR
from cachemark.models.diffusion import DiffusionHead, normal
from cachemark.models.mar import MAR, MARConfig
from cachemark.models.tiny.tokenizers import Sizes, TinyKL
from support.tiny_models import MAR_SIZES
from tools.train import mar_loss
from tools.train.mar_loss import terms


@pytest.fixture(scope="module")
def model() -> MAR:
    return build()


def build(config: MARConfig = MAR_SIZES, **options: bool) -> MAR:
    made = MAR(config, **options).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for parameter in made.parameters():
        parameter.normal_(0, 0.2, generator=generator)
    return made


def shape(grid: int = 16, rows: int = 2) -> Layout:
    return replace(MAR_SIZES, grid=grid).layout(range(rows), Sampling())


# -- order and guidance -------------------------------------------------------------------------------------------------
def test_an_order_holds_every_place_once(model: MAR) -> None:
    order = model.order(streams.seeds_tensor([4, 9], "cpu"))
    assert torch.equal(order.sort(1).values, torch.arange(16).expand(2, -1))
    assert not torch.equal(order[0], order[1])
    assert order[0, 0] == streams.integers(streams.keys(torch.tensor(4), "order", 0), 16).argmin()


# -- what belongs to a sample -----------------------------------------------------------------------------------------
def test_noise_belongs_to_seed_place_and_pass(model: MAR) -> None:
    key = streams.seeds_tensor([3, 8], "cpu")
    places = torch.tensor([[0, 5, 9], [2, 3, 4]])
    noise = model.noise(key, places, 6)
    assert noise.shape == (7, 2, 3, 4)
    assert torch.equal(model.noise(key[1:], places[1:, 1:2], 6), noise[:, 1:, 1:2])
    assert torch.equal(model.noise(key, places, 12)[:7], noise)
    assert noise.unique().numel() > 0.99 * noise.numel()
    uniform = streams.uniform(streams.keys(key[:, None], "noise", places), 4)
    assert torch.equal(noise[0], normal(uniform)), "no other purpose may share the stream"


def test_the_order_does_not_depend_on_the_number_of_steps(model: MAR) -> None:
    """Candidates with fewer steps get the same initial noise per position."""
    key = streams.seeds_tensor([3], "cpu")
    long, short = (placed(masked_steps(shape(4, 1), total), model.order(key)) for total in (16, 4))
    assert torch.equal(torch.cat([s.generating for s in long[:1]], 1)[0], model.order(key)[0, -1:])
    assert set(model.order(key)[0, -short[0].count :].tolist()) == set(short[0].generating[0].tolist())


# -- training ---------------------------------------------------------------------------------------------------------


def test_the_loss_sees_no_masked_token(monkeypatch: pytest.MonkeyPatch) -> None:
    model, handed = build(), []
    teacher = mar_loss.teacher

    def noted(model: MAR, cond: Tensor, latents: Tensor, known_places: Tensor, places: Tensor) -> Tensor:
        handed.append((known_places, places))
        z = teacher(model, cond, latents, known_places, places)
        changed = mar.put(latents, places, torch.randn(*places.shape, 4))
        assert torch.equal(z, teacher(model, cond, changed, known_places, places))
        return z

    monkeypatch.setattr(mar_loss, "teacher", noted)
    mar_loss.hidden(model, torch.arange(4), torch.randn(4, 16, 4), torch.Generator().manual_seed(0))
    known_places, places = handed[0]
    assert torch.equal(torch.cat((known_places, places), 1).sort(1).values, torch.arange(16).expand(4, -1))


# -- the bundled model ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("steps", "first"), [(0, 960), (25, 960), (10, 900), (2, 500)])
def test_the_bundled_head_never_begins_where_nothing_is_left_of_the_token(steps: int, first: int) -> None:
    timesteps = respaced(TINY_MAR.spacing(Sampling(diffusion_steps=steps)))
    assert (timesteps[-1], len(timesteps)) == (first, steps or 25)


def test_a_tokenizer_with_other_channels_is_refused() -> None:
    with pytest.raises(BadCheckpoint, match="has 4 channels; this model needs 8"):
        masked_models.build(TINY_MAR, TinyKL(Sizes(channels=4, width=16, blocks=1)))


def test_the_largest_uniform_number_is_noised_to_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cube root rounds to 1, and there is no step after the last."""
    largest = 1 - 2.0**-24
    assert float(torch.tensor(largest) ** (1 / 3)) == 1
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, largest))
    _, index = mar_loss.noising(torch.zeros(2, 16, 4), torch.Generator().manual_seed(0), lean=1 / 3)
    assert torch.equal(index, torch.full((2, 16), 999))


# -- the head ---------------------------------------------------------------------------------------------------------
CHANNELS, COND, DEPTH, WIDTH = 4, 24, 3, 32


def head(kind: type[DiffusionHead] = DiffusionHead) -> DiffusionHead:
    generator = torch.Generator().manual_seed(0)
    made = kind(CHANNELS, COND, DEPTH, WIDTH).requires_grad_(False)
    for parameter in made.parameters():
        parameter.normal_(0, 0.2, generator=generator)
    return made


# -- the process ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sections", [(), (1,), (0, 0), (1001,), (501, 2), (-1, 5)])
def test_a_spacing_that_does_not_exist_is_refused(sections: tuple[int, ...]) -> None:
    with pytest.raises(Unsupported, match="cannot be respaced"):
        respaced(sections)


@pytest.mark.parametrize("steps", [1, STEPS + 1])
def test_a_plan_asks_for_no_more_steps_than_the_process_has(steps: int) -> None:
    with pytest.raises(Unsupported, match=rf"cannot be respaced to {steps}\. Use 2 … 1000 steps"):
        TINY_MAR.spacing(Sampling(diffusion_steps=steps))


# -- guidance and noise -----------------------------------------------------------------------------------------------


def test_normal_numbers_are_normal() -> None:
    uniform = (torch.arange(2**16) + 0.5) / 2**16
    numbers = normal(uniform).double()
    assert abs(float(numbers.mean())) < 1e-4
    assert abs(float(numbers.std()) - 1) < 1e-3
    torch.testing.assert_close(torch.special.ndtr(numbers), uniform.double(), rtol=0, atol=1e-6)
    extremes = torch.tensor([2.0**-24, 1 - 2.0**-24])
    assert normal(extremes).isfinite().all()


# -- training ---------------------------------------------------------------------------------------------------------
def test_the_bound_trains_the_variance_alone() -> None:
    made = head().requires_grad_(True)
    generator = torch.Generator().manual_seed(0)
    z, start, noise = (torch.randn(2, 6, width, generator=generator) for width in (COND, CHANNELS, CHANNELS))
    index = torch.randint(0, STEPS, (2, 6), generator=generator)
    index[0, 0] = 0
    squared, bound = terms(made, z, start, noise, index)
    weight = made.net.final_layer.linear.weight
    (of_bound,) = torch.autograd.grad(bound.sum(), weight, retain_graph=True)
    (of_squared,) = torch.autograd.grad(squared.sum(), weight)
    assert of_bound[:CHANNELS].abs().max() == 0 < of_bound[CHANNELS:].abs().max()
    assert of_squared[CHANNELS:].abs().max() == 0 < of_squared[:CHANNELS].abs().max()
