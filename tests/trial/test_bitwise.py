"""Tokens of many bits, as a trial generates, stores and judges them."""

from collections.abc import Callable
from dataclasses import replace

import torch

from cachemark.cache.arena import Memory
from cachemark.cache.engines import Graph
from cachemark.cache.layout import squares
from cachemark.contract.method import Method
from cachemark.core.seeds import Subset
from cachemark.core.spec import Sampling
from cachemark.kit.capture import CpuGraphs
from cachemark.methods.full import Full
from cachemark.methods.window import Window
from cachemark.models.infinity import Infinity, InfinityConfig
from cachemark.models.protocol import Loaded
from cachemark.models.vision.bsq import bits_of
from cachemark.trial.child.bench import FullCacheOutput, Job
from cachemark.trial.child.judge import divergence, hashed, storable

SUBSET = Subset("four", list(range(4)), [0, 1, 1, 0])
BITS = 40


def job(method: Callable[[], Method] = Full, memory: Memory | None = None) -> Job:
    draw = torch.Generator().manual_seed(0)
    texts = [torch.randn(length, 128, generator=draw) for length in (2, 5)]
    config = InfinityConfig(2, 2, 32, chunks=1, scales=squares((1, 2, 3, 4)), width=BITS, text=128, longest=5)
    model = Infinity(config, texts).initialise(0).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter *= 6
    loaded = Loaded(model, lambda tokens: tokens[:, None, :9].float().view(-1, 1, 3, 3), "random:0/random:0", token_dtype=torch.int64)
    return Job(loaded, method, memory or Memory(), Sampling(cfg_scale=2.0, temperature=0.5), SUBSET, 2, "cpu")


def test_captured_passes_are_those_of_the_texts_of_their_batch() -> None:
    eager, recorded = job(), job(memory=Memory(engine=Graph(CpuGraphs())))
    for part in recorded.chunks():
        for _ in range(2):
            assert torch.equal(recorded.generate(part), eager.generate(part))


def test_all_bits_are_stored_and_hashed() -> None:
    given = job()
    tokens = given.generate(slice(2))
    stored = storable(given, tokens)
    assert torch.equal(stored, tokens)
    assert int(bits_of(tokens, BITS)[..., 32:].sum()) > 0
    other = tokens.clone()
    other[0, 0] ^= 1 << (BITS - 1)
    assert hashed(storable(given, other)) != hashed(stored)
    assert storable(replace(given, loaded=replace(given.loaded, token_dtype=torch.int32)), other % 100).dtype is torch.int32


def test_divergence_is_the_sum_over_the_bits_of_a_token() -> None:
    full = FullCacheOutput(job())
    assert divergence(job(), full).tolist() == [0, 0, 0, 0]
    cut = job(lambda: Window(B=9))
    shown: list[torch.Tensor] = []
    part = slice(0, 2)
    cut.generate(part, full.tokens[part], lambda _, logits: shown.append((logits / 0.5).softmax(-1)))
    p, q = full.log_probs(part).exp().double(), torch.cat(shown, 1).double()
    expected = (p * (p / q).log()).sum((2, 3)).mean(1)
    divergences = divergence(cut, full)
    assert divergences.shape == (4,)
    torch.testing.assert_close(divergences[:2], expected, rtol=1e-3, atol=1e-6)
    assert (divergences > 1e-3).all()
