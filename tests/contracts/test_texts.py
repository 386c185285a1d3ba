"""Next-scale methods on Infinity: bitwise tokens, texts of different length in one batch."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.codec import CODECS
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.kit.driver import Onlooker as Watch
from cachemark.kit.driver import watched
from cachemark.kit.oracle import Shadow
from cachemark.methods.full import Full
from cachemark.methods.h2o import H2O
from cachemark.models.infinity import Infinity, InfinityConfig

from .cells import one_a_method, sampled
from .scales import HEADS, LAYERS, SIDES, ScaleCell, cells

LABELS = [1, 0, 2, 1]
LENGTHS = (3, 7, 4)
BITS = 6
SAMPLING = Sampling(cfg_scale=2.0)
CLOSE, MASKED = 1e-4, 1e-5  # logits; outputs of attention
OWN = [cell for cell in cells() if cell.attention == "mha" and not cell.online and not cell.per_head]  # the model has no shared heads
EVERY = sampled(OWN, one_a_method(OWN))
EVICTING = sampled([c for c in OWN if c.cls.evicts], one_a_method([c for c in OWN if c.cls.evicts]))


@functools.cache
def model() -> Infinity:
    """Return random weights, scaled so that what attention reads shows in the logits."""
    draw = torch.Generator().manual_seed(1)
    texts = [torch.randn(length, 128, generator=draw) for length in LENGTHS]
    config = InfinityConfig(LAYERS, HEADS, 64, chunks=1, sides=SIDES, width=BITS, text=128, longest=8)
    tiny = Infinity(config, texts).initialise(0).eval().requires_grad_(False)
    for parameter in tiny.parameters():
        if parameter.dim() > 1:
            parameter *= 6
    return tiny


def generate(cell: ScaleCell, method: Method, *watches: Watch, samples: list[int] | None = None,
             forced: Tensor | None = None) -> tuple[Tensor, Tensor, Method, Memory]:  # fmt: skip
    """Tokens (batch, N) and guided logits (batch, N, bits, 2) of some samples by number, all if not given."""
    logits: list[Tensor] = []
    chosen = samples or list(range(len(LABELS)))
    watched_method, memory = watched(method, *watches) if watches else method, cell.memory()
    tokens = model().generate(torch.tensor([LABELS[i] for i in chosen]), chosen, watched_method, SAMPLING, memory, forced=forced,
                              see=lambda _, guided: logits.append(guided.clone()))
    return tokens, torch.cat(logits, 1), watched_method, memory


def together(cell: ScaleCell) -> tuple[Tensor, Tensor, Method, Memory, Shadow]:
    """All samples in one batch at the tight budget, generated once for each cell."""
    return _together(cell.label)


@functools.cache
def _together(label: str) -> tuple[Tensor, Tensor, Method, Memory, Shadow]:
    shadow, cell = Shadow(), next(cell for cell in OWN if cell.label == label)
    return *generate(cell, cell.tight(), shadow), shadow


@pytest.mark.parametrize("cell", EVICTING)
def test_evicting_equals_masking(cell: ScaleCell) -> None:
    shadow = together(cell)[-1]
    assert shadow.hidden > 0, "nothing was evicted, so nothing is tested"
    assert shadow.worst <= MASKED


@pytest.mark.parametrize("cell", EVERY)
def test_a_sample_is_as_it_is_alone(cell: ScaleCell) -> None:
    """Whatever texts stand beside its own, and in whatever order."""
    if not CODECS[cell.codec].exact or cell.cls is H2O:
        pytest.skip("what hangs on the last bit may turn a sample: tests/contracts/test_scales.py counts how many")
    tokens, logits, *_ = together(cell)
    for samples in ([1], [2, 0]):
        _, alone, *_ = generate(cell, cell.tight(), samples=samples, forced=tokens[samples])
        assert float((alone - logits[samples]).abs().max()) <= CLOSE


def test_every_row_reads_its_own_text() -> None:
    """Another text in the place of one changes that sample and no other."""
    cell = OWN[0]
    tokens, logits, *_ = generate(cell, Full())
    other = Infinity(model().config, [model().texts[0], model().texts[1] + 1, model().texts[2]])
    other.load_state_dict(model().state_dict())
    watched_method: list[Tensor] = []
    other.eval().generate(torch.tensor(LABELS), range(4), Full(), SAMPLING, cell.memory(), forced=tokens,
                          see=lambda _, guided: watched_method.append(guided.clone()))
    changed = (torch.cat(watched_method, 1) - logits).abs().flatten(1).amax(1)
    assert [bool(apart > CLOSE) for apart in changed] == [label == 1 for label in LABELS]


def test_without_guidance_rows_are_not_doubled() -> None:
    layout = model().layout([1, 2], replace(SAMPLING, cfg_scale=1.0))
    assert (layout.rows, layout.branches) == (2, (0, 0))
