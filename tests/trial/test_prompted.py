"""Batches of samples whose prompts differ in length, as a trial cuts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from cachemark.cache.arena import Memory
from cachemark.cache.engine.graph import Graph
from cachemark.cache.layout import Layout
from cachemark.contract.method import Method
from cachemark.core.seeds import Subset
from cachemark.core.spec import Sampling
from cachemark.models.janus import Janus, JanusConfig
from cachemark.models.llama import LlamaConfig
from cachemark.models.prompts import Prompts
from cachemark.models.protocol import Loaded
from cachemark.trial.child.judge import Job
from contracts.tape import Tape

PROMPTS = Prompts(((1, 40, 3), (1, 17, 90, 41, 3)), ((1, 2, 3), (1, 2, 2, 2, 3)))
SUBSET = Subset("six", list(range(6)), [0, 1, 1, 1, 1, 0])


def job(memory: Memory | None = None) -> Job:
    model = Janus(JanusConfig(LlamaConfig(1, 4, 64, 96, 128), codes=32, grid=3), PROMPTS).initialise(0).eval().requires_grad_(False)
    model.decoder.embed_tokens.weight.mul_(50)
    loaded = Loaded(model, lambda tokens: tokens, "random:0/random:0", prompted=True)
    return Job(loaded, Method, memory or Memory(), Sampling(cfg_scale=3.0), SUBSET, 2, "cpu")


def test_batches_with_prompts_of_other_lengths_give_the_same_samples() -> None:
    """The second batch has other lengths than the first, the third its lengths again, the rows the other way round."""
    cut = job()
    parts = list(cut.chunks())
    together = replace(cut, batch=6, memory=Memory()).generate(slice(6))
    assert torch.equal(torch.cat([cut.generate(part) for part in parts]), together)
    assert [cut._layout(part).condition for part in parts] == [(3, 5, 3, 5), (5, 5, 5, 5), (5, 3, 5, 3)]
    assert len(together.unique(dim=0)) > 3


def test_recorded_passes_are_those_of_their_own_lengths() -> None:
    eager, recorded = job(), job(Memory(engine=Graph(Tape())))
    for part in recorded.chunks():
        for _ in range(2):
            assert torch.equal(recorded.generate(part), eager.generate(part))


def test_a_model_without_prompts_is_not_asked_about_labels() -> None:
    """As models of plug-ins are written: two parameters."""

    class OfClasses:
        def layout(self, seeds: Sequence[int], sampling: Sampling) -> Layout:
            return Layout("next-token", (1,) * len(seeds), 3, 3, 4, 4, 16, 1)

    loaded: Any = Loaded(OfClasses(), lambda tokens: tokens, "random:0")  # type: ignore[arg-type]
    assert replace(job(), loaded=loaded).layout.condition == (1,) * 6
