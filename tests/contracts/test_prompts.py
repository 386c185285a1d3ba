"""The contract of every next-token method on a model whose rows have prompts of different length."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import Layout, Step
from cachemark.contract.method import Method
from cachemark.methods.base.evicting import Evicting
from cachemark.methods.base.paper_baseline import PaddedFull
from cachemark.models.janus import Janus, JanusConfig
from cachemark.models.llama import LlamaConfig
from cachemark.models.prompts import Prompts

from .cells import ATTENTION, GRID, SAMPLING, Cell, Ran, Record, cells, crossed, one_a_method, sampled
from .driver import Watch, watched
from .oracle import Shadow
from .test_dead import Poison
from .test_neutral import Massive

LABELS = [1, 0, 2, 1]
PROMPTS = Prompts(((1, 40, 3), (1, 17, 90, 41, 66, 7, 3), (1, 5, 33, 3)), ((1, 2, 3), (1, 2, 2, 2, 2, 2, 3), (1, 2, 2, 3)))
CLOSE = 1e-4  # logits
MASKED = 1e-5  # outputs of attention


@functools.cache
def model(attention: str) -> Janus:
    """Random weights, scaled up so that attention is far from uniform and what it reads shows in the logits."""
    decoder = LlamaConfig(1, 4, 64, 96, 128, kv_heads=ATTENTION[attention])
    tiny = Janus(JanusConfig(decoder, codes=64, grid=GRID), PROMPTS).initialise(0).eval().requires_grad_(False)
    for block in tiny.blocks:
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(block.self_attn, name).weight.mul_(8)
    for weight in (tiny.decoder.embed_tokens.weight, tiny.gen_embed.weight, tiny.gen_head.vision_head.weight):
        weight.mul_(20)
    return tiny


@dataclass(frozen=True)
class PromptedCell(Cell):
    """A cell on the model with prompts."""

    @property
    def layout(self) -> Layout:
        return model(self.attention).layout(range(len(LABELS)), SAMPLING, LABELS)


def prompted() -> list[PromptedCell]:
    return [PromptedCell(cell.cls, cell.mode, cell.codec, cell.attention) for cell in cells()]


def generate(cell: Cell, method: Method, *watches: Watch, samples: list[int] | None = None, forced: Tensor | None = None) -> Ran:
    """Some samples by number, all if not given; logits are (N, samples, vocab)."""
    logits: list[Tensor] = []
    chosen = samples or list(range(len(LABELS)))
    seen, memory = watched(method, *watches) if watches else method, Memory("cpu", cell.memory().codec)
    labels = torch.tensor([LABELS[i] for i in chosen])
    tokens = model(cell.attention).generate(labels, chosen, seen, SAMPLING, memory, forced=forced,
                                            see=lambda _, guided: logits.append(guided[:, 0].clone()))
    return Ran(tokens, torch.stack(logits), seen, memory)


@functools.cache
def ragged(cell: PromptedCell) -> tuple[Ran, Shadow, Record]:
    """All samples in one batch at the tight budget."""
    shadow, record = Shadow(), Record()
    return generate(cell, cell.tight(), shadow, record), shadow, record


EVERY = sampled(prompted(), one_a_method(crossed(prompted())))
EVICTING = sampled([c for c in prompted() if c.cls.evicts], one_a_method([c for c in crossed(prompted()) if c.cls.evicts]))


@pytest.mark.parametrize("cell", EVICTING)
def test_evicting_equals_masking(cell: PromptedCell) -> None:
    _, shadow, _ = ragged(cell)
    assert shadow.hidden > 0, "nothing was evicted, so nothing is tested"
    assert shadow.worst <= MASKED


@pytest.mark.parametrize("cell", EVICTING)
def test_every_row_keeps_the_budget_and_its_own_prompt(cell: PromptedCell) -> None:
    ran, _, record = ragged(cell)
    method = ran.method
    assert isinstance(method, Evicting)
    keeps, runs = getattr(method, "keep_condition", True), method.layout.runs
    assert [run.condition for run in runs] == [3, 4, 7] * 2
    for moment in record.moments:
        for live in moment.after.values():
            for run, n in zip(runs, live, strict=True):
                assert n <= method.B + (run.condition if keeps else 0), f"pass {moment.step.index}"
    declared = sum(method.capacity(method.layout, site) for site in model(cell.attention).sites)
    entry = 2 * ran.memory.codec.entry_bytes(method.layout.head_dim, method.layout.dtype)
    assert ran.memory.nbytes("slots") == declared * method.layout.rows * method.layout.kv_heads * entry


@pytest.mark.parametrize("cell", EVERY)
def test_a_sample_is_as_it_is_alone(cell: PromptedCell) -> None:
    ran, _, _ = ragged(cell)
    assert apart(cell, ran, 0) <= CLOSE, "the longest prompt"
    assert apart(cell, ran, 1) <= CLOSE, "the shortest"


def apart(cell: PromptedCell, ran: Ran, sample: int) -> float:
    """By how much the logits of a sample differ from those it has alone, at the same tokens."""
    lone = generate(cell, cell.tight(), samples=[sample], forced=ran.tokens[sample : sample + 1])
    return float((ran.logits[:, sample] - lone.logits[:, 0]).abs().max())


@pytest.mark.parametrize("cell", EVERY)
def test_neutral_equals_full(cell: PromptedCell) -> None:
    neutral = generate(cell, cell.at(Fraction(1)))
    full = generate(cell, Massive() if neutral.method.needs_mass else Method())
    assert torch.equal(neutral.logits, full.logits)
    assert torch.equal(neutral.tokens, full.tokens)


@pytest.mark.parametrize("cell", EVERY)
def test_dead_storage_is_never_read(cell: PromptedCell) -> None:
    watch = Poison()
    spoiled, (ran, _, _) = generate(cell, cell.tight(), watch), ragged(cell)
    assert watch.spoiled > 0
    assert torch.equal(spoiled.logits, ran.logits)


def test_the_papers_baseline_sees_no_padding_of_a_shorter_prompt() -> None:
    """The reference engine reads its buffer whole, the place behind a prompt too, and hides that by its mask."""
    cell = PromptedCell(Method, (), "native", "gqa")
    full, papers = generate(cell, Method()), generate(cell, PaddedFull())
    assert (full.logits - papers.logits).abs().max() <= CLOSE


# -- the contract itself -----------------------------------------------------------------------------------------------
@dataclass
class OfTheLongest(Evicting):
    """Broken on purpose: evicts the oldest token of the longest row's prompt from every row."""

    evict_after = "token"
    slack = 1

    def evict(self, step: Step, slots: SlotBank) -> None:
        if slots.live_visual > self.B:
            slots.evict(torch.full((*slots.visual.shape[:3], 1), slots.layout.longest_condition))


def test_a_row_that_is_taken_for_another_is_caught() -> None:
    cell = PromptedCell(OfTheLongest, (), "native", "mha")
    assert apart(cell, generate(cell, cell.tight()), 1) > CLOSE
