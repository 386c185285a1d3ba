"""Training of the token model: its data, its optimisers, and a killed run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cachemark.models.llamagen import LlamaGenConfig
from cachemark.models.tiny.tiny_vq import load
from tools.train import generators
from tools.train.generators import GeneratorTask
from tools.train.loops import TrainingRun, train

pytestmark = pytest.mark.usefixtures("quick")
SMALL = LlamaGenConfig(layers=1, heads=2, dim=32, vocab=8, classes=10, grid=16)


def make(tokenizer: Path, seed: int = 0) -> GeneratorTask:
    return GeneratorTask(tokenizer, seed, config=SMALL, batch=2)


def test_a_step_has_its_own_data_whatever_came_before(tokenizer: Path) -> None:
    first, second = make(tokenizer), make(tokenizer)
    chunk = generators.CHUNK
    steps = (0, 1, chunk - 1, chunk, 2 * chunk + 1)
    for step in steps:
        first.fresh(step)
    for step in reversed(steps):
        (labels, codes), (again, same) = first.fresh(step), second.fresh(step)
        assert torch.equal(labels, again)
        assert torch.equal(codes, same)
    assert not torch.equal(first.fresh(0)[1], first.fresh(1)[1])
    assert not torch.equal(first.fresh(0)[1], first.fresh(chunk)[1])


def test_tokens_are_those_of_the_tokenizer(tokenizer: Path) -> None:
    labels, codes = make(tokenizer).fresh(3)
    assert labels.shape == (2,)
    assert codes.shape == (2, 256)
    assert int(codes.max()) < 8


def test_training_starts_from_uniform_predictions(tokenizer: Path) -> None:
    assert make(tokenizer).validate()["nats_per_token"] == pytest.approx(torch.tensor(8.0).log().item(), abs=1e-3)


def test_some_labels_become_the_null_class(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, seen = make(tokenizer), []
    own = task.model.teacher
    monkeypatch.setattr(task.model, "teacher", lambda labels, codes: seen.append(labels) or own(labels, codes))
    draws = torch.Generator().manual_seed(0)
    for step in range(100):
        task.loss(step % generators.CHUNK, draws)
    null = float((torch.cat(seen) == SMALL.classes).float().mean())
    assert 0.03 < null < 0.2


def test_muon_takes_the_matrices_of_the_blocks_and_adam_the_rest(tokenizer: Path) -> None:
    task = make(tokenizer)
    names = {id(p): name for name, p in task.model.named_parameters()}
    by_muon = {names[id(p)] for g in task.muon.param_groups for p in g["params"]}
    by_adam = {names[id(p)] for g in task.adam.param_groups for p in g["params"]}
    assert by_muon == {name for name in names.values() if name.startswith("layers.") and "norm" not in name}
    assert by_muon | by_adam == set(names.values())
    assert not by_muon & by_adam


def test_training_lowers_the_loss(tokenizer: Path, tmp_path: Path) -> None:
    task = make(tokenizer)
    before = task.validate()["nats_per_token"]
    train(task, TrainingRun(tmp_path, 20, threads=1))
    assert task.validate()["nats_per_token"] < before - 0.1


def test_a_killed_run_ends_as_an_uninterrupted_one(tokenizer: Path, ends_as_uninterrupted: Callable[..., None]) -> None:
    ends_as_uninterrupted(lambda: make(tokenizer), 6)


def test_the_weights_name_their_tokenizer(tokenizer: Path, tmp_path: Path) -> None:
    train(make(tokenizer), TrainingRun(tmp_path, 1, threads=1))
    about = json.loads((tmp_path / "tiny-llamagen.json").read_text())
    assert about["language"] == load(tokenizer).language
    assert about["config"]["dim"] == SMALL.dim
