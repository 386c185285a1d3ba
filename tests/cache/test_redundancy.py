"""Redundancy of passes against direct computation on known tensors, and in a real generation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Site, Tokens
from cachemark.cache.masked_layout import masked_steps, placed
from cachemark.core.spec import Sampling
from cachemark.methods.base.profiles import BRANCHES, CLASSES, Redundancy
from cachemark.models.mar import MAR, MARConfig

CONFIG = MARConfig(16, (2, 2), 2, 2, 16, grid=3, channels=4, classes=10, buffer=2, steps=4, diffusion=(3,))
GUIDED = Sampling(cfg_scale=2.0, cfg_schedule="linear")
DECODER = Site("decoder", 0)


@pytest.fixture
def watcher() -> Redundancy:
    layout = replace(CONFIG, depth=(1, 1)).layout([0], GUIDED)
    made = Redundancy()
    made.begin(layout, [DECODER], Memory())
    return made


def two_passes(watcher: Redundancy, before: Tensor, after: Tensor) -> dict[str, dict[str, list[float | None]]]:
    """Keys (rows, places, heads, head_dim) of two passes over the places 0 … 8 in order; found by class."""
    order = torch.arange(8, -1, -1).expand(2, 9)
    steps = placed(masked_steps(watcher.layout, 4), order)[:2]
    for step, k in zip(steps, (before, after), strict=True):

        def run(tokens: Tokens, step=step, k=k) -> Tensor:  # type: ignore[no-untyped-def]
            watcher.attend(DECODER, step, *(k.transpose(1, 2),) * 3)
            watcher._note("feature", 0, step, k)
            return k.flatten(2)

        watcher.stack("decoder", step, Tokens(torch.zeros(2, 11, 16)), run)
    classes: dict[str, dict[str, list[float | None]]] = watcher.profile()["classes"]
    return classes


def test_each_class_gets_the_likeness_of_its_own_tokens(watcher: Redundancy) -> None:
    first, second = masked_steps(watcher.layout, 4)[:2]
    before = torch.randn(2, 11, 2, 8)
    after = before.clone()
    after[:, 2 : 2 + first.count] *= -1  # what the first pass predicted turns round, at any length
    after[:, 2 : 2 + first.count] *= 3
    likeness = two_passes(watcher, before, after)
    assert likeness["caching"]["k"] == pytest.approx([-1.0])
    for name in ("buffer", "generating", "masked"):
        assert likeness[name]["k"] == pytest.approx([1.0])
    assert likeness["known"]["k"] == [None], "nothing was predicted before the pass before"
    assert second.first == first.count


def test_a_mean_is_over_tokens_heads_and_rows(watcher: Redundancy) -> None:
    before = torch.randn(2, 11, 2, 8)
    after = before.clone()
    after[0, 0, 0] *= -1  # of the two buffer tokens of two rows, one head of one
    likeness = two_passes(watcher, before, after)
    assert likeness["buffer"]["v"] == pytest.approx([1 - 2 / 8])


@pytest.mark.parametrize("scale", [2.0, 1.0])
def test_a_generation_is_watched_and_not_changed(scale: float) -> None:
    model, sampling = MAR(CONFIG).initialise(0).eval(), replace(GUIDED, cfg_scale=scale)
    watcher, labels = Redundancy(), torch.tensor([1, 2])
    watched = [model.generate(labels, seeds, watcher, sampling, Memory()) for seeds in ([0, 1], [2, 3])]
    again = Redundancy()
    together = model.generate(labels.repeat(2), [0, 1, 2, 3], again, sampling, Memory())
    torch.testing.assert_close(torch.cat(watched), together, rtol=1e-4, atol=1e-4)
    facts = watcher.profile()
    assert facts["passes"] == [2, 3, 4]
    assert set(facts["classes"]) == set(CLASSES)
    assert set(facts["branches"]) == set(BRANCHES if scale != 1 else BRANCHES[:1])
    assert all(-1 <= s <= 1 for line in facts["layers"]["k"] for s in line)
    for name in ("k", "v", "feature"):
        for mine, its in zip(facts["layers"][name], again.profile()["layers"][name], strict=True):
            assert mine == pytest.approx(its, abs=1e-4), "two generations of two are one of four"
