"""GLM-Image's autoregressive stage: prompts, positions, cache sizes, and published folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from test_emu3 import Spelled

from cachemark.cache.arena import Memory
from cachemark.contract.method import Method
from cachemark.core.errors import BadCheckpoint, Unsupported
from cachemark.models import glm_image
from cachemark.models.catalogue import text_to_image
from cachemark.models.glm_image import CodeView, GlmImage, GlmImageConfig, offsets, prompts_of
from cachemark.models.llama import LlamaConfig
from cachemark.models.prompts import Prompts
from cachemark.models.protocol import ModelEntry, Request

CONFIG = GlmImageConfig(LlamaConfig(2, 4, 64, 96, 112, kv_heads=2, norm_eps=1e-5, qkv_bias=True), 48, 56, 4, 2, (1, 2, 1))
TEXTS = ("red star", "a blue stripe below")


def tiny_entry() -> ModelEntry:
    return text_to_image.glm_image_model(CONFIG).asking(TEXTS)


def test_positions_count_rows_and_columns_of_the_preview_and_then_of_the_image() -> None:
    table = offsets(glm_image.PUBLISHED, torch.device("cpu"))
    assert table.shape == (1280, 3)
    assert table[[0, 17, 255]].tolist() == [[0, 0, 0], [0, 1, 1], [0, 15, 15]]
    assert table[[256, 256 + 33, 1279]].tolist() == [[16, 16, 16], [16, 17, 17], [16, 47, 47]]


def test_a_prompt_ends_with_the_sizes_of_image_and_preview() -> None:
    tokenizer = Spelled(1000)
    begin, end, image = map(tokenizer.special, (glm_image.GRID_BEGIN, glm_image.GRID_END, glm_image.IMAGE))
    sizes = (begin, *map(ord, "32 32"), end, begin, *map(ord, "16 16"), end, image)
    prompts = prompts_of(glm_image.PUBLISHED, (" a star ",), tokenizer)
    assert prompts.conditional == ((*map(ord, "a star"), *sizes),)
    assert prompts.unconditional == (sizes,)
    with pytest.raises(Unsupported, match="A prompt is empty"):
        prompts_of(glm_image.PUBLISHED, ("",), tokenizer)


def test_only_codes_are_sampled() -> None:
    model = GlmImage(CONFIG, Prompts(((1, 2, 3), (4, 5, 6, 7)))).initialise(0).eval().requires_grad_(False)
    model.lm_head.weight[CONFIG.codes :] = 100 * model.lm_head.weight[: CONFIG.outputs - CONFIG.codes]
    for sampling in (glm_image.PAPER, replace(glm_image.PAPER, temperature=0.0)):
        tokens = model.generate(torch.tensor([0, 1]), [0, 1], Method(), sampling, Memory())
        assert tokens.shape == (2, 20)
        assert int(tokens.max()) < CONFIG.codes


def test_a_view_shows_the_image_without_its_preview() -> None:
    tokens = torch.arange(20)[None].repeat(2, 1)
    other = torch.cat((tokens[:, :4] + 7, tokens[:, 4:]), 1)
    view = CodeView(CONFIG).decode(tokens)
    assert view.shape == (2, 3, 32, 32)
    assert float(view.min()) >= -1
    assert float(view.max()) <= 1
    assert torch.equal(view, CodeView(CONFIG).decode(other))
    assert len({tuple(color) for color in view[0, :, ::8, ::8].flatten(1).T.tolist()}) == 16, "every code has a color of its own"


# -- published folders -----------------------------------------------------------------------------------------------------
def published(folder: Path) -> dict[str, torch.Tensor]:
    """Write the two folders that are read, at reduced size, as diffusers has them; return the generator's tensors."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    weights, processor = folder / "vision_language_encoder", folder / "processor"
    weights.mkdir(parents=True)
    processor.mkdir()
    state = GlmImage(CONFIG, Prompts()).initialise(0).state_dict()
    reading = {"model.visual.patch_embed.proj.bias": torch.ones(2), "model.vqmodel.quantize.embedding.weight": torch.ones(2, 3)}
    save_file({**state, **reading}, weights / "model.safetensors")
    words = {word: 60 + i for i, word in enumerate(("<unk>", "red", "blue", "star", "stripe", "a", "4", "2"))}
    made = Tokenizer(models.WordLevel({**words, **{f"code{i}": i for i in range(60)}}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens([glm_image.GRID_BEGIN, glm_image.GRID_END, glm_image.IMAGE])
    made.save(str(processor / "tokenizer.json"))
    return state


def test_a_published_folder_gives_tokens_and_no_picture(tmp_path: Path) -> None:
    state = published(tmp_path / "glm")
    loaded = tiny_entry().load(Request(weights=str(tmp_path / "glm" / "vision_language_encoder")))
    model = loaded.generator
    assert isinstance(model, GlmImage)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert model.prompts.conditional[0] == (61, 63, 68, 66, 66, 69, 68, 67, 67, 69, 70)
    assert not loaded.random
    assert not loaded.pictures, "a view of the codes is not scored"


def test_a_file_to_decode_images_with_is_refused(tmp_path: Path) -> None:
    published(tmp_path / "glm")
    request = Request(weights=str(tmp_path / "glm" / "vision_language_encoder"), decoder_weights=str(tmp_path / "x.pt"))
    for use in (tiny_entry().load, tiny_entry().identity):
        with pytest.raises(BadCheckpoint, match="glm-image decodes no images"):
            use(request)
