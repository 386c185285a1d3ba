"""Infinity: bits and tokens, the quantizer, published files, and bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Layout, squares
from cachemark.core.errors import BadCheckpoint
from cachemark.core.spec import Sampling
from cachemark.methods.full import Full
from cachemark.models import infinity_scales, text_features
from cachemark.models.catalogue import text_to_image
from cachemark.models.catalogue.family import CatalogueModel
from cachemark.models.infinity import SIZES, Infinity, InfinityConfig
from cachemark.models.infinity_scales import SIDES
from cachemark.models.layers import MLP
from cachemark.models.protocol import ModelEntry, Request
from cachemark.models.registry import MODELS
from cachemark.models.vision.bsq import BSQ, BitQuantizer, BSQConfig, bits_of, packed_bits
from cachemark.roofline.memory import entries
from studies.papers.entry_counts import kv_bytes
from studies.papers.published_sizes import MIXED, PAPER_UNIT

CONFIG = InfinityConfig(4, 2, 32, chunks=2, scales=squares((1, 2, 4)), width=5, text=128, longest=6)
TINY_BSQ = BSQConfig(32, (1, 1), 1, CONFIG.scales, CONFIG.width)
GUIDED = Sampling(cfg_scale=3.0)


def tiny(config: InfinityConfig = CONFIG, seed: int = 0) -> Infinity:
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
    share = bits_of(tokens, CONFIG.bits).double().mean((0, 1))
    assert share[:2].tolist() == [1, 0]
    assert ((share[2:] > 0.42) & (share[2:] < 0.58)).all()
    assert len(tokens.unique()) == 8


def test_a_patch_is_four_places_of_the_map() -> None:
    quantizer = BitQuantizer(squares((1, 2)), 3, patch=2)
    assert quantizer.bits == 12
    tokens = torch.randint(0, 2**12, (2, 5), generator=torch.Generator().manual_seed(3))
    codes = quantizer.codes(tokens[:, 1:], 1)
    assert codes.shape == (2, 3, 4, 4)
    assert codes.abs().unique().tolist() == pytest.approx([3**-0.5])
    again = quantizer.next_map(codes, 1)
    assert torch.equal(packed_bits(again > 0), tokens[:, 1:]), "what is put together is taken apart alike"


# -- sizes ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("dim", "heads", "width"), [(2048, 16, 8192), (2080, 20, 8192), (3360, 28, 13312), (96, 2, 512)])
def test_the_mlp_is_a_multiple_of_256_wide(dim: int, heads: int, width: int) -> None:
    """As in the authors' code, whose other sizes include 2080 and 3360 channels: 32.5 and 52.5 units, rounded half to even."""
    with torch.device("meta"):
        block = Infinity(InfinityConfig(1, heads, dim, chunks=1)).stacked[0]
    assert isinstance(block.ffn, MLP)
    assert (block.ffn.fc1.weight.shape, block.ffn.fc2.weight.shape) == ((width, dim), (dim, width))


# -- bytes ---------------------------------------------------------------------------------------------------------------
def shape(name: str, batch: int) -> Layout:
    entry: ModelEntry = MODELS.get(name)
    return entry.shape(entry.presets["paper"], batch)


def test_one_image_of_the_largest_resolution_takes_the_bytes_of_the_formula() -> None:
    """2 rows × 32 layers × 2048 channels × 10521 tokens; K in fp32 and V in 16 bit under autocast."""
    layout = shape("infinity-2b", 1)
    assert layout.visual == sum(side**2 for side in SIDES) == 10521
    published = kv_bytes(layout, entries(Full(store_last=True), layout), MIXED)
    assert published == 2 * 32 * 2048 * 10521 * 6 == 8_274_051_072
    assert published / PAPER_UNIT == pytest.approx(7.891, abs=5e-4)
    assert kv_bytes(layout, entries(Full(store_last=True), layout), (2, 2)) == 5_516_034_048


# -- published files -----------------------------------------------------------------------------------------------------
@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> CatalogueModel:
    """A published size at reduced sizes."""
    monkeypatch.setitem(SIZES, "2B", CONFIG)
    monkeypatch.setitem(text_to_image.INFINITY_TOKENIZERS, "2B", TINY_BSQ)
    monkeypatch.setitem(infinity_scales.COUNTS, 256, 3)
    return replace(text_to_image.infinity_model("2B", 256), texts=("red star", "a blue stripe below"))


def published(folder: Path, channels: int = CONFIG.text) -> Request:
    """Write files as the authors publish them, with a text encoder of ``channels``."""
    folder.mkdir()
    model = tiny(replace(CONFIG, scales=squares(SIDES[:3])))
    state = {**model.state_dict(), **{f"block_chunks.0.module.0.{part}.zero_k_bias": torch.zeros(32) for part in ("sa", "ca")},
             "text_proj_for_sos.ca.zero_k_bias": torch.zeros(32)}
    torch.save(state, folder / "infinity_2b_reg.pth")
    torch.manual_seed(0)
    wrapped = {_with_level(name): tensor for name, tensor in BSQ(TINY_BSQ).state_dict().items()}
    torch.save({"vae": {**wrapped, "quantizer.lfq.mask": torch.zeros(5)}}, folder / "infinity_vae_d32reg.pth")
    encoder(folder / text_features.ENCODER, channels)
    return Request(weights=str(folder / "infinity_2b_reg.pth"), decoder_weights=str(folder / "infinity_vae_d32reg.pth"))


def _with_level(name: str) -> str:
    """Return the name in a published file."""
    module, _, kind = name.rpartition(".")
    return f"{module}.{'norm' if 'norm' in module.rpartition('.')[2] else 'conv'}.{kind}"


def encoder(folder: Path, channels: int) -> None:
    """Write a small T5 encoder with a tokenizer of words."""
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    words = {word: number for number, word in enumerate(["<pad>", "</s>", "<unk>", "red", "star", "a", "blue", "stripe", "below"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    fast.save_pretrained(folder)
    torch.manual_seed(1)
    config = transformers.T5Config(vocab_size=len(words), d_model=channels, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    transformers.T5EncoderModel(config).save_pretrained(folder)


def test_another_text_encoder_is_another_model(small: CatalogueModel, tmp_path: Path) -> None:
    request = published(tmp_path / "infinity")
    before, file = small.identity(request), tmp_path / "infinity" / text_features.ENCODER / "config.json"
    file.write_text(file.read_text().replace('"d_ff": 32', '"d_ff": 16'))
    assert small.identity(request) != before


def test_a_text_encoder_of_another_width_or_none_is_refused(small: CatalogueModel, tmp_path: Path) -> None:
    request = published(tmp_path / "infinity", channels=64)
    with pytest.raises(BadCheckpoint, match="has 64 channels; this model reads 128"):
        small.load(request)
    (tmp_path / "infinity" / text_features.ENCODER / "config.json").unlink()
    with pytest.raises(BadCheckpoint, match="no text encoder"):
        small.identity(request)
