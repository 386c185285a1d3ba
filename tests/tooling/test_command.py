"""``python -m tools.train`` from the outside."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from cachemark.core.errors import BadCheckpoint
from cachemark.models.catalogue.next_token import TINY_DECODER
from cachemark.models.weights import packaged
from tools.train import feature_network as features
from tools.train import loops
from tools.train.__main__ import train
from tools.train.generators import GeneratorTask
from tools.train.tokenizers import CodesTask, DecoderTask


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[loops.Task, loops.TrainingRun]]:
    """What the command asks the library to do, without doing it."""
    recorded: list[tuple[loops.Task, loops.TrainingRun]] = []

    def record(task: loops.Task, run: loops.TrainingRun) -> Path:
        recorded.append((task, run))
        return run.out / f"{task.name}.safetensors"

    monkeypatch.setattr(loops, "train", record)
    for name in ("keep_memory", "flush_denormals"):  # they would change the process that runs the tests
        monkeypatch.setattr(loops, name, lambda device: None)
    return recorded


def test_the_tokenizer_is_trained_in_two_stages(runs: list[tuple[loops.Task, loops.TrainingRun]], tmp_path: Path) -> None:
    shutil.copy(packaged(TINY_DECODER), tmp_path / "tiny-vq-codes.safetensors")  # what the first stage would have written
    done = CliRunner().invoke(train, ["tiny-vq", "--out", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0
    assert done.output == f"{tmp_path / 'tiny-vq.safetensors'}\n"
    (codes, first), (decoder, second) = runs
    assert isinstance(codes, CodesTask)
    assert first == loops.TrainingRun(tmp_path, codes.steps, warmup=codes.warmup, decay=codes.decay)
    assert isinstance(decoder, DecoderTask)
    assert second == loops.TrainingRun(tmp_path, decoder.steps, warmup=decoder.warmup, decay=decoder.decay)


def test_the_feature_network_is_followed_by_its_reference(
    runs: list[tuple[loops.Task, loops.TrainingRun]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[Path, int, str]] = []
    monkeypatch.setattr(features, "write_reference", lambda weights, seed, *, device: written.append((weights, seed, device)))
    CliRunner().invoke(train, ["tiny-features", "--out", str(tmp_path), "--seed", "3"], catch_exceptions=False)
    ((task, run),) = runs
    assert isinstance(task, features.FeaturesTask)
    assert run == loops.TrainingRun(tmp_path, task.steps, seed=3, warmup=task.warmup, decay=task.decay)
    assert written == [(tmp_path / "tiny-features.safetensors", 3, "cpu")]


def test_every_option_arrives(runs: list[tuple[loops.Task, loops.TrainingRun]], tmp_path: Path) -> None:
    options = ["--steps", "7", "--seed", "5", "--threads", "1", "--device", "cpu", "--fresh"]
    CliRunner().invoke(train, ["tiny-llamagen", "--out", str(tmp_path), *options], catch_exceptions=False)
    (task, run), *_ = runs
    assert isinstance(task, GeneratorTask)
    assert task.seed == 5
    assert run == loops.TrainingRun(tmp_path, 7, seed=5, threads=1, resume=False, warmup=task.warmup, decay=task.decay)


def test_a_tokenizer_in_the_folder_is_preferred(runs: list[tuple[loops.Task, loops.TrainingRun]], tmp_path: Path) -> None:
    (tmp_path / "tiny-vq.safetensors").write_text("no weights")
    with pytest.raises(BadCheckpoint, match=r"tiny-vq\.safetensors"):
        CliRunner().invoke(train, ["tiny-llamagen", "--out", str(tmp_path)], catch_exceptions=False)
    assert not runs
