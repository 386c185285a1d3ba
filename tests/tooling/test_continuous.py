"""Training of the KL autoencoder and of the masked model on its tokens."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cachemark.models.diffusion import DiffusionHead
from cachemark.models.mar import MARConfig
from cachemark.models.tiny.tiny_kl import TinyKLConfig
from tools.train.continuous import READ, WIDE, LatentsTask, MaskedTask
from tools.train.loops import TrainingRun, generator_of, train
from tools.train.scene import scenes

pytestmark = pytest.mark.usefixtures("quick")
SMALL = TinyKLConfig(channels=4, width=16, blocks=1)
MAR = MARConfig(dim=32, depth=(1, 1), heads=2, head_depth=1, head_width=16, channels=4, classes=10, buffer=2, steps=4, diffusion=(1,) * 4)


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def descend(task: LatentsTask | MaskedTask, steps: int) -> list[float]:
    """The losses of some updates at full learning rate."""
    losses = []
    for step in range(steps):
        loss = task.loss(step, generator_of(0, step))
        loss.backward()
        for optimiser in task.optimisers:
            optimiser.step()
            optimiser.zero_grad()
        losses.append(float(loss.detach()))
    return losses


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(LatentsTask(config=SMALL, batch=2), TrainingRun(tmp_path_factory.mktemp("kl"), 2, threads=1))


@pytest.fixture
def masked(tokenizer: Path) -> MaskedTask:
    return MaskedTask(tokenizer, config=MAR, batch=2)


# -- the autoencoder --------------------------------------------------------------------------------------------------


def test_tokens_end_up_with_mean_0_and_variance_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.train.tokenizers.FOLLOW", 0.3)  # a few steps stand for the hundred of a real run
    task = LatentsTask(config=SMALL, batch=8)
    with torch.no_grad():
        for step in range(15):
            task.loss(step, draws(step))
        images = scenes(32, 5).images
        tokens, plain = task.model.encode(images, draws()).flatten(0, 1), task.model.moments(images)[0]
    assert (plain.std((0, 2, 3)) - 1).abs().max() > 0.3, "they have not by themselves"
    assert tokens.mean(0).abs().max() < 0.15
    assert (tokens.std(0) - 1).abs().max() < 0.15


# -- the masked model -------------------------------------------------------------------------------------------------
def test_the_model_learns_and_says_what_it_was_trained_on(masked: MaskedTask) -> None:
    before = masked.validate()["noise_mse"]
    assert before == pytest.approx(1.0, abs=0.02), "it starts from a prediction of zero"
    losses = descend(masked, 30)
    assert sum(losses[-5:]) < sum(losses[:5]) - 5 * READ * math.log(1 / 0.8), "a fifth of the read-out's error is gone"
    assert masked.validate()["noise_mse"] < 0.9 * before
    assert masked.metadata()["language"] == masked.tokenizer.language


def test_the_held_out_figures_are_of_the_squared_error_alone_and_always_the_same(masked: MaskedTask) -> None:
    before, terms = masked.validate(), DiffusionHead.terms
    assert masked.validate() == before

    def louder(*arguments: object, **named: object) -> tuple[Tensor, Tensor]:
        squared, bound = terms(*arguments, **named)
        return squared, bound + 1

    quiet = masked.loss(0, draws()).detach()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DiffusionHead, "terms", louder)
        assert masked.validate() == before
        assert float(masked.loss(0, draws()).detach() - quiet) == pytest.approx(1, rel=1e-4), "training has both parts"


def noised_to(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The steps (rows, tokens) of the process that the head is then asked about, call by call."""
    indices, terms = [], DiffusionHead.terms

    def noted(self: DiffusionHead, z: Tensor, start: Tensor, noise: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        assert z.shape[:2] == start.shape[:2] == index.shape
        indices.append(index)
        return terms(self, z, start, noise, index)

    monkeypatch.setattr(DiffusionHead, "terms", noted)
    return indices


def test_the_error_of_a_token_is_that_of_the_first_step_of_a_generation(masked: MaskedTask, monkeypatch: pytest.MonkeyPatch) -> None:
    indices = noised_to(monkeypatch)
    figures = masked.validate()
    first = masked.first
    at_first = [index for index in indices if bool((index == first).all())]
    batches = len(masked.held_out())
    assert Counter(index.shape[1] for index in at_first) == {248: 2 * batches, 220: 2 * batches, 128: batches}
    # A head that predicts no noise takes the noised token for the token, magnified: its error is that of the noise alone.
    assert figures["token_mse_36"] == pytest.approx(float(masked.weight(torch.tensor(first))), rel=0.05)


def test_as_many_tokens_are_hidden_as_in_the_steps_of_a_generation(masked: MaskedTask) -> None:
    hidden = sorted(masked._masked(WIDE, generator_of(0, step)) for step in range(400))
    assert (hidden[0], hidden[-1]) == (8, 256)
    scheduled = [math.ceil(256 * math.cos(math.pi / 2 * (k + 0.5) / 20)) for k in range(20)][::-1]
    middles = [hidden[20 * k + 10] for k in range(20)]
    assert all(abs(a - b) < 16 for a, b in zip(scheduled, middles, strict=True)), "the schedule of twenty passes"


def test_a_step_has_its_own_tokens_drawn_from_the_autoencoder(masked: MaskedTask) -> None:
    tokens = masked.fresh(3)[1]
    assert tokens.shape == (2, 256, 4)
    assert torch.equal(masked.fresh(3)[1], tokens)
    assert not torch.equal(masked.fresh(4)[1], tokens)
    images = scenes(64, 1).images
    noise = masked.tokens(images, draws()) - masked.tokenizer.encode(images)
    deviation = torch.exp(0.5 * masked.tokenizer.moments(images)[1]).mean((0, 2, 3)) / masked.tokenizer.deviation
    assert torch.allclose(noise.std((0, 1)), deviation, rtol=0.05)
