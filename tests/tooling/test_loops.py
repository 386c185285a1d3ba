"""The loop: what is written, and that a killed run continues as if nothing had happened."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from cachemark.core.errors import BadCheckpoint
from tools.train import loops
from tools.train.loops import TrainingRun, train


class Line:
    """Fits a line to noisy points; small enough to train a hundred times. ``die_at`` is a step at which it is killed."""

    name = "line"
    data = "points-v1"
    steps = 40
    warmup = 4
    decay = 0.5

    def __init__(self, die_at: int = -1, flavour: str = "plain") -> None:
        self.model = nn.Linear(3, 1)
        nn.init.constant_(self.model.weight, 0.1)
        nn.init.zeros_(self.model.bias)
        self.adam = torch.optim.AdamW([{"params": self.model.parameters(), "peak": 0.05}], lr=0.05)
        self.die_at, self.flavour, self.rates = die_at, flavour, dict[int, float]()

    @property
    def parts(self) -> Mapping[str, nn.Module | torch.optim.Optimizer]:
        return {"model": self.model, "adam": self.adam}

    @property
    def optimisers(self) -> list[torch.optim.Optimizer]:
        return [self.adam]

    def metadata(self) -> dict[str, str]:
        return {"model": self.name, "config": json.dumps({"flavour": self.flavour})}

    def loss(self, step: int, generator: torch.Generator) -> Tensor:
        if step == self.die_at:
            raise KeyboardInterrupt
        self.rates[step - 1] = self.adam.param_groups[0]["lr"]
        x = torch.randn(8, 3, generator=generator)
        return (self.model(x) - x.sum(1, keepdim=True)).square().mean()

    def validate(self) -> dict[str, float]:
        return {"distance": float((self.model.weight.detach() - 1).abs().max())}


def run(out: Path, **changes: Any) -> TrainingRun:
    return replace(TrainingRun(out, 40, seed=3, every=7, threads=1), **changes)


def weights(path: Path) -> dict[str, Tensor]:
    return load_file(str(path))


def same(a: Path, b: Path) -> bool:
    return all(torch.equal(x, y) for x, y in zip(weights(a).values(), weights(b).values(), strict=True))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    task = Line()
    before = task.validate()["distance"]
    plan = run(tmp_path_factory.mktemp("trained"))
    train(task, plan)
    assert task.validate()["distance"] < before / 3, "training learns"
    for step in range(39):
        assert task.rates[step] == pytest.approx(0.05 * plan.factor(step)), "the rates reach the optimiser"
    return plan.out


@pytest.fixture
def finished(trained: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(trained, tmp_path / "finished"))


@pytest.mark.parametrize("killed", [0, 13, 35, 39])
def test_a_killed_run_ends_as_an_uninterrupted_one(killed: int, trained: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(Line(die_at=killed), run(tmp_path / "parts"))
    about = tmp_path / "parts" / "line.json"
    assert not killed // 7 or json.loads(about.read_text()).items() >= {"step": killed // 7 * 7, "finished": False}.items()
    task = Line()
    continued = train(task, run(tmp_path / "parts"))
    assert same(trained / "line.safetensors", continued)
    assert min(task.rates) == killed // 7 * 7 - 1, "it begins at the last checkpoint"
    steps = [json.loads(line)["step"] for line in (tmp_path / "parts/line.log.jsonl").read_text().splitlines()]
    assert steps == [7, 14, 21, 28, 35, 40]


def test_another_run_is_refused_by_name(finished: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"another run: seed 3, not 5\. .*--fresh"):
        train(Line(), run(finished, seed=5))
    with pytest.raises(BadCheckpoint, match=r"flavour.*other"):
        train(Line(flavour="other"), run(finished))


def test_what_is_written(trained: Path) -> None:
    """The checkpoint needs no trust, and the values belong to the weights as they are stored."""
    path = trained / "line.safetensors"
    assert sorted(p.name for p in trained.iterdir()) == ["line.checkpoint.pt", "line.json", "line.log.jsonl", "line.safetensors"]
    checkpoint = torch.load(trained / "line.checkpoint.pt", weights_only=True)
    assert (checkpoint["step"], set(checkpoint["parts"])) == (40, {"model", "adam"})
    about = json.loads((trained / "line.json").read_text())
    assert about["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (about["seed"], about["steps"], about["step"], about["finished"]) == (3, 40, 40, True)
    assert about["config"] == {"flavour": "plain"}
    assert about["parameters"] == 4
    stored = weights(path)
    assert {t.dtype for t in stored.values()} == {torch.float16}
    rounded = float((stored["weight"].float() - 1).abs().max())
    assert about["held_out"] == {"distance": rounded}


def test_the_rate_rises_stays_and_falls() -> None:
    plan = TrainingRun(Path(), 1000)
    rates = [plan.factor(s) for s in range(1000)]
    assert rates[0] == pytest.approx(1 / 40)
    assert set(rates[39:551]) == {1.0}
    assert rates[551:] == sorted(rates[551:], reverse=True)
    assert 0 < rates[-1] < 0.003


def test_attention_stays_in_fp32_under_autocast() -> None:
    """Scores of 0 and 1/300: in bf16 their weights are equal, and so are the values."""
    query, key = torch.ones(1, 1, 1, 4), torch.zeros(1, 1, 2, 4)
    key[0, 0, 1] = 1 / 300
    value = torch.tensor([1.0, 1 + 1 / 512])[None, None, :, None].expand(1, 1, 2, 4)
    expected = F.scaled_dot_product_attention(query, key, value)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = F.scaled_dot_product_attention(query, key, value)
        with loops.AttentionInFP32():
            mixed = F.scaled_dot_product_attention(query, key, value)
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16, "the rest does not"
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(mixed, expected)
