"""Jacobi decoding on a small random model, whose drafts are mostly wrong: 64 seeds at every window, guidance and sampling.

`tests/slow/test_decoders.py` has the grid of the trained model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.contract.decoder import Decoder
from cachemark.core.spec import Sampling
from cachemark.decoders.jacobi import Jacobi
from cachemark.kit.cpu_graphs import capture_on_cpu
from cachemark.kit.next_token import model
from cachemark.methods.full import Full

pytestmark = pytest.mark.slow
GRID, SEEDS = 9, list(range(64))  # more tokens than the widest window
WINDOWS = (4, 8, 16, 32, 64)
GUIDANCE = {"guided": {"cfg_scale": 1.5}, "free": {}, "interval": {"cfg_scale": 1.5, "cfg_interval": 30}}
FILTERS = {"T = 1": {}, "T = 0.7": {"temperature": 0.7}, "top-k": {"top_k": 20}, "top-p": {"top_p": 0.9}, "greedy": {"temperature": 0.0}}
SAMPLINGS = {f"{by}, {name}": Sampling(**how, **cut) for by, how in GUIDANCE.items() for name, cut in FILTERS.items()}  # type: ignore[arg-type]


def generate(seeds: list[int], sampling: Sampling, decoder: Decoder | None = None, memory: Memory | None = None) -> Tensor:
    labels = torch.tensor([seed % 10 for seed in seeds])
    return model("mha", GRID).generate(labels, seeds, Full(), sampling, memory or Memory(), decoder=decoder)


def graph_memory() -> Memory:
    small = model("mha", GRID)
    return capture_on_cpu(Memory(), [*small.parameters(), small.rope])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SAMPLINGS)
def test_every_image_is_that_of_sequential_decoding(name: str) -> None:
    """With graphs the first half of the seeds records and the second one repeats. Alone, each seed runs at one of the windows."""
    sampling = SAMPLINGS[name]
    own = generate(SEEDS, sampling)
    for number, window in enumerate(WINDOWS):
        result, passes = {}, []
        decoder = Jacobi(window=window)
        result["batch"] = generate(SEEDS, sampling, decoder), own
        memory = graph_memory()
        halves = [generate(seeds, sampling, Jacobi(window=window), memory) for seeds in (SEEDS[:32], SEEDS[32:])]
        result["graph"] = torch.cat(halves), own
        some = SEEDS[number :: len(WINDOWS)]
        for seed in some:
            single = Jacobi(window=window)
            passes.append((generate([seed], sampling, single), len(single.kept)))
        result["alone"] = torch.cat([tokens for tokens, _ in passes]), own[some]
        equal = {way: f"{int((a == b).all(1).sum())} of {len(b)}" for way, (a, b) in result.items()}
        print(f"{name}, window {window}: {equal}, {len(decoder.kept)} passes, alone {sum(n for _, n in passes) / len(some):.1f}")
        assert all(torch.equal(a, b) for a, b in result.values())
        assert len(decoder.kept) <= GRID**2
        assert min(n for _, n in passes) < GRID**2
