"""A Llama-like generator described from its published folder, and the file that registers it."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import cachemark
from cachemark.cache.arena import Memory
from cachemark.contract.method import Method
from cachemark.core.errors import BadCheckpoint, BadPlugin, CachemarkError, Unsupported
from cachemark.core.spec import Sampling
from cachemark.methods.linear import Linear
from cachemark.models import llama_like
from cachemark.models.llama_like import LlamaLike
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS
from cachemark.models.vision.vq import VQ, VQConfig
from cachemark.plugins import loading as plugins
from cachemark.workflows.describing import Drawing, describe, start_described
from cachemark.workflows.prove import prove_model
from support.later import later
from support.llamas import FACTS, SIZES, describe_to, publish
from support.stages import call, forgetting

transformers = later("transformers")
PLAN = """name = "painted"
plugins = ["{source}"]
[timing]
warmup = 1
repeats = 3
[fidelity]
samples = 2
[[cells]]
model = "painter"
weights = "llama"
methods = ["streaming", "linear"]
budgets = ["1/2"]
batch = 2
"""
DRAWING = Drawing(first=40, codes=24, grid=4, begin=("<s>",), image=("<image>",), cfg_scale=3.0)


@pytest.fixture(scope="module")
def theirs() -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval().requires_grad_(False)


@pytest.fixture
def folder(theirs: Any, tmp_path: Path) -> Path:
    return published(theirs, tmp_path / "llama")


def published(theirs: Any, made: Path) -> Path:
    """The folder that the transformers library writes, with a tokenizer of words."""
    theirs.save_pretrained(str(made))
    return describe_to(made)


@pytest.fixture(autouse=True)
def _small_images(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    small = replace(llama_like.DECODER, build=lambda: VQ(VQConfig(32, (1, 1), 1, 16, 32)))
    monkeypatch.setattr(llama_like, "DECODER", small)
    with forgetting():
        yield


def test_the_file_that_is_written_registers_a_model_that_draws(folder: Path, theirs: Any, tmp_path: Path) -> None:
    """Its logits equal those of the transformers library, also with a method at full budget."""
    path = start_described(folder, "my_llama", DRAWING, tmp_path)[2]
    plugins.load(path)
    entry = MODELS.get("my_llama")
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


@pytest.mark.parametrize("named", [False, True], ids=["random", "published"])
def test_the_kit_finds_nothing_in_a_model_that_was_described(named: bool, folder: Path, tmp_path: Path) -> None:
    """With random weights (prompts of different lengths), and with the weights of the folder."""
    path = start_described(folder, "my_llama", DRAWING, tmp_path)[2]
    (report,) = prove_model(path, weights=str(folder) if named else "")
    assert [check.name for check in report.checks if not check.passed] == ([] if named else ["weights match the model"])
    assert report.passed
    assert len(report.checks) == 12


def test_weights_that_are_not_all_read_are_a_finding(folder: Path, theirs: Any, tmp_path: Path) -> None:
    path = start_described(folder, "my_llama", DRAWING, tmp_path)[2]
    save_file({**theirs.state_dict(), "model.layers.0.extra": torch.ones(2)}, folder / "model.safetensors")
    (report,) = prove_model(path, weights=str(folder))
    (finding,) = next(check.findings for check in report.checks if check.name == "weights match the model")
    assert "1 unexpected (model.layers.0.extra)" in finding.actual


def test_a_decoder_inside_of_something_larger_is_found(folder: Path, theirs: Any, tmp_path: Path) -> None:
    wrapped = {f"language_model.{name}": tensor for name, tensor in theirs.state_dict().items()}
    save_file({**wrapped, "vision_tower.weight": torch.ones(2)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"text_config": SIZES, "model_type": "both"}))
    made = describe(folder, "inner", DRAWING)
    assert (made.prefix, made.head, made.config.tied) == ("language_model.model.", "language_model.lm_head.weight", False)
    assert made.model.identity(Request(weights=str(folder))).endswith("random:0")
    loaded = made.model.load(Request(weights=str(folder)))
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
    "fewer ids": (config(vocab_size=50), Unsupported, "24 image codes from 40 on exceed the vocabulary of 50"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_a_configuration_that_contradicts_is_one_sentence(folder: Path, kind: str) -> None:
    text, error, says = BROKEN[kind]
    (folder / "config.json").write_text(text)
    with pytest.raises(error, match=says):
        describe(folder, "x", DRAWING)


def test_what_else_is_missing_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadPlugin, match="is not a valid name for a model"):
        start_described(folder, "tiny-var", DRAWING, tmp_path)
    with pytest.raises(BadCheckpoint, match="has no token '<start>'"):
        describe(folder, "x", replace(DRAWING, begin=("<start>",)))
    with pytest.raises(Unsupported, match="33 image codes, but LlamaGen's image tokenizer has 32"):
        describe(folder, "x", replace(DRAWING, first=0, codes=33))
    save_file({"conv.weight": torch.ones(2)}, folder / "model.safetensors")
    with pytest.raises(Unsupported, match="has 0 decoders with the tensors of a Llama"):
        describe(folder, "x", DRAWING)
    assert list(tmp_path.iterdir()) == [folder]


def test_the_name_of_a_folder_is_no_code(theirs: Any, tmp_path: Path) -> None:
    odd = published(theirs, tmp_path / 'x""" + print("pwned") + """')
    text = start_described(odd, "mine", DRAWING, tmp_path)[2].read_text()
    assert ast.get_docstring(ast.parse(text)) is not None
    assert text.count('"""') == 4


@pytest.mark.slow
def test_the_whole_way_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Describe, test, measure and report a published model, with the real commands."""
    monkeypatch.chdir(tmp_path)
    publish(tmp_path / "llama")
    made = call("new", "model", "painter", "--from-hf", "llama", *FACTS)
    assert made.exit_code == 0, made.output
    source = made.stdout.splitlines()[2]
    assert f"cachemark test model {source} --weights llama" in made.stdout
    proven = call("test", "model", source, "--weights", "llama")
    assert proven.exit_code == 0, proven.output
    assert "12 checks: 12 passed, 0 found something, 0 left out." in proven.stdout
    Path("plan.toml").write_text(PLAN.format(source=source))
    ran = call("run", "plan.toml", "--store", "r.sqlite", "--report", "r.html")
    assert ran.exit_code == 0, ran.output
    statuses = {outcome.case.label: str(outcome.status) for outcome in cachemark.open("r.sqlite").outcomes}
    assert {label: statuses[label] for label in ("full", "streaming 1/2", "linear 1/2")} == dict.fromkeys(
        ("full", "streaming 1/2", "linear 1/2"), "ok")
    assert "painter" in Path("r.html").read_text()
