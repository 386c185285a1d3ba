"""The feature network alone: what it accepts, what it gives, and that it refuses other files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cachemark.core.errors import BadCheckpoint
from cachemark.models.tiny.tiny_features import CONSISTENT, HEADS, TinyFeatures, load
from cachemark.models.weights import packaged


@pytest.fixture(scope="module")
def net() -> TinyFeatures:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return TinyFeatures().eval().requires_grad_(False)


def test_bytes_and_numbers_are_the_same_picture(net: TinyFeatures) -> None:
    levels = torch.randint(256, (3, 3, 64, 64), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for said, wanted in zip(net(levels), net(levels.float() / 127.5 - 1), strict=True):
        assert torch.equal(said, wanted)
    assert [tuple(t.shape) for t in net(levels)] == [(3, 128), (3, 10)]


def test_the_features_are_standardised_and_the_heads_do_not_notice(net: TinyFeatures) -> None:
    images = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(1)) * 2 - 1
    plain, logits = net(images)
    net.centre.fill_(0.5)
    net.deviation.fill_(4.0)
    try:
        moved, same = net(images)
    finally:
        net.centre.zero_()
        net.deviation.fill_(1.0)
    assert torch.allclose(moved, (plain - 0.5) / 4)
    assert torch.equal(logits, same)
    said = net.judge(net.embed(images))
    assert {name: t.shape[1] for name, t in said.items()} == {**HEADS, "consistent": len(CONSISTENT)}
    assert torch.equal(said["class"], logits)


@pytest.mark.parametrize("shape", [(3, 64, 64), (2, 3, 32, 32), (2, 1, 64, 64)])
def test_other_shapes_are_refused(net: TinyFeatures, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"needs images of shape \(B, 3, 64, 64\), got"):
        net(torch.zeros(shape))


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="holds no tiny-features weights: it says it is 'tiny-vq'"):
        load(packaged("tiny-vq.safetensors"))
    with pytest.raises(BadCheckpoint, match="is not a file"):
        load(tmp_path / "nowhere.safetensors")
