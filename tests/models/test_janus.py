"""Janus-Pro: prompts of any length in one batch, published folders, and bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Step, Tokens
from cachemark.contract.method import Method, Uncached
from cachemark.core.errors import BadCheckpoint
from cachemark.core.spec import Sampling
from cachemark.models import janus
from cachemark.models.catalogue import text_to_image
from cachemark.models.janus import SIZES, Janus, JanusConfig
from cachemark.models.llama import LlamaConfig
from cachemark.models.prompts import Prompts
from cachemark.models.protocol import ModelEntry, Request
from cachemark.models.vision.vq import VQConfig

CONFIG = JanusConfig(LlamaConfig(2, 4, 64, 96, 128, kv_heads=2), codes=48, grid=4)
GUIDED = Sampling(cfg_scale=5.0, temperature=0.0)
PROMPTS = Prompts(((1, 40, 3), (1, 17, 90, 41, 66, 7, 3), (1, 5, 33, 3)), ((1, 2, 3), (1, 2, 2, 2, 2, 2, 3), (1, 2, 2, 3)))
TINY_VQ = VQConfig(32, (1, 1), 1, 16, CONFIG.codes)


def tiny(config: JanusConfig = CONFIG, prompts: Prompts = PROMPTS) -> Janus:
    """Build random weights, scaled up so that attention affects the logits."""
    model = Janus(config, prompts).initialise(0).eval().requires_grad_(False)
    for block in model.blocks:
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(block.self_attn, name).weight.mul_(8)
    for weight in (model.decoder.embed_tokens.weight, model.gen_embed.weight, model.get_parameter("gen_head.vision_head.weight")):
        weight.mul_(20)
    return model


def uncached(model: Janus, ids: tuple[int, ...], codes: Tensor) -> Tensor:
    """Return logits (N, codes) of one row in one uncached pass over its prompt and codes."""
    x = torch.cat((model.decoder.embed_tokens(torch.tensor([ids])), model.embedded(codes[None, :-1])), 1)
    places = torch.arange(x.size(1))[None]
    hidden = model(Tokens(x, model.decoder.turns(places)), Step(0, 1), Uncached())
    return model.logits(hidden[0, len(ids) - 1 :])


def test_the_training_pass_predicts_what_each_row_predicts_alone() -> None:
    model, rows = tiny(), [PROMPTS.conditional[i] for i in (1, 0, 2)]
    codes = torch.randint(CONFIG.codes, (3, CONFIG.grid**2), generator=torch.Generator().manual_seed(1))
    predicted = model.teacher(rows, codes)
    for row, ids in enumerate(rows):
        torch.testing.assert_close(predicted[row], uncached(model, ids, codes[row]), atol=1e-4, rtol=1e-4)


def test_random_weights_are_those_of_their_seed() -> None:
    """Biases included, which modules initialize from the global generator."""
    first, same = (Janus(CONFIG, PROMPTS).initialise(3).state_dict() for _ in range(2))
    assert all(torch.equal(tensor, same[name]) for name, tensor in first.items())
    other = Janus(CONFIG, PROMPTS).initialise(4).state_dict()
    assert not torch.equal(first["gen_head.vision_head.weight"], other["gen_head.vision_head.weight"])


# -- published folders -------------------------------------------------------------------------------------------------
READING = {name: torch.ones(2) for name in (
    "vision_model.blocks.0.attn.qkv.weight", "aligner.layers.0.bias", "gen_vision_model.encoder.mid.0.norm1.bias",
    "gen_vision_model.quant_conv.bias")}


def converted(name: str) -> str:
    """Return the transformers name of a tensor of the authors' file."""
    for theirs, ours in (
        ("language_model.model.", "model.language_model."), ("language_model.lm_head.", "lm_head."),
        ("gen_embed.", "model.generation_embeddings."), ("gen_aligner.layers.0.", "model.generation_aligner.fc1."),
        ("gen_aligner.layers.2.", "model.generation_aligner.hidden_layers.0."),
        ("gen_head.output_mlp_projector.", "model.generation_head.proj_out."), ("gen_head.", "model.generation_head."),
        ("gen_vision_model.", "model.vqmodel."), ("decoder.conv_blocks.", "decoder.up."),
        (".res.", ".block."), ("mid.0.", "mid.block_1."), ("mid.1.", "mid.attn_1."), ("mid.2.", "mid.block_2."),
    ):
        name = name.replace(theirs, ours)
    return name if name.startswith(("model.", "lm_head.")) else f"model.{name}"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> ModelEntry:
    """The entry of a published size at reduced sizes."""
    monkeypatch.setitem(SIZES, "1B", CONFIG)
    monkeypatch.setattr(janus, "TOKENIZER", TINY_VQ)
    return text_to_image.janus_pro("1B").entry


