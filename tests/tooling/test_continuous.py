"""Training of the KL autoencoder and of the masked model on its tokens."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from cachemark.models.diffusion import STEPS, DiffusionHead, process
from cachemark.models.mar import MARConfig
from cachemark.models.tiny.tiny_kl import TinyKL, TinyKLConfig
from tools.train.continuous import NEAR, OFFSETS, READ, SPARSE, WIDE, LatentsTask, MaskedTask, waves
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
def test_the_latents_are_drawn_towards_a_standard_normal_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    task = LatentsTask(config=SMALL, batch=2)
    task.model.requires_grad_(False)
    mean, log_variance = task.model.moments(task.images(0))
    apart = kl_divergence(Normal(mean, torch.exp(log_variance / 2)), Normal(torch.zeros(()), torch.ones(()))).mean()
    losses = []
    for weight in (0.0, 2.0):
        monkeypatch.setattr("tools.train.continuous.DIVERGENCE", weight)
        losses.append(task.loss(0, draws()))
    assert losses[1] - losses[0] == pytest.approx(2 * float(apart), rel=1e-4)


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


def test_the_held_out_figure_is_the_reconstruction_of_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    task = LatentsTask(config=SMALL, batch=2)
    monkeypatch.setattr(TinyKL, "decode", lambda self, tokens: scenes(8, drawn_with[0]).images + 0.2)
    drawn_with: list[int] = []
    monkeypatch.setattr("tools.train.tokenizers.scenes", lambda n, seed, device: drawn_with.append(seed) or scenes(n, seed))
    figures = task.validate()
    assert figures.keys() == {"psnr", "psnr_pooled"}, "there are no codes to count"
    assert 20 < figures["psnr"] < 26.2, "an error of 0.2, or less where the picture is clamped"


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


def test_strong_noise_comes_more_often_in_training_and_not_in_validation(masked: MaskedTask, monkeypatch: pytest.MonkeyPatch) -> None:
    indices = noised_to(monkeypatch)
    masked.loss(0, draws())
    assert len(indices[0]) == 2, "each token is noised once in training"
    assert float(indices[0].float().mean()) == pytest.approx(750, abs=40)
    masked.validate()
    assert float(indices[1].float().mean()) == pytest.approx(500, abs=40)


def test_the_error_of_a_token_is_that_of_the_first_step_of_a_generation(masked: MaskedTask, monkeypatch: pytest.MonkeyPatch) -> None:
    indices = noised_to(monkeypatch)
    figures = masked.validate()
    first = masked.first
    at_first = [index for index in indices if bool((index == first).all())]
    batches = len(masked.held_out())
    assert Counter(index.shape[1] for index in at_first) == {248: 2 * batches, 220: 2 * batches, 128: batches}
    # A head that predicts no noise takes the noised token for the token, magnified: its error is that of the noise alone.
    assert figures["token_mse_36"] == pytest.approx(float(masked.weight(torch.tensor(first))), rel=0.05)


def test_noise_counts_as_much_as_the_error_that_it_makes(masked: MaskedTask) -> None:
    index = torch.tensor([0, 300, 700, 850, 999])
    full_process = process((STEPS,))
    made = (full_process.at("noise", index) / full_process.at("signal", index)).square().squeeze(1)
    first = masked.weight(torch.tensor(masked.first))
    assert torch.allclose(masked.weight(index), made.clamp_min(1).minimum(first))
    assert masked.weight(index)[:2].tolist() == [1, 1], "where little noise is, the error of the noise stays"


def test_as_many_tokens_are_hidden_as_in_the_steps_of_a_generation(masked: MaskedTask) -> None:
    hidden = sorted(masked._masked(WIDE, generator_of(0, step)) for step in range(400))
    assert (hidden[0], hidden[-1]) == (8, 256)
    scheduled = [math.ceil(256 * math.cos(math.pi / 2 * (k + 0.5) / 20)) for k in range(20)][::-1]
    middles = [hidden[20 * k + 10] for k in range(20)]
    assert all(abs(a - b) < 16 for a, b in zip(scheduled, middles, strict=True)), "the schedule of twenty passes"


def test_at_first_half_of_the_tokens_are_known_and_then_fewer_and_fewer(masked: MaskedTask) -> None:
    middle = (NEAR + WIDE) // 2
    most = [max(masked._masked(at, generator_of(0, step)) for step in range(100)) for at in (0, NEAR, middle, WIDE, SPARSE - 1)]
    assert most == [128, 128, 192, 256, 256]


def test_places_begin_as_waves_in_which_only_neighbours_are_alike() -> None:
    table = waves(16, 160)
    assert table.shape == (256, 160)
    alike = torch.nn.functional.cosine_similarity(table[:, None], table[None], dim=-1).view(16, 16, 16, 16)
    row = alike[8, 8, 8, 8:]
    assert bool((row[:3].diff() < 0).all()), "less with each place between"
    assert float(row[3:].max()) < float(row[2])
    assert torch.allclose(row, alike[8, 8, 8:, 8]), "in rows as in columns"
    assert torch.allclose(alike[0, 0, 3, 2], alike[9, 4, 12, 6]), "the same wherever they are"


def test_heads_begin_by_looking_at_the_neighbours(tokenizer: Path) -> None:
    """Scores of the places alone are highest at the neighbour on a head's side, wherever there is one."""
    heads = len(OFFSETS)
    model = MaskedTask(tokenizer, config=replace(MAR, dim=16 * heads, heads=heads), batch=2).model
    table = model.decoder_pos_embed_learned[0, -256:]
    for block in (*model.encoder_blocks, *model.decoder_blocks):
        q, k, _ = block.attn.qkv(table).unflatten(-1, (3, heads, -1)).permute(1, 2, 0, 3)
        attended = (q @ k.mT).argmax(-1).view(heads, 16, 16)[:, 1:-1, 1:-1]
        places = torch.arange(256).view(16, 16)
        assert all(torch.equal(attended[h], places[1 + dy : 15 + dy, 1 + dx : 15 + dx]) for h, (dy, dx) in enumerate(OFFSETS))


