"""Decoders on the bundled model: as many passes as a prototype makes, and exact tokens where that is promised."""

import statistics
from collections.abc import Callable
from fractions import Fraction
from functools import cache, partial

import pytest
import torch

from cachemark.cache.arena import Memory
from cachemark.contract.decoder import Decoder
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.decoders.jacobi import Jacobi
from cachemark.decoders.scd import SCD
from cachemark.decoders.sjd import SJD
from cachemark.methods.full import Full
from cachemark.methods.linear import Linear
from cachemark.models.llamagen import LlamaGen
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS

ALONE = 16  # images, each in a batch of its own
GUIDED = Sampling(cfg_scale=1.5)
MAKES: dict[str, Callable[..., Decoder]] = {
    "jacobi": Jacobi, "ahead": partial(Jacobi, look_ahead=True), "sjd": SJD, "gumbel": SCD, "maximal": partial(SCD, coupling="maximal"),
}
# Mean passes of the images by budget of linear and window, of a prototype that shares no code with this one. SJD and SCD draft uniformly.
PASSES: dict[tuple[str, str], dict[int, float]] = {
    ("jacobi", "1"): {4: 128.6, 8: 100.2, 16: 74.5, 32: 61.4, 64: 56.4},
    ("ahead", "1/2"): {8: 100.8, 16: 77.9, 32: 63.9}, ("ahead", "1/4"): {8: 102.8, 16: 83.2, 32: 75.8},
    ("sjd", "1"): {4: 145.5, 8: 113.1, 16: 92.0, 32: 81.8, 64: 81.5},
    ("gumbel", "1"): {4: 144.3, 8: 108.7, 16: 78.3, 32: 66.6, 64: 57.4}, ("maximal", "1"): {16: 80.4, 64: 54.4},
}  # fmt: skip


@cache
def model() -> LlamaGen:
    loaded = MODELS.get("tiny-llamagen").load(Request("cpu", torch.float32))
    assert isinstance(loaded.generator, LlamaGen)
    return loaded.generator


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "budget", "window"), [(*case, window) for case, means in PASSES.items() for window in means])
def test_passes_of_an_image_alone_are_as_many_as_the_prototype_s(name: str, budget: str, window: int) -> None:
    passes = []
    for seed in range(ALONE):
        decoder = MAKES[name](window=window)
        fitted = Linear.parameters_for(Fraction(budget), model().layout([seed], GUIDED))
        method: Method = Full() if budget == "1" else Linear(**fitted)
        model().generate(torch.tensor([seed % 10]), [seed], method, GUIDED, Memory(), decoder=decoder)
        passes.append(len(decoder.kept))
    print(f"{name} {budget}, window {window}: {statistics.fmean(passes):.1f} ({min(passes)} … {max(passes)}), "
          f"σ {statistics.stdev(passes):.1f}: {sorted(passes)}")
    assert statistics.fmean(passes) == pytest.approx(PASSES[name, budget][window], rel=0.1)
