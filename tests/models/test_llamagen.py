"""LlamaGen against itself without a cache, and from text: unpadded rows against padded ones, cached features, and rejected prompts."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from official import encoder
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.contract.method import Method
from cachemark.core.errors import Unsupported
from cachemark.core.spec import Sampling
from cachemark.models import text_features
from cachemark.models.layers import RMSNorm
from cachemark.models.llamagen import LlamaGen, LlamaGenConfig, rope_table
from cachemark.models.llamagen_text import CaptionConfig, CaptionedLlamaGen
from support.tiny_models import CAPTIONED_SIZES

CONFIG = LlamaGenConfig(2, 4, 64, vocab=48, classes=10, grid=4)
GUIDED = Sampling(cfg_scale=1.5, temperature=0)
LABELS = [3, 7, 3]
TOKENS = torch.randint(0, CONFIG.vocab, (3, CONFIG.grid**2), generator=torch.Generator().manual_seed(0))
CAPTIONED = Sampling(cfg_scale=3.0, temperature=0.0)
READER = text_features.FeatureReader(128, 6)


def tiny(kv_heads: int | None = None) -> LlamaGen:
    """Build random weights, scaled up so that attention affects the logits."""
    model = LlamaGen(replace(CONFIG, kv_heads=kv_heads)).initialise(0).eval()
    for block in model.layers:
        block.attention.wqkv.weight.data *= 8
    model.output.weight.data *= 8
    return model


def run(model: LlamaGen, labels: Sequence[int], sampling: Sampling, forced: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return tokens (batch, N) and guided logits (batch, N, vocab); a sample's seed is its label."""
    logits: list[Tensor] = []
    tokens = model.generate(torch.tensor(labels), labels, Method(), sampling, Memory(), forced=forced,
                            see=lambda _, guided: logits.append(guided.clone()))
    return tokens, torch.cat(logits, 1)


def test_grouped_heads_are_copies_and_training_works_after_a_generation() -> None:
    """A model with one K/V head equals one with four equal heads."""
    grouped, wide = tiny(1), tiny()
    state = grouped.state_dict()
    for layer in range(CONFIG.layers):
        name, size = f"layers.{layer}.attention.wqkv.weight", 16
        q, k, v = state[name].split([4 * size, size, size])
        state[name] = torch.cat((q, *[k] * 4, *[v] * 4))
    wide.load_state_dict(state)
    of_grouped, of_wide = (run(model, LABELS, GUIDED, TOKENS)[1] for model in (grouped, wide))
    assert (of_grouped - of_wide).abs().max() < 1e-4
    rope_table.cache_clear()
    model = tiny()
    run(model, LABELS, GUIDED)
    model.teacher(torch.tensor(LABELS), TOKENS).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_norm_is_rounded_before_its_weight(dtype: torch.dtype) -> None:
    """As in the authors' code: fp32 up to the norm, then the model's dtype."""
    norm, x = RMSNorm(96, 1e-5), (3 * torch.randn(4, 2, 96, generator=torch.Generator().manual_seed(0))).to(dtype)
    norm.weight.data.uniform_(0.5, 1.5)
    norm.to(dtype)
    wide = x.float()
    expected = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(dtype) * norm.weight
    late = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * norm.weight.float()).to(dtype)
    assert torch.equal(norm(x), expected)
    assert not torch.equal(norm(x), late)


def captioned(config: CaptionConfig = CAPTIONED_SIZES) -> CaptionedLlamaGen:
    draw = torch.Generator().manual_seed(5)
    model = CaptionedLlamaGen(config, [torch.randn(n, config.text, generator=draw) for n in (2, 6, 3)]).initialise(0).eval()
    for block in model.layers:
        block.attention.wqkv.weight.data *= 8
        block.attention.wo.weight.data *= 4
    model.cls_embedding.cap_proj.fc2.weight.data *= 20
    model.output.weight.data *= 8
    return model.requires_grad_(False)


