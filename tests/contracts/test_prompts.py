"""The contract of next-token and next-scale methods on models whose rows have prompts of different length."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.codec import CODECS
from cachemark.cache.layout import Grid, Layout, squares
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.kit.common import KitRun, MethodCell
from cachemark.kit.next_scale import HEADS, LAYERS, SIDES, ScaleCell
from cachemark.kit.next_token import ATTENTION, GRID, SAMPLING, Cell
from cachemark.methods.ams_kv import AMSKV
from cachemark.methods.base.paper_baseline import PaddedFull
from cachemark.methods.full import Full
from cachemark.methods.h2o import H2O
from cachemark.methods.linear import Linear
from cachemark.methods.rkv import RKV
from cachemark.models import checkpoints, janus
from cachemark.models.catalogue import text_to_image
from cachemark.models.infinity import Infinity, InfinityConfig
from cachemark.models.janus import Janus, JanusConfig
from cachemark.models.llama import LlamaConfig
from cachemark.models.lumina import Lumina, LuminaConfig, Vocabulary
from cachemark.models.prompts import Prompts
from cachemark.models.tiny.captions import CAPTION, WordTokenizer
from cachemark.models.weights import packaged

from . import test_scales
from .cells import cells, crossed, one_a_method, sampled

LABELS = [1, 0, 2, 1]
PROMPTS = Prompts(((1, 40, 3), (1, 17, 90, 41, 66, 7, 3), (1, 5, 33, 3)), ((1, 2, 3), (1, 2, 2, 2, 2, 2, 3), (1, 2, 2, 3)))
LINED = Prompts(((1, 40, *(69, 79, 79)), (1, 17, 90, 41, 66, 7, *(69, 79, 79)), (1, 5, 33, *(69, 79, 79))), ((69, 79, 79),) * 3)
CAPTIONS = ("two red rings above dots", "a red star left of blue checks", "three red squares above yellow stripes")
GUIDED = Sampling(cfg_scale=2.0)  # of Infinity
CLOSE = 1e-4  # logits


@functools.cache
def model(attention: str, family: str) -> Janus | Lumina:
    """Return random weights, scaled so that what attention reads shows in the logits.

    Lumina's lines have one more token, and its unconditional rows another length. The bundled model has its own weights, in fp64 since its
    logits are large; its images end early.
    """
    if family == text_to_image.TINY_NAME:
        asked = janus.prompts_of(CAPTIONS, WordTokenizer(), form=CAPTION)
        return checkpoints.load(lambda: Janus(replace(text_to_image.TINY_T2I, grid=GRID), asked), packaged("tiny-t2i.safetensors"),
                                dtype=torch.float64)
    decoder = LlamaConfig(1, 4, 64, 96, 128, kv_heads=ATTENTION[attention], qk_norm=family == "lumina")
    tiny: Janus | Lumina
    if family == "lumina":
        ids = Vocabulary(4, 64, 75, 0, 69, 70, 76)
        tiny = Lumina(LuminaConfig(decoder, GRID // 2, GRID // 2, ids), LINED).initialise(0).eval().requires_grad_(False)
        loud = [tiny.model.embed_tokens.weight, tiny.lm_head.weight]
    else:
        tiny = Janus(JanusConfig(decoder, codes=64, grid=GRID), PROMPTS).initialise(0).eval().requires_grad_(False)
        loud = [tiny.decoder.embed_tokens.weight, tiny.gen_embed.weight, tiny.get_parameter("gen_head.vision_head.weight")]
    for block in tiny.blocks:
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(block.self_attn, name).weight.mul_(8)
        if family == "lumina":
            for norm in (block.self_attn.q_norm, block.self_attn.k_norm):
                norm.weight.fill_(2)
    for weight in loud:
        weight.mul_(20)
    return tiny


@functools.cache
def exact(attention: str, family: str) -> Janus | Lumina:
    """The same in fp64."""
    return copy.deepcopy(model(attention, family)).double()


@dataclass(frozen=True)
class PromptedCell(Cell):
    """A cell on a model with prompts."""

    family: str = "janus"
    double: bool = False

    @property
    def label(self) -> str:
        return f"{super().label}-{self.family}"

    @property
    def layout(self) -> Layout:
        return self.model.layout(range(len(LABELS)), SAMPLING, LABELS)

    @property
    def model(self) -> Janus | Lumina:
        """The model of its family, in fp64 where it is asked for."""
        return exact(self.attention, self.family) if self.double else model(self.attention, self.family)


def prompted(family: str) -> list[PromptedCell]:
    heads = ("mha",) if family == text_to_image.TINY_NAME else tuple(ATTENTION)
    return [PromptedCell(cell.cls, cell.mode, cell.codec, cell.attention, family=family)
            for cell in one_a_method(crossed(cells())) if cell.attention in heads]


@functools.cache
def infinity(scales: tuple[Grid, ...] = squares(SIDES)) -> Infinity:
    """Return random weights of a next-scale model with bitwise tokens, scaled so that what attention reads shows in the logits."""
    draw = torch.Generator().manual_seed(1)
    texts = [torch.randn(length, 128, generator=draw) for length in (3, 7, 4)]
    config = InfinityConfig(LAYERS, HEADS, 64, chunks=1, scales=scales, width=6, text=128, longest=8)
    tiny = Infinity(config, texts).initialise(0).eval().requires_grad_(False)
    for parameter in tiny.parameters():
        if parameter.dim() > 1:
            parameter *= 6
    return tiny


@functools.cache
def double_infinity(scales: tuple[Grid, ...]) -> Infinity:
    """Return the same model in fp64."""
    exact = copy.deepcopy(infinity(scales)).double()
    exact.texts = [text.double() for text in infinity(scales).texts]
    return exact


def generate(cell: MethodCell, method: Method, *, samples: list[int] | None = None, forced: Tensor | None = None,
             model: Any = None) -> KitRun:  # fmt: skip
    """Generate some samples by number, all if not given; logits are those of each step, (samples, ...)."""
    logits: list[Tensor] = []
    chosen = samples or list(range(len(LABELS)))
    memory, labels = cell.memory(), torch.tensor([LABELS[i] for i in chosen])
    model = model or (cell.model if isinstance(cell, PromptedCell) else infinity(cell.scales))  # type: ignore[attr-defined]
    sampling = SAMPLING if isinstance(cell, PromptedCell) else GUIDED
    tokens = model.generate(labels, chosen, method, sampling, memory, forced=forced, see=lambda _, guided: logits.append(guided.clone()))
    return KitRun(method, memory, {}, tokens, logits)


SCALES = test_scales.MHA  # Infinity has no shared heads
FAMILIES = ("janus", "lumina", text_to_image.TINY_NAME)
DAILY = {(Linear, family) for family in FAMILIES} | {(RKV, "janus"), (Full, "lumina")}
CELLS = [pytest.param(cell, id=cell.label, marks=[] if (cell.cls, family) in DAILY and cell.codec != "kivi4" else pytest.mark.slow)
         for family in FAMILIES for cell in prompted(family)]  # fmt: skip
CELLS += sampled(SCALES, [cell for cell in one_a_method(SCALES) if cell.cls is AMSKV] + [cell for cell in SCALES if not cell.square][:1])


@pytest.mark.parametrize("cell", CELLS)
def test_a_sample_is_as_it_is_alone(cell: MethodCell) -> None:
    """In fp64: in fp32 a batch decides near ties, between scores and between codes of int8."""
    if isinstance(cell, PromptedCell):
        exact = replace(cell, double=True)
        ran = generate(exact, exact.tight())
        assert apart(exact, ran, [0]) <= CLOSE, "the longest prompt"
        assert apart(exact, ran, [1]) <= CLOSE, "the shortest"
        return
    assert isinstance(cell, ScaleCell)
    model = double_infinity(cell.scales)
    if not CODECS[cell.codec].exact or cell.cls is H2O:
        pytest.skip("the last bit may turn a sample; the kit compares one pass after the other")
    ran = generate(cell, cell.tight(), model=model)
    assert apart(cell, ran, [1], model) <= CLOSE
    assert apart(cell, ran, [2, 0], model) <= CLOSE


def apart(cell: MethodCell, ran: KitRun, samples: list[int], model: Any = None) -> float:
    """Return by how much the logits of samples differ from those that they have by themselves, at the same tokens."""
    lone = generate(cell, cell.tight(), samples=samples, forced=ran.tokens[samples], model=model)
    return max(float((batch[samples] - own).abs().max()) for batch, own in zip(ran.logits, lone.logits, strict=True))


def test_every_row_reads_its_own_text() -> None:
    """Another text in the place of one changes that sample and no other."""
    cell, model = SCALES[0], infinity()
    ran = generate(cell, Full())
    other = Infinity(model.config, [model.texts[0], model.texts[1] + 1, model.texts[2]])
    other.load_state_dict(model.state_dict())
    changed = generate(cell, Full(), forced=ran.tokens, model=other.eval())
    distances = [torch.stack([(a[i] - b[i]).abs().max() for a, b in zip(ran.logits, changed.logits, strict=True)]).max() for i in range(4)]
    assert [bool(distance > CLOSE) for distance in distances] == [label == 1 for label in LABELS]


def test_without_guidance_rows_are_not_doubled() -> None:
    layout = infinity().layout([1, 2], replace(SAMPLING, cfg_scale=1.0))
    assert (layout.rows, layout.branches) == (2, (0, 0))


def test_the_papers_baseline_sees_no_padding_of_a_shorter_prompt() -> None:
    """The reference engine reads its whole buffer and hides padding by a mask."""
    cell = PromptedCell(Method, (), "native", "gqa")
    full, papers = generate(cell, Method()), generate(cell, PaddedFull())
    assert max((a - b).abs().max() for a, b in zip(full.logits, papers.logits, strict=True)) <= CLOSE
