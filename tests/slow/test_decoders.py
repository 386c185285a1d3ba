"""Jacobi decoding on the bundled model: exact tokens over many seeds, and the number of passes."""

import statistics
from fractions import Fraction
from functools import cache, partial

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.contract.decoder import Decoder
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.decoders.jacobi import Jacobi
from cachemark.decoders.scd import SCD
from cachemark.decoders.sjd import SJD
from cachemark.decoders.zipar import ZipAR
from cachemark.methods.full import Full
from cachemark.methods.linear import Linear
from cachemark.models.llamagen import LlamaGen
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS

pytestmark = pytest.mark.slow
SEEDS, ALONE, TOKENS = 64, 16, 256
PASSES = {4: 128.6, 8: 100.2, 16: 74.5, 32: 61.4, 64: 56.4}  # means over 16 images, of a prototype that shares no code with this one
AHEAD = {"1/2": {8: 100.8, 16: 77.9, 32: 63.9}, "1/4": {8: 102.8, 16: 83.2, 32: 75.8}}  # of that prototype under linear, looking ahead
TOGETHER = {4: 64, 8: 64, 16: 16, 32: 16, 64: 8}  # images of a batch, by window: a wide one would compute much for the slowest image
GUIDANCE = {"guided": {"cfg_scale": 1.5}, "free": {}, "interval": {"cfg_scale": 1.5, "cfg_interval": 100}}
FILTERS = {"": {}, "cold": {"temperature": 0.7}, "top-k": {"top_k": 50}, "top-p": {"top_p": 0.9}, "greedy": {"temperature": 0.0}}
SAMPLINGS = {f"{by} {name}".strip(): Sampling(**how, **cut) for by, how in GUIDANCE.items() for name, cut in FILTERS.items()}  # type: ignore[arg-type]


@cache
def model() -> LlamaGen:
    loaded = MODELS.get("tiny-llamagen").load(Request("cpu", torch.float32))
    assert isinstance(loaded.generator, LlamaGen)
    return loaded.generator


def generate(
    seeds: list[int], sampling: Sampling, decoder: Decoder | None = None, method: Method | None = None, memory: Memory | None = None,
) -> Tensor:
    labels = torch.tensor([seed % 10 for seed in seeds])
    return model().generate(labels, seeds, method or Full(), sampling, memory or Memory(), decoder=decoder)


@cache
def sequential(name: str) -> Tensor:
    return generate(list(range(SEEDS)), SAMPLINGS[name])


def batches(window: int) -> list[list[int]]:
    return [list(range(first, first + TOGETHER[window])) for first in range(0, SEEDS, TOGETHER[window])]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("window", PASSES)
@pytest.mark.parametrize("name", SAMPLINGS)
def test_64_images_are_those_of_sequential_decoding(name: str, window: int) -> None:
    passes = []
    for seeds in batches(window):
        decoder = Jacobi(window=window)
        assert torch.equal(generate(seeds, SAMPLINGS[name], decoder), sequential(name)[seeds])
        passes.append(len(decoder.kept))
    print(f"{name}, window {window}: 64 of 64 images; passes of batches of {TOGETHER[window]}: {passes}")
    assert max(passes) < TOKENS


@cache
def linear_alone(budget: str) -> Tensor:
    return generate(list(range(SEEDS)), SAMPLINGS["guided"], method=linear(budget))


def linear(budget: str) -> Linear:
    return Linear(**Linear.parameters_for(Fraction(budget), model().layout(range(2), SAMPLINGS["guided"])))


PUBLISHED = {  # means over 16 images of the same prototype, from uniform drafts
    "sjd": {4: 145.5, 8: 113.1, 16: 92.0, 32: 81.8, 64: 81.5}, "gumbel": {4: 144.3, 8: 108.7, 16: 78.3, 32: 66.6, 64: 57.4},
    "maximal": {16: 80.4, 64: 54.4},
}  # fmt: skip
COINS = {"sjd": SJD, "gumbel": SCD, "maximal": partial(SCD, coupling="maximal")}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "budget", "window"), [
    *(("jacobi", "1", window) for window in PASSES), *(("ahead", budget, window) for budget, means in AHEAD.items() for window in means),
    *((name, "1", window) for name, means in PUBLISHED.items() for window in means),
])  # fmt: skip
def test_passes_of_an_image_alone_are_as_many_as_the_prototype_s(name: str, budget: str, window: int) -> None:
    """Exact decoders also draw the tokens of sequential decoding."""
    make = COINS.get(name) or partial(Jacobi, look_ahead=name == "ahead")
    expected = {"jacobi": PASSES, "ahead": AHEAD.get(budget, {}), **PUBLISHED}[name][window]
    passes = []
    for seed in range(ALONE):
        decoder = make(window=window)
        tokens = generate([seed], SAMPLINGS["guided"], decoder, None if budget == "1" else linear(budget))[0]
        if name in ("jacobi", "ahead"):
            assert torch.equal(tokens, (sequential("guided") if budget == "1" else linear_alone(budget))[seed])
        passes.append(len(decoder.kept))
    print(f"{name} {budget}, window {window}: {statistics.fmean(passes):.1f} ({min(passes)} … {max(passes)}), "
          f"σ {statistics.stdev(passes):.1f}: {sorted(passes)}")
    assert statistics.fmean(passes) == pytest.approx(expected, rel=0.1)


LINE = 16


@pytest.mark.parametrize("name", ["guided", "free top-k", "interval", "guided greedy"])
def test_64_images_with_a_window_as_wide_as_a_line_are_those_of_sequential_decoding(name: str) -> None:
    assert torch.equal(generate(list(range(SEEDS)), SAMPLINGS[name], ZipAR(window=LINE)), sequential(name))