def padded(model: CaptionedLlamaGen, label: int, tokens: Tensor, *, turned: bool = False) -> Tensor:
    """Return guided logits (N, vocab) as the authors compute them, texts left-padded. ``turned``: by the identity, which is wrong."""
    c, text = model.config, model.texts[label]
    lacking = CAPTIONED_SIZES.longest - len(text)
    conditional_text = torch.cat((torch.zeros(lacking, CAPTIONED_SIZES.text), text))
    x = torch.stack([model.cls_embedding.cap_proj(features) for features in (conditional_text, model.cls_embedding.uncond_embedding)])
    x = torch.cat((x, model.tok_embeddings(tokens[:-1]).expand(2, -1, -1)), 1)
    rope = torch.cat((torch.full((CAPTIONED_SIZES.longest, c.head_dim // 2), complex(turned)), model.rope[1 : len(tokens)]))
    mask = torch.ones(x.size(1), x.size(1)).tril().bool()
    mask[:, :lacking] = False
    mask |= torch.eye(x.size(1)).bool()
    for block in model.layers:
        q, k, v = block.attention.wqkv(block.attention_norm(x)).unflatten(-1, (3, c.heads, c.head_dim)).permute(2, 0, 3, 1, 4)
        q, k = (torch.view_as_real(torch.view_as_complex(t.unflatten(-1, (-1, 2)).contiguous()) * rope).flatten(-2) for t in (q, k))
        mixed = (q @ k.transpose(-1, -2) * c.head_dim**-0.5).masked_fill(~mask, -torch.inf).softmax(-1) @ v
        x = x + block.attention.wo(mixed.transpose(1, 2).flatten(2))
        x = x + block.feed_forward(block.ffn_norm(x))
    conditional, unconditional = model.logits(x[:, CAPTIONED_SIZES.longest - 1 :])
    return unconditional + CAPTIONED.cfg_scale * (conditional - unconditional)


def test_rows_of_their_own_length_give_the_logits_of_padded_ones() -> None:
    model = captioned()
    tokens, logits = run(model, [0, 1, 2], CAPTIONED)
    for label in range(3):
        torch.testing.assert_close(logits[label], padded(model, label, tokens[label]), rtol=0, atol=1e-4)
    assert (logits[0] - padded(model, 0, tokens[0], turned=True)).abs().max() > 0.1
    cut = model.cls_embedding.uncond_embedding.clone()
    model.cls_embedding.uncond_embedding = cut.roll(1, 0)
    assert (logits[0] - padded(model, 0, tokens[0])).abs().max() > 0.1, "which of the unconditional vectors are read matters"


def test_a_text_is_encoded_once_and_what_is_read_again_draws_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder(folder := tmp_path / text_features.ENCODER, 128)
    first = READER.encoded(["red star", "a blue stripe"], folder)
    files = sorted((folder / text_features.KEPT).iterdir())
    assert len(files) == 2
    assert not any(b"star" in file.read_bytes() or "star" in file.name for file in files), "a text is there by its hash alone"
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "transformers", None)
        assert all(map(torch.equal, first, reversed(READER.encoded(["a blue stripe", "red star"], folder))))
        with pytest.raises(Unsupported, match="need the library transformers"):
            READER.encoded(["blue star"], folder)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"d_ff": 32', '"d_ff":  32'))
    READER.encoded(["red star"], folder)
    assert len(list((folder / text_features.KEPT).iterdir())) == 3, "another encoder makes its own"
    for file in files:
        file.write_bytes(b"damaged")
    config.write_text(config.read_text().replace('"d_ff":  32', '"d_ff": 32'))
    assert torch.equal(READER.encoded(["red star"], folder)[0], first[0])
    tokens = []
    for limit in (64, 1):
        monkeypatch.setattr(text_features, "RESIDENT", limit)
        reader = text_features.FeatureReader(CAPTIONED_SIZES.text, CAPTIONED_SIZES.longest)
        features = reader.stand_in(["red star", "a blue stripe below", "two cats"])
        model = CaptionedLlamaGen(CAPTIONED_SIZES, features).initialise(0).eval()
        tokens.append(model.generate(torch.tensor([2, 0, 1]), [0, 1, 2], Method(), CAPTIONED, Memory()))
        assert len(features.resident) == min(limit, 3)
    assert torch.equal(*tokens)


@pytest.mark.parametrize(("text", "words"), [(" \n", "A prompt is empty"), ("red " * 1023, "has 1024 tokens; this model reads 120")])
def test_a_prompt_that_the_encoders_models_cannot_read_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    encoder(folder := tmp_path / text_features.ENCODER, 128)
    for _ in range(2):
        with pytest.raises(Unsupported, match=words) as caught:
            replace(READER, longest=120).encoded([text], folder)
        assert caught.value.remedy
