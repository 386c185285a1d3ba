"""Training of the tokenizer: the moving codebook, and that a killed run continues to the same weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cachemark.models.tiny.tiny_vq import TinyVQ, TinyVQConfig, load
from tools.train.loops import TrainingRun, train
from tools.train.tokenizers import CodesTask, DecoderTask, MovingCodebook

pytestmark = pytest.mark.usefixtures("quick")
SMALL = TinyVQConfig(codes=8, channels=2, width=16, blocks=1)


@pytest.fixture
def vq() -> TinyVQ:
    return TinyVQ(SMALL)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def clusters(centres: torch.Tensor, spread: float = 0.01) -> torch.Tensor:
    """Latents (1, 2, 8, 8) around the given centres (n, 2), n dividing 64."""
    points = centres.repeat(64 // len(centres), 1) + spread * torch.randn(64, 2, generator=generator())
    return points.T.reshape(1, 2, 8, 8)


def nearest(points: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Distance of each of ``points`` (n, d) to the nearest of ``others`` (m, d); exact, which ``cdist`` is not."""
    return (points[:, None] - others[None]).norm(dim=-1).amin(1)


def moving(vq: TinyVQ, **options: float) -> MovingCodebook:
    return MovingCodebook(vq.config.codes, vq.config.channels, **options)


def follow(codebook: MovingCodebook, vq: TinyVQ, latents: torch.Tensor, draws: torch.Generator) -> torch.Tensor:
    """One step of training: the codes of ``latents``, and the codebook moved towards them."""
    vectors = latents.movedim(1, -1).flatten(0, -2)
    codebook.start(vq.codebook, vectors, draws)
    codes = vq.quantise(latents)
    codebook.move(vq.codebook, vectors, codes.flatten(), draws)
    return codes


def test_the_first_batch_fills_the_codebook(vq: TinyVQ) -> None:
    latents = torch.randn(1, 2, 8, 8, generator=generator()) + 5
    codebook = moving(vq, decay=1.0)
    follow(codebook, vq, latents, generator())
    assert nearest(vq.codebook, latents.flatten(2)[0].T).max() < 1e-5, "each code is one of the latents"


def test_codes_follow_their_latents(vq: TinyVQ) -> None:
    codebook, draws = moving(vq, decay=0.5, dead=0.0), generator()
    corners = torch.tensor([[3.0, 3.0], [3.0, -3.0], [-3.0, 3.0], [-3.0, -3.0]])
    follow(codebook, vq, clusters(corners), draws)
    for _ in range(30):
        codes = follow(codebook, vq, clusters(corners + 0.5), draws)
    assert nearest(corners + 0.5, vq.codebook[codes.unique()]).max() < 0.05


def test_dead_codes_are_revived(vq: TinyVQ) -> None:
    codebook, draws = moving(vq, decay=0.5), generator()
    follow(codebook, vq, clusters(torch.tensor([[0.0, 0.0]])), draws)
    angles = torch.arange(8) * torch.pi / 4
    circle = 20 * torch.stack((angles.cos(), angles.sin()), 1)
    for _ in range(40):
        codes = follow(codebook, vq, clusters(circle), draws)
    assert codes.unique().numel() == 8


def test_the_loss_reaches_the_encoder_and_not_the_codebook() -> None:
    task = CodesTask(0, config=SMALL, batch=2)
    task.loss(0, generator()).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in task.model.encoder.parameters() if p.dim() > 1)
    assert task.model.codebook.grad is None


def test_the_seed_decides_weights_and_data() -> None:
    losses = [float(CodesTask(seed, config=SMALL, batch=2).loss(0, generator()).detach()) for seed in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]


def test_a_killed_run_ends_as_an_uninterrupted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(name: str) -> TrainingRun:
        return TrainingRun(tmp_path / name, 8, every=3, threads=1)

    whole = train(CodesTask(0, config=SMALL, batch=2), plan("whole"))
    task, own = CodesTask(0, config=SMALL, batch=2), CodesTask.loss
    monkeypatch.setattr(task, "loss", lambda step, draws: own(task, step, draws) if step < 5 else (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        train(task, plan("parts"))
    continued = train(CodesTask(0, config=SMALL, batch=2), plan("parts"))
    a, b = load_file(str(whole)), load_file(str(continued))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert load(continued).config == SMALL


def test_the_second_stage_keeps_the_codes_and_improves_the_pictures(tmp_path: Path) -> None:
    first = train(CodesTask(0, config=SMALL, batch=2), TrainingRun(tmp_path, 3, threads=1))
    task = DecoderTask(first, batch=2)
    before, language = task.validate()["psnr"], task.model.language
    second = train(task, TrainingRun(tmp_path, 12, threads=1))
    assert second.name == "tiny-vq.safetensors"
    assert load(second).language == load(first).language == language
    assert json.loads(second.with_suffix(".json").read_text())["language"] == language
    assert task.validate()["psnr"] > before
