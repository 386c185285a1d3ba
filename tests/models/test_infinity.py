"""Infinity: bits and tokens, the quantizer, published files, and bytes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from official import infinity_files, written
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.core.errors import BadCheckpoint
from cachemark.core.spec import Sampling
from cachemark.methods.full import Full
from cachemark.models import text_features
from cachemark.models.infinity import Infinity, InfinityConfig
from cachemark.models.layers import MLP
from cachemark.models.vision.bsq import bits_of, packed_bits
from support.tiny_models import INFINITY_SIZES

GUIDED = Sampling(cfg_scale=3.0)


def tiny(config: InfinityConfig = INFINITY_SIZES, seed: int = 0) -> Infinity:
    draw = torch.Generator().manual_seed(7)
    texts = [torch.randn(length, config.text, generator=draw) for length in (2, 5, 3)]
    return Infinity(config, texts).initialise(seed).eval().requires_grad_(False)


def generate(model: Infinity, labels: list[int], sampling: Sampling = GUIDED, **options: Any) -> Tensor:
    return model.generate(torch.tensor(labels), range(len(labels)), Full(), sampling, Memory(), **options)


# -- bits ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [5, 32, 56, 63])
def test_bits_survive_being_packed(count: int) -> None:
    bits = torch.randint(0, 2, (3, 7, count), generator=torch.Generator().manual_seed(0))
    bits[0, 0], bits[0, 1] = 0, 1
    tokens = packed_bits(bits)
    assert torch.equal(bits_of(tokens, count), bits)
    assert tokens.min() >= 0


def test_each_bit_is_drawn_at_its_own_odds() -> None:
    """The first bit is always 1, the second always 0, the others are fair and independent."""
    model = tiny()
    model.head.weight.zero_()
    model.head.bias.copy_(torch.tensor([-99.0, 99, 99, -99, *[0] * 6]))
    tokens = generate(model, [0, 1, 2] * 20)
    share = bits_of(tokens, INFINITY_SIZES.bits).double().mean((0, 1))
    assert share[:2].tolist() == [1, 0]
    assert ((share[2:] > 0.42) & (share[2:] < 0.58)).all()
    assert len(tokens.unique()) == 8


# -- sizes ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("dim", "heads", "width"), [(2048, 16, 8192), (2080, 20, 8192), (3360, 28, 13312), (96, 2, 512)])
def test_the_mlp_is_a_multiple_of_256_wide(dim: int, heads: int, width: int) -> None:
    """As in the authors' code, whose other sizes include 2080 and 3360 channels: 32.5 and 52.5 units, rounded half to even."""
    with torch.device("meta"):
        block = Infinity(InfinityConfig(1, heads, dim, chunks=1)).stacked[0]
    assert isinstance(block.ffn, MLP)
    assert (block.ffn.fc1.weight.shape, block.ffn.fc2.weight.shape) == ((width, dim), (dim, width))


# -- published files -----------------------------------------------------------------------------------------------------
def test_another_text_encoder_is_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, request, _ = written("infinity", tmp_path / "infinity", monkeypatch)
    before, file = entry.identity(request), tmp_path / "infinity" / text_features.ENCODER / "config.json"
    file.write_text(file.read_text().replace('"d_ff": 32', '"d_ff": 16'))
    assert entry.identity(request) != before


def test_a_text_encoder_of_another_width_or_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, request, _ = infinity_files(tmp_path, monkeypatch, channels=64)
    with pytest.raises(BadCheckpoint, match="has 64 channels; this model reads 128"):
        entry.load(request)
    (tmp_path / text_features.ENCODER / "config.json").unlink()
    with pytest.raises(BadCheckpoint, match="no text encoder"):
        entry.identity(request)
