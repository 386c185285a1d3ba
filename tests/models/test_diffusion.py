"""The diffusion head beyond its vectors: caching, method scopes, and noise per sample."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.masked_layout import MaskedStep
from cachemark.cache.timesteps import STEPS, respaced
from cachemark.contract.method import Bidirectional
from cachemark.core.errors import Unsupported
from cachemark.models.diffusion import DiffusionHead, EagerHead, normal, process
from tools.train.mar_loss import terms

CHANNELS, COND, DEPTH, WIDTH = 4, 24, 3, 32
STEP = MaskedStep(3, 8, count=5)


def head(kind: type[DiffusionHead] = DiffusionHead) -> DiffusionHead:
    generator = torch.Generator().manual_seed(0)
    made = kind(CHANNELS, COND, DEPTH, WIDTH).requires_grad_(False)
    for parameter in made.parameters():
        parameter.normal_(0, 0.2, generator=generator)
    return made


def drawn(sections: tuple[int, ...], rows: int = 4, batch: int = 2) -> tuple[Tensor, Tensor]:
    """Return conditions and noise for five tokens per sample."""
    generator = torch.Generator().manual_seed(1)
    shape = (1 + len(process(respaced(sections))), batch, 5, CHANNELS)
    return torch.randn(rows, 5, COND, generator=generator), torch.randn(shape, generator=generator)


# -- the process ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sections", [(), (1,), (0, 0), (1001,), (501, 2), (-1, 5)])
def test_a_spacing_that_does_not_exist_is_refused(sections: tuple[int, ...]) -> None:
    with pytest.raises(Unsupported, match="cannot be respaced"):
        respaced(sections)


# -- quick and eager --------------------------------------------------------------------------------------------------
def test_no_tensor_comes_from_the_host_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    made, eager = head(), head(EagerHead)
    z, noise = drawn((10,))
    schedule = made.schedule(respaced((10,)), 1.0)

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("made on the host")

    for name in ("tensor", "from_numpy", "full", "arange"):
        monkeypatch.setattr(torch, name, refused)
    made.sample(z, noise, 3.0, schedule, STEP, Bidirectional())
    with pytest.raises(AssertionError, match="made on the host"):
        eager.sample(z, noise, 3.0, schedule, STEP, Bidirectional())


# -- guidance and noise -----------------------------------------------------------------------------------------------
def test_temperature_zero_leaves_the_first_noise() -> None:
    made, (z, noise) = head(), drawn((10, 0), rows=2)
    cold = made.schedule(respaced((10, 0)), 0.0)
    first = made.sample(z, noise, None, cold, STEP, Bidirectional())
    other = torch.cat((noise[:1], noise[1:] + 1))
    assert torch.equal(first, made.sample(z, other, None, cold, STEP, Bidirectional()))
    assert not torch.equal(first, made.sample(z, noise + 1, None, cold, STEP, Bidirectional()))


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
