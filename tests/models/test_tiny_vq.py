"""The embedded tokenizer: its arithmetic and its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cachemark.core.errors import BadCheckpoint
from cachemark.models.tiny.tiny_vq import TinyVQ, TinyVQConfig, load, metadata

SMALL = TinyVQConfig(codes=12, channels=4, width=16, blocks=1)


@pytest.fixture
def vq() -> TinyVQ:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TinyVQ(SMALL).eval()


def write(path: Path, vq: TinyVQ, about: dict[str, str] | None = None) -> Path:
    state = {name: tensor.detach().half() for name, tensor in vq.state_dict().items()}
    save_file(state, str(path), metadata={"cachemark": json.dumps(metadata(vq.config) if about is None else about)})
    return path


def test_shapes(vq: TinyVQ) -> None:
    codes = vq.encode(torch.rand(3, 3, 64, 64) * 2 - 1)
    assert codes.shape == (3, 256)
    assert codes.dtype == torch.int64
    assert vq.decode(codes).shape == (3, 3, 64, 64)


def test_quantise_finds_the_nearest_code(vq: TinyVQ) -> None:
    z = torch.randn(2, 4, 5, 6)
    vectors = z.permute(0, 2, 3, 1).reshape(2, 30, 4)
    distances = (vectors[:, :, None] - vq.codebook[None, None]).square().sum(-1)
    assert torch.equal(vq.quantise(z), distances.argmin(-1))


def test_a_code_vector_is_its_own_code(vq: TinyVQ) -> None:
    z = vq.codebook.T.reshape(1, 4, 3, 4)
    assert vq.quantise(z).tolist() == [list(range(12))]


def test_codes_are_row_major(vq: TinyVQ) -> None:
    codes = torch.zeros(1, 256, dtype=torch.int64)
    changed = codes.clone()
    changed[0, 16 * 10 + 3] = 7  # row 10, column 3
    difference = (vq.decode(changed) - vq.decode(codes)).abs().amax((0, 1))
    pixels = difference[40:44, 12:16]
    assert pixels.mean() > 3 * difference.mean()


def test_a_grid_that_is_not_square(vq: TinyVQ) -> None:
    codes = torch.randint(12, (2, 24))
    assert vq.decode(codes, (4, 6)).shape == (2, 3, 16, 24)
    assert torch.equal(vq.decode(codes[:, :16], (4, 4)), vq.decode(codes[:, :16]))


@pytest.mark.parametrize(("count", "grid"), [(255, None), (256, (8, 16))])
def test_codes_that_do_not_fill_the_grid_are_refused(vq: TinyVQ, count: int, grid: tuple[int, int] | None) -> None:
    with pytest.raises(ValueError, match="do not fill a grid"):
        vq.decode(torch.zeros(1, count, dtype=torch.int64), grid)


def test_a_file_gives_the_same_model(vq: TinyVQ, tmp_path: Path) -> None:
    read = load(write(tmp_path / "vq.safetensors", vq))
    assert read.config == SMALL
    assert not read.training
    for name, tensor in vq.state_dict().items():
        assert torch.equal(read.state_dict()[name], tensor.half().float()), name


def test_files_that_hold_something_else_are_refused(vq: TinyVQ, tmp_path: Path) -> None:
    text = tmp_path / "text.safetensors"
    text.write_text("no weights")
    other = write(tmp_path / "other.safetensors", vq, {"model": "tiny-llamagen", "config": "{}"})
    silent = write(tmp_path / "silent.safetensors", vq, {})
    strange = write(tmp_path / "strange.safetensors", vq, {"model": "tiny-vq", "config": '{"colour": 3}'})
    for path, words in ((text, "header"), (other, "'tiny-llamagen'"), (silent, "'nothing'"), (strange, "colour"),
                        (tmp_path / "none.safetensors", "is not a file")):
        with pytest.raises(BadCheckpoint, match=words) as caught:
            load(path)
        assert "tools.train tiny-vq" in caught.value.remedy


def test_a_missing_tensor_is_named(vq: TinyVQ, tmp_path: Path) -> None:
    path = write(tmp_path / "vq.safetensors", vq)
    state = load_file(str(path))
    del state["codebook"]
    save_file(state, str(path), metadata={"cachemark": json.dumps(metadata(SMALL))})
    with pytest.raises(BadCheckpoint, match="codebook"):
        load(path)


def test_the_language_is_what_makes_codes(vq: TinyVQ) -> None:
    before = vq.language
    with torch.no_grad():
        vq.decoder[0].weight += 1
        assert vq.language == before
        vq.codebook += 1
        assert vq.language != before
