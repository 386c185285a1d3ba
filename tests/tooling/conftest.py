"""The sample run of the report's tests stands beside them; and training that holds little out."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from cachemark.models.tiny.tiny_vq import TinyVQConfig
from tools.train.loops import TrainingRun, train
from tools.train.tokenizers import CodesTask

sys.path.insert(0, str(Path(__file__).parent.parent / "report"))


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    """Few held-out scenes, and few encoded ahead."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tools.train.tokenizers.HELD_OUT", 8)
        patch.setattr("tools.train.generators.HELD_OUT", 8)
        patch.setattr("tools.train.generators.CHUNK", 2)
        yield


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of an untrained tokenizer of codes; tokens need not mean much here."""
    task = CodesTask(0, config=TinyVQConfig(codes=8, channels=2, width=16, blocks=1), batch=2)
    return train(task, TrainingRun(tmp_path_factory.mktemp("vq"), 1))


@pytest.fixture
def ends_as_uninterrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any], int], None]:
    """Asserts that a task's training which is killed at its last step and continued leaves the weights of one that was not."""
    def check(make: Callable[[], Any], steps: int) -> None:
        def plan(name: str) -> TrainingRun:
            return TrainingRun(tmp_path / name, steps, every=2, threads=1)

        def loss(step: int, draws: Any) -> Any:
            if step == steps - 1:
                raise KeyboardInterrupt
            return own(step, draws)

        whole, task = train(make(), plan("whole")), make()
        own = task.loss
        monkeypatch.setattr(task, "loss", loss)
        with pytest.raises(KeyboardInterrupt):
            train(task, plan("parts"))
        a, b = load_file(str(whole)), load_file(str(train(make(), plan("parts"))))
        assert all(torch.equal(a[name], b[name]) for name in a)

    return check