def published(folder: Path, layout: str) -> dict[str, Tensor]:
    """Write a folder of this layout at reduced size; return its tensors by name."""
    model, images = tiny(), janus.tokenizer()
    state = {**model.state_dict(), **{janus.PREFIX + name: tensor for name, tensor in images.state_dict().items()}}
    extras = {"language_model.lm_head.weight": torch.ones(128, 64), **READING}
    folder.mkdir()
    if layout == "official":
        extras |= {"gen_vision_model.quantize.codebook_used": torch.zeros(65536), "language_model.model.rotary_emb.inv_freq": torch.ones(8)}
        torch.save({name: tensor.bfloat16() for name, tensor in {**state, **extras}.items()}, folder / "pytorch_model.bin")
    else:
        parts = [(converted(name), tensor.bfloat16().contiguous()) for name, tensor in {**state, **extras}.items()]
        shards = {f"model-{i}.safetensors": dict(parts[i::2]) for i in range(2)}
        for name, tensors in shards.items():
            save_file(tensors, folder / name)
        places = {name: shard for shard, tensors in shards.items() for name in tensors}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    text_tokenizer(folder)
    return {name: tensor.bfloat16().float() for name, tensor in state.items()}


def text_tokenizer(folder: Path) -> None:
    """Write a tokenizer of words with Janus-Pro's special tokens, one of which it adds by itself."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = sorted({word for text in text_to_image.TEXTS for word in text.split()} | {"<unk>", ":"})[:100]
    specials = [janus.BEGIN, janus.PAD, janus.IMAGE, "<|User|>", "<|Assistant|>"]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*dict.fromkeys(["<unk>", *words])])}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(specials)
    made.post_processor = processors.TemplateProcessing(
        single=f"{janus.BEGIN} $A", special_tokens=[(janus.BEGIN, made.token_to_id(janus.BEGIN))])
    made.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("layout", ["official", "converted"])
def test_a_published_folder_gives_an_image(small: ModelEntry, tmp_path: Path, layout: str) -> None:
    state = published(tmp_path / "janus", layout)
    request = Request(weights=str(tmp_path / "janus"))
    loaded = small.load(request)
    assert loaded.weights == small.identity(request)
    assert not loaded.random
    assert loaded.pictures
    model = loaded.generator
    assert isinstance(model, Janus)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    beginnings = {ids[:3] for ids in model.prompts.conditional}
    assert len(beginnings) == 1, "every prompt begins with one begin token and the user's mark"
    assert all(ids.count(ids[0]) == 1 for ids in model.prompts.conditional), "the tokenizer's own begin token came on top"
    assert len({ids[-1] for ids in (*model.prompts.conditional, *model.prompts.unconditional)}) == 1
    tokens = model.generate(torch.tensor([0, 1]), [0, 1], Method(), GUIDED, Memory())
    images = loaded.decode(tokens)
    assert images.shape == (2, 3, 8, 8)
    reference = janus.tokenizer().requires_grad_(False)
    reference.load_state_dict({name.removeprefix(janus.PREFIX): t for name, t in state.items() if name.startswith(janus.PREFIX)})
    torch.testing.assert_close(images, reference.decode(tokens.clone()))


def test_the_text_tokenizer_is_part_of_the_identity(small: ModelEntry, tmp_path: Path) -> None:
    published(tmp_path / "janus", "official")
    request = Request(weights=str(tmp_path / "janus"))
    before = small.identity(request)
    file = tmp_path / "janus" / "tokenizer.json"
    file.write_text(file.read_text() + "\n")
    assert small.identity(request) != before
    assert small.identity(Request(weights=str(tmp_path / "janus" / "pytorch_model.bin"))) == small.identity(request)
    assert small.identity(Request()) == "random:0/random:0"


def test_a_text_tokenizer_that_cannot_be_used_is_named(small: ModelEntry, tmp_path: Path) -> None:
    published(tmp_path / "janus", "official")
    request = Request(weights=str(tmp_path / "janus"))
    file = tmp_path / "janus" / "tokenizer.json"
    content = file.read_text()
    file.write_text(content.replace("begin_of_image", "start_of_image"))
    with pytest.raises(BadCheckpoint, match=r"no token '<begin_of_image>'"):
        small.load(request)
    file.write_text("{")
    with pytest.raises(BadCheckpoint, match="is not a readable tokenizer"):
        small.load(request)
