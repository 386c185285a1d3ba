"""The sample run of the report's tests stands beside them; and training that holds little out."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachemark.models.tiny.tiny_vq import TinyVQConfig
from cachemark.tools.train.loops import TrainingRun, train
from cachemark.tools.train.tokenizers import CodesTask

sys.path.insert(0, str(Path(__file__).parent.parent / "report"))


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    """Few held-out scenes, and few encoded ahead."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cachemark.tools.train.tokenizers.HELD_OUT", 8)
        patch.setattr("cachemark.tools.train.generators.HELD_OUT", 8)
        patch.setattr("cachemark.tools.train.generators.CHUNK", 2)
        yield


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of an untrained tokenizer of codes; tokens need not mean much here."""
    task = CodesTask(0, config=TinyVQConfig(codes=8, channels=2, width=16, blocks=1), batch=2)
    return train(task, TrainingRun(tmp_path_factory.mktemp("vq"), 1))
