"""Checks of a method of masked models, on a tiny MAR with random weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.codec import CODECS
from ..contract.method import Method
from ..core.errors import Unsupported
from ..core.spec import Sampling
from ..models.mar import MAR, MARConfig
from .capture import NotCapturable, capturing
from .common import DECIDES, Found, neutral_knobs
from .driver import watched
from .findings import Flaw
from .reachable import outside
from .settings import settings_restored

# The head's process leaves out its noisiest half: with random weights that alone would multiply the tokens by thousands.
CONFIG = MARConfig(32, (2, 4), 4, 6, 24, grid=6, channels=4, classes=10, buffer=4, steps=8, diffusion=(3, 0))
SAMPLING = Sampling(cfg_scale=3.0, cfg_schedule="linear")
SEEDS = (5, 11, 23)
RATIOS = (Fraction(1, 2), Fraction(3, 5), Fraction(3, 4), Fraction(9, 10))


@functools.cache
def model() -> MAR:
    """Random weights, large enough for attention to be far from uniform."""
    tiny, draw = MAR(CONFIG).eval().requires_grad_(False), torch.Generator().manual_seed(0)
    for name, parameter in tiny.named_parameters():
        parameter.normal_(0, 0.1 if "diffloss" in name else 0.4, generator=draw)
    return tiny


@dataclass(frozen=True)
class MaskedExample:
    """One method at a budget, or with the knobs that it has where it meets none."""

    cls: type[Method]
    codec: str = "native"
    knobs: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def size(self) -> str:
        """The model in words."""
        return f"MAR of {CONFIG.grid}×{CONFIG.grid} tokens in {CONFIG.steps} passes, codec {self.codec}"

    def build(self) -> Method:
        """The method anew."""
        return self.cls.build(dict(self.knobs))


def masked_cells(cls: type[Method], mode: tuple[tuple[str, Any], ...] = ()) -> Sequence[MaskedExample]:
    """A method at the smallest budget that it meets."""
    layout = model().layout(SEEDS, SAMPLING)
    for budget in RATIOS:
        try:
            knobs = {**cls.build(dict(mode)).fit(budget, layout), **dict(mode)}
            cls.build(knobs).resolve(layout)
        except Exception:
            continue
        return [MaskedExample(cls, "native", knobs), MaskedExample(cls, "int8", knobs)]
    return [MaskedExample(cls, "native", dict(mode))]


def generate(method: Method, memory: Memory, seeds: Sequence[int] = SEEDS) -> Tensor:
    """Tokens of these samples."""
    labels = torch.tensor([seed % CONFIG.classes for seed in seeds])
    return model().generate(labels, list(seeds), method, SAMPLING, memory)


def fresh(cell: MaskedExample) -> Memory:
    """An empty arena with the codec of an example."""
    return Memory("cpu", CODECS[cell.codec])


def finding(cell: MaskedExample, expected: object, found: object, seeds: Sequence[int] = SEEDS) -> Flaw:
    """A finding on the model of an example."""
    return Flaw(str(expected), str(found), cell.size, seeds)


def neutral_is_full(cell: MaskedExample) -> Found:
    """At the whole budget the method draws what the full model draws, bit for bit."""
    layout, knobs = model().layout(SEEDS, SAMPLING), neutral_knobs(cell.cls)
    found = generate(cell.cls.build({**cell.cls().fit(Fraction(1), layout), **knobs}), fresh(cell))
    expected = generate(Method(), fresh(cell))
    if not torch.equal(found, expected):
        apart = (found - expected).abs().flatten(1).amax(1)
        yield finding(cell, "the full model's tokens", f"others, up to {float(apart.max()):.3g} apart", [SEEDS[int(apart.argmax())]])


def second_generation_repeats(cell: MaskedExample) -> Found:
    """A second generation in the same memory gives the same bits from the same storage."""
    memory = fresh(cell)
    first, before = generate(cell.build(), memory), memory.pointers()
    if not torch.equal(generate(cell.build(), memory), first):
        yield finding(cell, "the tokens of the first generation", "others in the second")
    if memory.pointers() != before:
        yield finding(cell, "the storage of the first generation", "another one")


def samples_are_the_same_in_any_batch(cell: MaskedExample) -> Found:
    """A sample draws the same in another batch and order."""
    if not CODECS[cell.codec].exact:
        raise Unsupported("What a codec rounds otherwise turns a sample.")
    whole, rows = generate(cell.build(), fresh(cell)), [2, 0]
    part = generate(cell.build(), fresh(cell), [SEEDS[row] for row in rows])
    if not torch.allclose(part, whole[rows], atol=1e-4):
        yield finding(cell, "the tokens that it draws among three", f"{float((part - whole[rows]).abs().max()):.3g} apart")


def memory_is_the_arenas(cell: MaskedExample) -> Found:
    """Every tensor that the method keeps comes from the memory that it was given."""
    method, memory = cell.build(), fresh(cell)
    generate(method, memory)
    for name, shape in outside(method, memory):
        yield finding(cell, "every tensor that it keeps from memory", f"{name}, of shape {shape}, from elsewhere")


def nothing_is_read_on_the_host(cell: MaskedExample) -> Found:
    """No pass asks the device for a number or makes a shape depend on one, or ``capturable`` is false."""
    if not cell.build().capturable:
        raise Unsupported(DECIDES)
    try:
        with capturing(range(CONFIG.steps)) as (_, watch):
            generate(watched(cell.build(), watch), fresh(cell))
    except NotCapturable as error:
        yield finding(cell, "no read on the host, or capturable = False", error)


def settings_are_left_alone(cell: MaskedExample) -> Found:
    """A generation changes no setting of torch, such as TF32 or the number of threads: the full cache beside it would run under it too."""
    with settings_restored() as changes:
        generate(cell.build(), fresh(cell))
    if changes:
        yield finding(cell, "the settings of torch as they were", "; ".join(changes))


MASKED: tuple[Callable[[Any], Found], ...] = (
    neutral_is_full, second_generation_repeats, samples_are_the_same_in_any_batch, memory_is_the_arenas, nothing_is_read_on_the_host,
    settings_are_left_alone,
)
