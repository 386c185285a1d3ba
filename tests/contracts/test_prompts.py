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
from cachemark.models.lumina import Lumina, LuminaConfig, Vocabulary
from cachemark.models.prompts import Prompts

from .cells import ATTENTION, GRID, SAMPLING, Cell, Ran, Record, cells, crossed, one_a_method, sampled
from .driver import Watch, watched
from .oracle import Shadow
from .test_dead import Poison
from .test_neutral import Massive

LABELS = [1, 0, 2, 1]
PROMPTS = Prompts(((1, 40, 3), (1, 17, 90, 41, 66, 7, 3), (1, 5, 33, 3)), ((1, 2, 3), (1, 2, 2, 2, 2, 2, 3), (1, 2, 2, 3)))
LINED = Prompts(((1, 40, *(69, 79, 79)), (1, 17, 90, 41, 66, 7, *(69, 79, 79)), (1, 5, 33, *(69, 79, 79))), ((69, 79, 79),) * 3)
CONDITIONS = {"janus": [3, 4, 7] * 2, "lumina": [5, 6, 9, 3]}  # of the runs of rows
CLOSE = 1e-4  # logits
MASKED = 1e-5  # outputs of attention


@functools.cache
def model(attention: str, family: str) -> Janus | Lumina:
    """Random weights, scaled up so that attention is far from uniform and what it reads shows in the logits. Lumina's lines are one
    token longer, and its unconditional rows have another length than the others."""
    decoder = LlamaConfig(1, 4, 64, 96, 128, kv_heads=ATTENTION[attention], qk_norm=family == "lumina")
    tiny: Janus | Lumina
    if family == "lumina":
        ids = Vocabulary(0, 4, 64, 69, 70, 75, 76)
        tiny = Lumina(LuminaConfig(decoder, GRID // 2, GRID // 2, ids), LINED).initialise(0).eval().requires_grad_(False)
        loud = [tiny.model.embed_tokens.weight, tiny.lm_head.weight]
    else:
        tiny = Janus(JanusConfig(decoder, codes=64, grid=GRID), PROMPTS).initialise(0).eval().requires_grad_(False)
        loud = [tiny.decoder.embed_tokens.weight, tiny.gen_embed.weight, tiny.gen_head.vision_head.weight]
    for block in tiny.blocks:
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(block.self_attn, name).weight.mul_(8)
        if family == "lumina":
            for norm in (block.self_attn.q_norm, block.self_attn.k_norm):
                norm.weight.fill_(2)
    for weight in loud:
        weight.mul_(20)
    return tiny


@dataclass(frozen=True)
class PromptedCell(Cell):
    """A cell on a model with prompts."""

    family: str = "janus"

    @property
    def label(self) -> str:
        return f"{super().label}-{self.family}"

    @property
    def layout(self) -> Layout:
        return model(self.attention, self.family).layout(range(len(LABELS)), SAMPLING, LABELS)


def prompted(family: str) -> list[PromptedCell]:
    return [PromptedCell(cell.cls, cell.mode, cell.codec, cell.attention, family=family) for cell in cells()]


def every(*, evicting: bool = False) -> list[PromptedCell]:
    """Parameters: all cells of both families, of which every run takes one a method and family."""
    found = {family: [c for c in prompted(family) if c.cls.evicts or not evicting] for family in CONDITIONS}
    always = [cell for some in found.values() for cell in one_a_method(crossed(some))]
    return sampled([cell for some in found.values() for cell in some], always)


def generate(cell: PromptedCell, method: Method, *watches: Watch, samples: list[int] | None = None, forced: Tensor | None = None) -> Ran:
    """Some samples by number, all if not given; logits are (N, samples, vocab)."""
    logits: list[Tensor] = []
    chosen = samples or list(range(len(LABELS)))
    seen, memory = watched(method, *watches) if watches else method, Memory("cpu", cell.memory().codec)
    labels = torch.tensor([LABELS[i] for i in chosen])
    tokens = model(cell.attention, cell.family).generate(labels, chosen, seen, SAMPLING, memory, forced=forced,
                                            see=lambda _, guided: logits.append(guided[:, 0].clone()))
    return Ran(tokens, torch.stack(logits), seen, memory)


@functools.cache
def ragged(cell: PromptedCell) -> tuple[Ran, Shadow, Record]:
    """All samples in one batch at the tight budget."""
    shadow, record = Shadow(), Record()
    return generate(cell, cell.tight(), shadow, record), shadow, record


EVERY, EVICTING = every(), every(evicting=True)


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
    assert [run.condition for run in runs] == CONDITIONS[cell.family]
    for moment in record.moments:
        for live in moment.after.values():
            for run, n in zip(runs, live, strict=True):
                assert n <= method.B + (run.condition if keeps else 0), f"pass {moment.step.index}"
    declared = sum(method.capacity(method.layout, site) for site in model(cell.attention, cell.family).sites)
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