def test_a_step_with_a_large_error_of_the_read_out_weighs_no_more(masked: MaskedTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens ten times as far from what is read out: the same share of the error is gained, so the gradient relative to it is the same."""
    monkeypatch.setattr(DiffusionHead, "terms", lambda self, z, start, noise, index: (torch.zeros(z.shape[:2]),) * 2)
    hidden, norms = type(masked.model).hidden, []
    for scale in (1.0, 10.0):
        monkeypatch.setattr(type(masked.model), "hidden", lambda *a, s=scale, **b: (lambda z, start: (z, s * start))(*hidden(*a, **b)))
        masked.reader.zero_grad()
        masked.loss(0, draws()).backward()
        norms.append(masked.reader.weight.grad.norm() * scale)
    assert float(norms[0]) == pytest.approx(float(norms[1]), rel=1e-3)


def test_held_out_samples_are_seen_with_their_classes(masked: MaskedTask) -> None:
    masked.model.fake_latent.data.fill_(torch.nan)
    figures = masked.validate()
    assert math.isfinite(figures["noise_mse"])
    assert math.isfinite(figures["token_mse_36"])
    assert math.isnan(figures["token_mse_36_unlabelled"])
    masked.model.class_emb.weight.data.fill_(torch.nan)
    assert math.isnan(masked.validate()["noise_mse"])


def test_a_step_has_its_own_tokens_drawn_from_the_autoencoder(masked: MaskedTask) -> None:
    tokens = masked.fresh(3)[1]
    assert tokens.shape == (2, 256, 4)
    assert torch.equal(masked.fresh(3)[1], tokens)
    assert not torch.equal(masked.fresh(4)[1], tokens)
    images = scenes(64, 1).images
    noise = masked.tokens(images, draws()) - masked.tokenizer.encode(images)
    deviation = torch.exp(0.5 * masked.tokenizer.moments(images)[1]).mean((0, 2, 3)) / masked.tokenizer.deviation
    assert torch.allclose(noise.std((0, 1)), deviation, rtol=0.05)


# -- both -------------------------------------------------------------------------------------------------------------
