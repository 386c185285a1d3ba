"""LlamaGen against itself without a cache."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.models.layers import RMSNorm
from cachemark.models.llamagen import LlamaGen, LlamaGenConfig, rope_table

CONFIG = LlamaGenConfig(2, 4, 64, vocab=48, classes=10, grid=4)
GREEDY = Sampling(temperature=0)
GUIDED = Sampling(cfg_scale=1.5, temperature=0)
LABELS, SEEDS = torch.tensor([3, 7, 3]), [11, 12, 13]


def tiny(kv_heads: int | None = None, seed: int = 0) -> LlamaGen:
    """Build random weights, scaled up so that attention affects the logits."""
    model = LlamaGen(replace(CONFIG, kv_heads=kv_heads)).initialise(seed).eval()
    for block in model.layers:
        block.attention.wqkv.weight.data *= 8
    model.output.weight.data *= 8
    return model


@pytest.fixture(scope="module")
def model() -> LlamaGen:
    return tiny()


def some_tokens(rows: int = 3) -> Tensor:
    return torch.randint(0, CONFIG.vocab, (rows, CONFIG.grid**2), generator=torch.Generator().manual_seed(0))


def run(model: LlamaGen, sampling: Sampling, forced: Tensor | None = None, method: Method | None = None) -> tuple[Tensor, Tensor]:
    """Return tokens (batch, N) and guided logits (batch, N, vocab)."""
    logits: list[Tensor] = []
    tokens = model.generate(LABELS, SEEDS, method or Method(), sampling, Memory(), forced=forced,
                            see=lambda _, guided: logits.append(guided.clone()))
    return tokens, torch.cat(logits, 1)


def test_grouped_heads_are_copies(model: LlamaGen) -> None:
    """A model with one K/V head equals one with four equal heads."""
    grouped, wide, forced = tiny(1), tiny(), some_tokens()
    state = grouped.state_dict()
    for layer in range(CONFIG.layers):
        name, size = f"layers.{layer}.attention.wqkv.weight", 16
        q, k, v = state[name].split([4 * size, size, size])
        state[name] = torch.cat((q, *[k] * 4, *[v] * 4))
    wide.load_state_dict(state)
    assert (run(grouped, GUIDED, forced)[1] - run(wide, GUIDED, forced)[1]).abs().max() < 1e-4


def test_training_works_after_a_generation() -> None:
    """A table computed in inference mode must not block autograd."""
    rope_table.cache_clear()
    model = tiny()
    run(model, GREEDY)
    model.teacher(LABELS, some_tokens()).sum().backward()
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
