"""VAR, Infinity and MAR beyond their vectors: what a generation costs, draws and stores, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from official import written

from cachemark.cache import random_streams as streams
from cachemark.cache.arena import Memory
from cachemark.cache.timesteps import STEPS, respaced
from cachemark.core.errors import BadCheckpoint, Unsupported
from cachemark.core.spec import Sampling
from cachemark.methods.base.paper_baseline import ConcatFull
from cachemark.methods.full import Full
from cachemark.models import text_features, var
from cachemark.models.catalogue import masked_models
from cachemark.models.diffusion import normal
from cachemark.models.infinity import Infinity
from cachemark.models.mar import MAR
from cachemark.models.tiny.tokenizers import Sizes, TinyKL
from cachemark.models.vision.bsq import bits_of, packed_bits
from support.tiny_models import INFINITY_SIZES, MAR_SIZES, QUANTIZER, VAR_SIZES


def var_model(**options: bool) -> var.VAR:
    return var.VAR(VAR_SIZES, QUANTIZER, **options).initialise(0).eval().requires_grad_(False)


def generate(model: var.VAR, method: Full | ConcatFull, seeds: list[int], schedule: str = "linear") -> torch.Tensor:
    return model.generate(torch.tensor(seeds) % 10, seeds, method, Sampling(cfg_scale=1.5, cfg_schedule=schedule), Memory())


def test_the_condition_is_projected_once_and_the_reference_cache_has_equal_tokens_and_more_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    modulations = var.VAR.modulations
    monkeypatch.setattr(var.VAR, "modulations", lambda self, cond: calls.append(1) or modulations(self, cond))
    once = generate(var_model(), Full(), [0, 1])
    assert len(calls) == 1
    often = generate(var_model(recompute=True), Full(), [0, 1])
    assert len(calls) == 1 + len(VAR_SIZES.sides)
    assert torch.equal(once, often)
    model, plain, published = var_model(), Full(), ConcatFull()
    assert torch.equal(generate(model, plain, [0, 1, 2]), generate(model, published, [0, 1, 2]))
    shape = 2 * 3 * VAR_SIZES.depth * VAR_SIZES.dim  # rows with guidance, layers, channels
    assert plain.logical_bytes == shape * (1 + 4 + 9) * 2 * 4
    assert published.logical_bytes == shape * 30 * (4 + 4)


def test_what_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsupported, match="linear"):
        generate(var_model(), Full(), [0], "constant")
    path = written("var", tmp_path / "var", monkeypatch).request.weights
    with pytest.raises(BadCheckpoint, match="patch_nums 1 2 3 4; this model has 1 2 5"):
        var.check_sides(replace(VAR_SIZES, sides=(1, 2, 5)), path)
    with pytest.raises(BadCheckpoint, match="has 4 channels; this model needs 8"):
        masked_models.build(masked_models.TINY_MAR, TinyKL(Sizes(channels=4, width=16, blocks=1)))


def test_bits_survive_being_packed_and_each_is_drawn_at_its_own_odds() -> None:
    for count in (5, 32, 56, 63):
        bits = torch.randint(0, 2, (3, 7, count), generator=torch.Generator().manual_seed(0))
        bits[0, 0], bits[0, 1] = 0, 1
        tokens = packed_bits(bits)
        assert torch.equal(bits_of(tokens, count), bits)
        assert tokens.min() >= 0
    model = Infinity(INFINITY_SIZES, [torch.ones(length, INFINITY_SIZES.text) for length in (2, 5, 3)])
    model = model.initialise(0).eval().requires_grad_(False)
    model.head.weight.zero_()
    model.head.bias.copy_(torch.tensor([-99.0, 99, 99, -99, *[0] * 6]))
    tokens = model.generate(torch.tensor([0, 1, 2] * 20), range(60), Full(), Sampling(cfg_scale=3.0), Memory())
    share = bits_of(tokens, INFINITY_SIZES.bits).double().mean((0, 1))
    assert share[:2].tolist() == [1, 0]
    assert ((share[2:] > 0.42) & (share[2:] < 0.58)).all()
    assert len(tokens.unique()) == 8


def test_another_text_encoder_is_another_model_and_one_that_does_not_fit_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, request, _ = written("infinity", tmp_path / "infinity", monkeypatch, channels=64)
    before, file = entry.identity(request), tmp_path / "infinity" / text_features.ENCODER / "config.json"
    with pytest.raises(BadCheckpoint, match="has 64 channels; this model reads 128"):
        entry.load(request)
    file.write_text(file.read_text().replace('"d_ff": 32', '"d_ff": 16'))
    assert entry.identity(request) != before
    file.unlink()
    with pytest.raises(BadCheckpoint, match="no text encoder"):
        entry.identity(request)


def test_orders_and_normal_noise_belong_to_seed_place_and_pass() -> None:
    model = MAR(MAR_SIZES).initialise(0)
    order = model.order(streams.seeds_tensor([4, 9], "cpu"))
    assert torch.equal(order.sort(1).values, torch.arange(16).expand(2, -1))
    assert not torch.equal(order[0], order[1])
    assert order[0, 0] == streams.integers(streams.keys(torch.tensor(4), "order", 0), 16).argmin()
    key = streams.seeds_tensor([3, 8], "cpu")
    places = torch.tensor([[0, 5, 9], [2, 3, 4]])
    noise = model.noise(key, places, 6)
    assert noise.shape == (7, 2, 3, 4)
    assert torch.equal(model.noise(key[1:], places[1:, 1:2], 6), noise[:, 1:, 1:2])
    assert torch.equal(model.noise(key, places, 12)[:7], noise)
    assert noise.unique().numel() > 0.99 * noise.numel()
    uniform = streams.uniform(streams.keys(key[:, None], "noise", places), 4)
    assert torch.equal(noise[0], normal(uniform)), "no other purpose may share the stream"
    uniform = (torch.arange(2**16) + 0.5) / 2**16
    numbers = normal(uniform).double()
    assert (float(numbers.mean()), float(numbers.std())) == pytest.approx((0, 1), abs=1e-3)
    torch.testing.assert_close(torch.special.ndtr(numbers), uniform.double(), rtol=0, atol=1e-6)
    assert normal(torch.tensor([2.0**-24, 1 - 2.0**-24])).isfinite().all()


def test_a_head_begins_where_something_is_left_and_other_spacings_are_refused() -> None:
    for steps, first in ((0, 960), (25, 960), (10, 900), (2, 500)):
        timesteps = respaced(masked_models.TINY_MAR.spacing(Sampling(diffusion_steps=steps)))
        assert (timesteps[-1], len(timesteps)) == (first, steps or 25)
    for sections in ((), (1,), (0, 0), (1001,), (501, 2), (-1, 5)):
        with pytest.raises(Unsupported, match="cannot be respaced"):
            respaced(sections)
    for steps in (1, STEPS + 1):
        with pytest.raises(Unsupported, match=rf"cannot be respaced to {steps}\. Use 2 … 1000 steps"):
            masked_models.TINY_MAR.spacing(Sampling(diffusion_steps=steps))
