"""Emu3-Gen: prompts, cache sizes, published folders, and the image decoder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from cachemark.cache.arena import Memory
from cachemark.contract.method import Method
from cachemark.core.errors import BadCheckpoint, Unsupported
from cachemark.core.spec import Sampling
from cachemark.models import emu3
from cachemark.models.catalogue import text_to_image
from cachemark.models.emu3 import Emu3, Emu3Config, prompts_of
from cachemark.models.lined import ImageIds
from cachemark.models.llama import LlamaConfig
from cachemark.models.prompts import HashedWords, Prompts
from cachemark.models.protocol import ModelEntry, Request
from cachemark.models.vision.emu3_vq import Emu3VQ, Emu3VQConfig

IDS = ImageIds(first=80, codes=32, line_end=70)
CONFIG = Emu3Config(LlamaConfig(2, 4, 64, 96, 112, kv_heads=2, norm_eps=1e-5, rope_base=1e6), 3, 4, IDS)
IMAGES = Emu3VQConfig(32, (1, 1), 1, 4, 32, (1,), 4)
TEXTS = ("red star", "a blue stripe below")


def tiny_entry() -> ModelEntry:
    return text_to_image.emu3_gen(CONFIG, IMAGES).asking(TEXTS)


# -- prompts ---------------------------------------------------------------------------------------------------------------
class Spelled(HashedWords):
    """Returns one id per character, so that texts can be read from the ids."""

    def ids(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def whole(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        return ids


def test_a_prompt_is_text_and_size_and_the_unconditional_row_lists_faults() -> None:
    tokenizer = Spelled(1000)
    prompts = prompts_of(CONFIG, (" a star ", "a cat"), tokenizer)
    begin, image, codes = map(tokenizer.special, (emu3.BEGIN, emu3.IMAGE, emu3.CODES))
    assert prompts.conditional[0] == (begin, *map(ord, f"a star{emu3.QUALITY}"), image, *map(ord, "3*4"), codes)
    assert prompts.unconditional == ((begin, *map(ord, emu3.FAULTS), image, *map(ord, "3*4"), codes),) * 2


def test_an_empty_prompt_and_one_that_leaves_no_room_are_refused() -> None:
    with pytest.raises(Unsupported, match="A prompt is empty"):
        prompts_of(CONFIG, ("  ",), Spelled(1000))
    with pytest.raises(Unsupported, match="this model reads 1026"):
        prompts_of(emu3.GEN, ("a" * 1000,), Spelled(1000))


# -- published folders -----------------------------------------------------------------------------------------------------
def published(folder: Path) -> dict[str, torch.Tensor]:
    """Write a folder as transformers published the model, at reduced size; return the tensors of both networks."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir()
    torch.manual_seed(0)
    model, images = Emu3(CONFIG, Prompts()).initialise(0), Emu3VQ(IMAGES)
    state = {f"text_model.{name}": tensor for name, tensor in model.state_dict().items()}
    state |= {f"vqmodel.{name}": tensor for name, tensor in images.state_dict().items()}
    reading = {"vqmodel.encoder.conv_in.weight": torch.ones(2, 3), "vqmodel.quant_conv.conv.bias": torch.ones(4)}
    save_file({name: tensor.contiguous() for name, tensor in {**state, **reading}.items()}, folder / "model.safetensors")
    words = {word: i for i, word in enumerate(("<unk>", "red", "blue", "star", "stripe", "a", "3", "4", "*"))}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens([emu3.BEGIN, emu3.IMAGE, emu3.CODES])
    made.save(str(folder / "tokenizer.json"))
    return state


def test_a_published_folder_gives_an_image(tmp_path: Path) -> None:
    state, entry = published(tmp_path / "emu3"), tiny_entry()
    loaded = entry.load(Request(weights=str(tmp_path / "emu3")))
    model = loaded.generator
    assert isinstance(model, Emu3)
    assert all(torch.equal(tensor, state[f"text_model.{name}"]) for name, tensor in model.state_dict().items())
    assert all(ids[-1] == 11 for ids in (*model.prompts.conditional, *model.prompts.unconditional)), "the token before the codes"
    tokens = model.generate(torch.tensor([0, 1]), [0, 1], Method(), Sampling(cfg_scale=3.0, top_k=8), Memory())
    lines = tokens.view(2, 3, 5)
    assert (lines[:, :, -1] == IDS.line_end).all()
    codes = lines[:, :, :-1].flatten(1) - IDS.first
    assert ((codes >= 0) & (codes < IDS.codes)).all()
    reference = Emu3VQ(IMAGES).eval().requires_grad_(False)
    reference.load_state_dict({name.removeprefix("vqmodel."): t for name, t in state.items() if name.startswith("vqmodel.")})
    torch.testing.assert_close(loaded.decode(tokens), reference.decode(codes, (3, 4)))


def test_a_folder_without_the_image_tokenizer_is_refused(tmp_path: Path) -> None:
    state = published(tmp_path / "emu3")
    kept = {name: tensor.contiguous() for name, tensor in state.items() if not name.startswith("vqmodel.decoder.up_block.")}
    save_file(kept, tmp_path / "emu3" / "model.safetensors")
    with pytest.raises(BadCheckpoint, match=r"tensors missing \(decoder\.up_block"):
        tiny_entry().load(Request(weights=str(tmp_path / "emu3")))
