"""Import path of the report tests' sample run, and training with little held-out data."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from cachemark.models.tiny.tokenizers import TinyVQConfig
from tools.train.loops import TrainingRun, train
from tools.train.tokenizers import CodesTask

sys.path.insert(0, str(Path(__file__).parent.parent / "report"))


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    """Few held-out scenes, and few encoded ahead."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("tokenizers", "generators", "feature_network"):
            patch.setattr(f"tools.train.{module}.HELD_OUT", 8)
        patch.setattr("tools.train.captioned.READ", 32)
        patch.setattr("tools.train.generators.CHUNK", 2)
        yield


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of an untrained tokenizer of codes; tokens need not mean much here."""
    task = CodesTask(0, config=TinyVQConfig(codes=8, channels=2, width=16, blocks=1), batch=2)
    return train(task, TrainingRun(tmp_path_factory.mktemp("vq"), 1))


@pytest.fixture
def ends_as_uninterrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any], int], Path]:
    """Asserts that a task's training which is killed at its last step and continued leaves the weights of one that was not; their path."""

    def check(make: Callable[[], Any], steps: int) -> Path:
        def plan(name: str) -> TrainingRun:
            return TrainingRun(tmp_path / name, steps, every=2, threads=1)

        def killed(step: int, draws: Any) -> Any:
            if step == steps - 1:
                raise KeyboardInterrupt
            return loss(step, draws)

        uninterrupted, task = train(make(), plan("uninterrupted")), make()
        loss = task.loss
        monkeypatch.setattr(task, "loss", killed)
        with pytest.raises(KeyboardInterrupt):
            train(task, plan("continued"))
        first, other = load_file(uninterrupted), load_file(train(make(), plan("continued")))
        assert first.keys() == other.keys()
        assert all(torch.equal(first[name], other[name]) for name in first)
        return uninterrupted

    return check
