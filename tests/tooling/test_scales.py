"""Training of the multi-scale tokenizer and of the next-scale model on its tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cachemark.core.errors import BadCheckpoint
from cachemark.models.tiny import tiny_msvq as msvq
from cachemark.models.tiny.tiny_msvq import TinyMSVQ, TinyMSVQConfig
from cachemark.models.var import VARConfig
from tools.train.generators import ScalesTask
from tools.train.loops import TrainingRun, train
from tools.train.tokenizers import ScaleCodesTask

pytestmark = pytest.mark.usefixtures("quick")
SMALL = TinyMSVQConfig(codes=8, channels=4, width=16, blocks=1)
VAR = VARConfig(depth=2, heads=2, dim=32, sides=SMALL.sides, vocab=8, classes=10, width=4)


def draws() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(ScaleCodesTask(config=SMALL, batch=2), TrainingRun(tmp_path_factory.mktemp("msvq"), 2, threads=1))


def test_the_loss_reaches_encoder_phi_and_decoder_and_not_the_codebook() -> None:
    task = ScaleCodesTask(config=SMALL, batch=2)
    task.loss(0, draws()).backward()
    for part in (task.model.encoder, task.model.decoder, task.model.quantizer.quant_resi):
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in part.parameters() if p.dim() > 1)
    assert task.model.quantizer.embedding.weight.grad is None


def test_the_codebook_moves_towards_what_the_scales_ask_of_it() -> None:
    task = ScaleCodesTask(config=SMALL, batch=2)
    task.loss(0, draws())
    before = task.model.quantizer.embedding.weight.clone()
    task.loss(1, draws())
    assert not torch.equal(before, task.model.quantizer.embedding.weight)


def test_training_lowers_the_loss() -> None:
    task = ScaleCodesTask(config=SMALL, batch=4)
    losses = []
    for step in range(25):
        loss = task.loss(step, draws())
        loss.backward()
        task.optimiser.step()
        task.optimiser.zero_grad()
        losses.append(float(loss.detach()))
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


def test_weights_come_back_as_they_were_stored(tokenizer: Path) -> None:
    loaded, stored = msvq.load(tokenizer), load_file(tokenizer)
    assert loaded.config == SMALL
    assert all(torch.equal(tensor, stored[name].float()) for name, tensor in loaded.state_dict().items())
    codes = loaded.encode(torch.rand(2, 3, 64, 64, generator=draws()) * 2 - 1)
    assert codes.shape == (2, sum(side**2 for side in SMALL.sides))
    assert loaded.decode(codes).shape == (2, 3, 64, 64)


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    from cachemark.models.weights import packaged

    with pytest.raises(BadCheckpoint, match="it says it is 'tiny-vq'"):
        msvq.load(packaged("tiny-vq.safetensors"))


def test_a_killed_run_ends_as_an_uninterrupted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(name: str) -> TrainingRun:
        return TrainingRun(tmp_path / name, 4, every=2, threads=1)

    whole = train(ScaleCodesTask(config=SMALL, batch=2), plan("whole"))
    task = ScaleCodesTask(config=SMALL, batch=2)
    loss = task.loss

    def killed(step: int, generator: torch.Generator) -> torch.Tensor:
        if step == 3:
            raise KeyboardInterrupt
        return loss(step, generator)

    monkeypatch.setattr(task, "loss", killed)
    with pytest.raises(KeyboardInterrupt):
        train(task, plan("killed"))
    again = train(ScaleCodesTask(config=SMALL, batch=2), plan("killed"))
    one, other = load_file(whole), load_file(again)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_language_does_not_hang_on_the_decoder() -> None:
    model = TinyMSVQ(SMALL)
    before = model.language
    model.decoder[0].weight.data += 1
    assert model.language == before
    model.quantizer.embedding.weight.data += 1
    assert model.language != before


def test_the_generator_learns_and_says_what_it_was_trained_on(tokenizer: Path, tmp_path: Path) -> None:
    task = ScalesTask(tokenizer, config=VAR, batch=2)
    start = task.validate()["nats_per_token"]
    assert start == pytest.approx(torch.log(torch.tensor(8.0)).item(), abs=1e-3), "it starts from uniform predictions"
    train(task, TrainingRun(tmp_path, 12, threads=1))
    assert task.validate()["nats_per_token"] < start - 0.02
    assert task.metadata()["language"] == task.tokenizer.language


def test_all_that_is_trained_is_moved(tokenizer: Path) -> None:
    """No weight of the blocks is forgotten by both optimisers; the quantiser is no part of the model."""
    task = ScalesTask(tokenizer, config=VAR, batch=2)
    trained = [p for optimiser in task.optimisers for group in optimiser.param_groups for p in group["params"]]
    assert sorted(map(id, trained)) == sorted(map(id, task.model.parameters()))
    assert not any("quantizer" in name for name in task.model.state_dict())
