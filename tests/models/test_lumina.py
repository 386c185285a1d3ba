"""Lumina-mGPT: line ends, prompts, published folders, and budgets."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.contract.method import Method
from cachemark.core.errors import BadCheckpoint
from cachemark.core.spec import Sampling
from cachemark.methods.full import Full
from cachemark.methods.linear import Linear
from cachemark.models.lined import LinedDecoder
from cachemark.models.llama import LlamaConfig
from cachemark.models.lumina import SIZES, Lumina, LuminaConfig, Vocabulary, code_table, prompts_of
from cachemark.models.prompts import HashedWords, Prompts
from cachemark.models.protocol import ModelEntry, Request
from cachemark.models.registry import MODELS
from cachemark.models.vision.vq import VQConfig
from cachemark.models.vision.vqgan import VQGAN

IDS = Vocabulary(4, 32, 42, 0, 40, 41, 44)
CONFIG = LuminaConfig(LlamaConfig(2, 4, 64, 96, 64, qk_norm=True), 2, 3, IDS)
TINY = VQConfig(32, (1, 1, 1), 1, 16, 32, 16)
PROMPTS = Prompts(((0, 50, 41, 40, 46, 47), (0, 51, 52, 53, 41, 40, 46, 47)), ((40, 46, 47),) * 2)
GUIDED = Sampling(cfg_scale=3.0, top_k=20)


def tiny() -> Lumina:
    return Lumina(CONFIG, PROMPTS).initialise(0).eval().requires_grad_(False)


def generate(model: Lumina, method: Method | None = None) -> Tensor:
    return model.generate(torch.tensor([0, 1]), [3, 4], method or Full(), GUIDED, Memory())


def test_evicting_by_line_counts_the_end_of_a_line() -> None:
    """LineAR's budgets of Table 4 are multiples of 49."""
    entry: ModelEntry = MODELS.get("lumina-mgpt-7b-768")
    shape = entry.shape(entry.presets["paper"], 1)
    assert (shape.lines, shape.line, shape.visual) == (48, 49, 2352)
    assert [Linear.parameters_for(share, shape)["B"] for share in (Fraction(1, 6), Fraction(1, 8))] == [392, 294]
    large: ModelEntry = MODELS.get("lumina-mgpt-7b-1024")
    shape = large.shape(large.presets["paper"], 1)
    assert (shape.lines, shape.line, shape.visual) == (64, 65, 4160)
    assert Linear.parameters_for(Fraction(1, 8), shape)["B"] == 520


def test_the_unconditional_row_is_the_size_alone() -> None:
    config = SIZES["7B-768"]
    prompts = prompts_of(config, ("a red star", "two blue birds on a very long branch"), HashedWords(65536))
    assert prompts.unconditional == ((8197, 8828, 8828),) * 2
    assert all(ids[0] == 0 and ids[-4:] == (8710, 8197, 8828, 8828) for ids in prompts.conditional)


def test_height_comes_first_among_the_tokens_and_width_in_the_text() -> None:
    texts: list[str] = []

    class Noting(HashedWords):
        def ids(self, text: str) -> list[int]:
            texts.append(text)
            return super().ids(text)

    prompts = prompts_of(CONFIG, ("a star",), Noting(64))
    assert texts == ["Generate an image of 96x64 according to the following prompt:\na star"]
    assert prompts.conditional[0][-2:] == (IDS.size + 2, IDS.size + 3)


# -- codes and their names -------------------------------------------------------------------------------------------------
def spelt(code: int) -> str:
    return f"IMGIMG{''.join(chr(ord('A') + int(digit)) for digit in str(code))}Z"


def vocabulary() -> dict[str, int]:
    """Return codes in the order of their names, which is not numeric."""
    return {"<s>": 0, **{name: IDS.first + i for i, name in enumerate(sorted(spelt(code) for code in range(IDS.codes)))}}


def test_a_code_is_what_its_name_spells() -> None:
    table = code_table(vocabulary(), IDS)
    assert sorted(table.tolist()) == list(range(32))
    assert table.tolist() != list(range(32))
    assert all(vocabulary()[spelt(code)] - IDS.first == place for place, code in enumerate(table.tolist()))


def test_a_tokenizer_that_names_too_few_codes_is_refused() -> None:
    names = vocabulary()
    del names[spelt(31)]
    with pytest.raises(BadCheckpoint, match="names 31 of the 32 image codes"):
        code_table(names, IDS)


def test_images_are_decoded_without_the_ends_of_lines() -> None:
    torch.manual_seed(0)
    images, tokens = VQGAN(TINY).eval().requires_grad_(False), generate(tiny())
    table = code_table(vocabulary(), IDS)
    codes = torch.tensor([[int(table[int(i) - IDS.first]) for i in row if int(i) != IDS.line_end] for row in tokens])
    decoded = LinedDecoder(CONFIG, images, table).decode(tokens)
    assert decoded.shape == (2, 3, 16, 24)
    torch.testing.assert_close(decoded, images.decode(codes, (4, 6)))
    assert not torch.allclose(LinedDecoder(CONFIG, images).decode(tokens), decoded)


# -- published folders -----------------------------------------------------------------------------------------------------
def published(folder: Path) -> Request:
    """Write the transformer's folder with extra tensors and tokenizer, and Chameleon's file."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir()
    extras = {"model.vqmodel.quantize.embedding.weight": torch.ones(2, 2), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    save_file({**tiny().state_dict(), **extras}, folder / "model.safetensors")
    words = {**vocabulary(), **{word: 50 + i for i, word in enumerate(("<unk>", "red", "blue", "star", ":"))}}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    torch.save({"state_dict": {**VQGAN(TINY).state_dict(), "loss.logvar": torch.zeros(1)}}, folder / "vqgan.ckpt")
    return Request(weights=str(folder), decoder_weights=str(folder / "vqgan.ckpt"))
