"""Properties of a CUDA device: random integers, tokens, clocks and memory; in a rehearsal the CPU is compared with itself."""

import os
import time
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from cachemark.cache import random_streams as streams
from cachemark.cache.arena import Memory
from cachemark.core.spec import Sampling
from cachemark.kit.common import calibration
from cachemark.machine.timer import EventClock
from cachemark.methods.registry import METHODS
from cachemark.models.llamagen import LlamaGen, LlamaGenConfig

REHEARSED = bool(os.environ.get("CACHEMARK_REHEARSE"))
DEVICE = "cpu" if REHEARSED else "cuda"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not REHEARSED and not torch.cuda.is_available(), reason="no CUDA device")]
on_the_device = pytest.mark.skipif(REHEARSED, reason="about the device alone")

SAMPLING = Sampling(cfg_scale=1.5)
TOKEN_METHODS = [name for name in METHODS if "next-token" in METHODS.get(name).paradigms
           and METHODS.get(name).__module__.startswith("cachemark.methods.")]


@pytest.fixture(scope="module")
def model() -> LlamaGen:
    model = LlamaGen(LlamaGenConfig(layers=2, heads=4, dim=64, vocab=64, classes=10, grid=8)).initialise(0).eval()
    for block in model.layers:
        block.attention.wqkv.weight.data.mul_(6)
    return model.requires_grad_(False)


def generated(model: LlamaGen, name: str, device: str) -> torch.Tensor:
    cls = METHODS.get(name)
    sampling, seeds = replace(SAMPLING), list(range(16))
    budget = Fraction(1) if name == "full" else Fraction(1, 2)
    layout = model.layout(seeds, sampling)
    method = cls.build({**calibration(cls, layout), **cls.parameters_for(budget, layout)})
    labels = torch.arange(16, device=device) % 10
    return model.to(device).generate(labels, seeds, method, sampling, Memory(device)).cpu()


def test_random_integers_are_the_same_on_both_devices() -> None:
    drawn = [streams.integers(streams.keys(streams.seeds_tensor(range(100), d), "token", 7), 33).cpu() for d in ("cpu", DEVICE)]
    assert torch.equal(*drawn)


@pytest.mark.parametrize("name", TOKEN_METHODS)
def test_tokens_agree_with_the_cpu_in_fp32(model: LlamaGen, name: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    same = (generated(model, name, "cpu") == generated(model, name, DEVICE)).all(1)
    assert int(same.sum()) >= 15, f"{int(same.sum())} of 16 samples agree"


@on_the_device
def test_events_are_ordered_end_before_the_stop_and_tell_the_time_of_the_wall(model: LlamaGen) -> None:
    """Over seconds of work, in which the host's own share at both ends is nothing."""
    model.to("cuda")
    labels, full, memory = torch.arange(16, device="cuda") % 10, METHODS.get("full"), Memory("cuda")
    clock = EventClock([7, 31, 63])
    clock.start()
    model.generate(labels, range(16), full(), SAMPLING, memory, mark=clock.mark)
    total, marks = clock.stop(), clock.marks()
    assert 0 < marks[7] < marks[31] < marks[63] <= total
    clock = EventClock([])
    began = time.perf_counter()
    clock.start()
    for _ in range(10):
        model.generate(labels, range(16), full(), SAMPLING, memory)
    total = clock.stop()
    assert total == pytest.approx(time.perf_counter() - began, rel=0.02)
