"""A Llama-like generator described from its published folder, and the file that registers it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from cachemark.cache.arena import Memory
from cachemark.contract.method import Method
from cachemark.core import plugins, registry
from cachemark.core.errors import BadCheckpoint, CachemarkError, Unsupported
from cachemark.core.spec import Sampling
from cachemark.methods.linear import Linear
from cachemark.models import llama_like
from cachemark.models.llama_like import LlamaLike
from cachemark.models.protocol import Request
from cachemark.models.vision.vq import VQ, VQConfig
from cachemark.workflows.describing import Drawing, describe, write
from cachemark.workflows.proving_things import prove_model
from support.later import later
from support.stages import forgetting

transformers = later("transformers")
DRAWING = Drawing(first=40, codes=24, grid=4, begin=("<s>",), image=("<image>",), cfg_scale=3.0)
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 500.0, "tie_word_embeddings": False}  # fmt: skip


@pytest.fixture(scope="module")
def theirs() -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval().requires_grad_(False)


@pytest.fixture
def folder(theirs: Any, tmp_path: Path) -> Path:
    return published(theirs, tmp_path / "llama")


def published(theirs: Any, made: Path) -> Path:
    """The folder that the transformers library writes, with a tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    theirs.save_pretrained(str(made))
    (made / "config.json").write_text(json.dumps({**SIZES, "model_type": "llama"}))
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "red": 1, "star": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "<image>"])
    tokenizer.save(str(made / "tokenizer.json"))
    return made


@pytest.fixture(autouse=True)
def _small_images(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    small = replace(llama_like.DECODER, build=lambda: VQ(VQConfig(32, (1, 1), 1, 16, 32)))
    monkeypatch.setattr(llama_like, "DECODER", small)
    with forgetting():
        yield


def test_the_file_that_is_written_registers_a_model_that_draws(folder: Path, theirs: Any, tmp_path: Path) -> None:
    """Its logits are those of the transformers library, cached or evicting where nothing needs to go."""
    path = write(describe(folder, "my-llama", DRAWING), tmp_path, folder)
    plugins.load(path)
    entry = registry.models.get("my-llama")
    request = Request(weights=str(folder))
    loaded = entry.load(request)
    assert loaded.weights == entry.identity(request)
    model, labels = loaded.generator, [0, 5]
    assert isinstance(model, LlamaLike)
    logits: list[torch.Tensor] = []
    sampling = Sampling(temperature=0.0)
    tokens = model.generate(torch.tensor(labels), [0, 1], Method(), sampling, Memory(), see=lambda _, found: logits.append(found.clone()))
    assert ((tokens >= 40) & (tokens < 64)).all()
    seen = torch.cat(logits, 1)
    for row, label in enumerate(labels):
        prompt = torch.tensor(model.prompts.conditional[label])
        expected = theirs(torch.cat((prompt, tokens[row, :-1]))[None]).logits[0, len(prompt) - 1 :]
        assert torch.allclose(seen[row][:, 40:], expected[:, 40:], atol=1e-4)
        assert (seen[row][:, :40] < -1e8).all(), "a text is no image"
    neutral = model.generate(torch.tensor(labels), [0, 1], Linear(B=16), sampling, Memory())
    assert torch.equal(neutral, tokens)
    assert loaded.decode(tokens).shape == (2, 3, 8, 8)
    assert model.prompts.unconditional[0] == (model.prompts.conditional[0][0], model.prompts.conditional[0][-1])
    shape = entry.shape(entry.presets["paper"], 3)
    assert (shape.kv_heads, shape.layers, shape.visual, shape.rows) == (2, 2, 16, 6)
    assert entry.parameter_counts() is not None


def test_the_kit_finds_nothing_in_a_model_that_was_described(folder: Path, tmp_path: Path) -> None:
    """With random weights, whose prompts differ in length."""
    path = write(describe(folder, "my-llama", DRAWING), tmp_path, folder)
    (proof,) = prove_model(path)
    assert {checked.name: str(checked.findings) for checked in proof.checks if not checked.passed} == {}
    assert len(proof.checks) > 8


def test_a_decoder_inside_of_something_larger_is_found(folder: Path, theirs: Any, tmp_path: Path) -> None:
    wrapped = {f"language_model.{name}": tensor for name, tensor in theirs.state_dict().items()}
    save_file({**wrapped, "vision_tower.weight": torch.ones(2)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"text_config": SIZES, "model_type": "both"}))
    made = describe(folder, "inner", DRAWING)
    assert (made.prefix, made.head, made.config.tied) == ("language_model.model.", "language_model.lm_head.weight", False)
    assert made.entry.identity(Request(weights=str(folder))).endswith("random:0")
    loaded = made.entry.load(Request(weights=str(folder)))
    assert isinstance(loaded.generator, LlamaLike)
    assert torch.equal(loaded.generator.lm_head.weight, theirs.lm_head.weight)


def config(**changes: Any) -> str:
    return json.dumps({key: value for key, value in {**SIZES, **changes}.items() if value is not None})


BROKEN: dict[str, tuple[str, type[CachemarkError], str]] = {
    "no size": (config(hidden_size=None), BadCheckpoint, "lacks hidden_size"), "a list": ("[]", BadCheckpoint, "a table is expected"),
    "half a file": ("{", BadCheckpoint, "is cut off"), "a word": (config(vocab_size="many"), BadCheckpoint, "vocab_size = 'many'"),
    "a layer more": (config(num_hidden_layers=3), BadCheckpoint, "missing"),
    "heads that do not go up": (config(num_attention_heads=5), BadCheckpoint, "do not go up"),
    "another width": (config(intermediate_size=50), BadCheckpoint, "shape"),
    "scaled rotations": (config(rope_scaling={"factor": 2}), Unsupported, "scales its rotations"),
    "fewer ids": (config(vocab_size=50), Unsupported, "24 image codes from 40 on are none of 50 ids"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_a_configuration_that_contradicts_is_one_sentence(folder: Path, kind: str) -> None:
    text, error, says = BROKEN[kind]
    (folder / "config.json").write_text(text)
    with pytest.raises(error, match=says):
        describe(folder, "x", DRAWING)


def test_what_else_is_missing_is_said(folder: Path, tmp_path: Path) -> None:
    made = describe(folder, "x", DRAWING)
    write(made, tmp_path, folder)
    with pytest.raises(CachemarkError, match="exists"):
        write(made, tmp_path, folder)
    with pytest.raises(Unsupported, match="is no name of a model"):
        write(replace(made, name="../x"), tmp_path, folder)
    with pytest.raises(BadCheckpoint, match="has no token '<start>'"):
        describe(folder, "x", replace(DRAWING, begin=("<start>",)))
    save_file({"conv.weight": torch.ones(2)}, folder / "model.safetensors")
    with pytest.raises(Unsupported, match="has 0 decoders with the tensors of a Llama"):
        describe(folder, "x", DRAWING)
