"""Weights in a folder, in one file or in several under an index."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from cachemark.core.errors import BadCheckpoint
from cachemark.models.checkpoints import load, sha256


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def refusal(path: Path) -> str:
    with pytest.raises(BadCheckpoint) as caught:
        load(net, path)
    assert caught.value.remedy
    return str(caught.value)


def test_a_folder_is_read_as_what_it_holds(tmp_path: Path) -> None:
    """One file, or the shards of an index: the tensors are those of the whole."""
    state = net().state_dict()
    one, many = tmp_path / "one", sharded(tmp_path / "many", state)
    one.mkdir()
    torch.save(state, one / "pytorch_model.bin")
    for path in (one, many, many / "model.safetensors.index.json"):
        assert all(torch.equal(tensor, state[name]) for name, tensor in load(net, path).state_dict().items())
    assert sha256(one) == sha256(one / "pytorch_model.bin")
    assert sha256(many) == sha256(many / "model.safetensors.index.json")
    (many / "part-1.safetensors").write_bytes((many / "part-0.safetensors").read_bytes())
    assert sha256(many) != sha256(sharded(tmp_path / "again", state)), "the hash of a folder is that of all its files"


def sharded(folder: Path, state: dict[str, Tensor]) -> Path:
    """The tensors by turns in two files under an index."""
    folder.mkdir()
    shards = {f"part-{i}.safetensors": dict(list(state.items())[i::2]) for i in range(2)}
    for name, tensors in shards.items():
        save_file(tensors, folder / name)
    places = {name: shard for shard, tensors in shards.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    assert "holds no weights" in refusal(tmp_path)
    part = sharded(tmp_path / "part", net().state_dict())
    (part / "part-1.safetensors").unlink()
    assert "1 of the 2 files" in refusal(part)
    assert "part-1.safetensors" in refusal(part)
    for broken in ("{", "[]", '{"weight_map": 3}'):
        (part / "model.safetensors.index.json").write_text(broken)
        assert "is not an index of weights" in refusal(part)
