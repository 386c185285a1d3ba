"""FLOPs of a masked model: what is computed on paper, what is dispatched, and what is printed."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from cachemark.cache.arena import Memory
from cachemark.cache.masked_layout import Load, MaskedLayout, masked_steps
from cachemark.core.spec import Sampling
from cachemark.methods.fewer_steps import FewerSteps
from cachemark.methods.full import Full
from cachemark.methods.lazymar import LazyMAR
from cachemark.methods.registry import METHODS
from cachemark.models.catalogue import masked_models as masked
from cachemark.models.mar import MAR, SIZES, MARConfig
from cachemark.models.registry import MODELS
from cachemark.roofline.flops import counted
from cachemark.roofline.masked_flops import Work, by_pass, share, work
from support.paper_flops import TERA, PrintedFlops, published

assert masked  # importing it registers the models
CONFIG = MARConfig(32, (2, 4), 4, 6, 24, grid=6, channels=4, classes=10, buffer=5, steps=5, diffusion=(9,))
SAMPLING = Sampling(cfg_scale=3.0)
OFF = dict.fromkeys(("token_cache", "condition_cache", "encoder_cache", "head_cache"), False)
PRUNING = {"start": 1, "period": 4, "schedule": "published", "layer": 1, "table": [0.3] * 5, "extra": 2}
CANDIDATES: list[tuple[str, dict[str, Any]]] = [
    ("fewer_steps", {"steps": 3}), ("gtr", {"steps": 4, "detail": 0.3, "most": 0.9}),
    ("random_tokens", PRUNING), ("lazymar", PRUNING),
    *(("lazymar", {**PRUNING, **OFF, switch: True}) for switch in OFF),
    ("marche", {"active": 9}), ("marche", {"active": 9, "encoder_cache": True, "refresh_layers": [4]}),
    ("marche", {"active": 9, "partitioned": True}),
]


def dispatched(config: MARConfig, sampling: Sampling, name: str, parameters: dict[str, Any], device: str = "cpu") -> tuple[int, int]:
    """FLOPs of two images as counted, and by the formula."""
    with torch.device(device):
        model = MAR(config).eval().requires_grad_(False)
        labels = torch.zeros(2, dtype=torch.int64)
    cls = METHODS.get(name)
    flops = counted(lambda: model.generate(labels, [0, 1], cls.build(parameters), sampling, Memory(device)))
    return flops, 2 * work(cls.build(parameters), model.layout([0, 1], sampling)).total


@pytest.mark.parametrize(("name", "parameters"), CANDIDATES,
                         ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value)))
def test_the_formula_is_what_is_dispatched(name: str, parameters: dict[str, Any]) -> None:
    """MARché's choice asks for scores that the formula leaves out."""
    flops, formula = dispatched(CONFIG, SAMPLING, name, parameters)
    assert formula <= flops
    assert formula == pytest.approx(flops, rel=0.02 if name == "marche" else 1e-9)


def test_the_formula_of_a_published_model() -> None:
    flops, formula = dispatched(SIZES["B"], Sampling(cfg_scale=2.9, steps=3, diffusion_steps=4), "lazymar", PRUNING, "meta")
    assert formula == flops


def test_counting_does_without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import of it takes seconds, in every trial."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # an import of it fails
    layer = torch.nn.Linear(3, 5)
    assert counted(lambda: layer(torch.ones(2, 3))) == 2 * 2 * 3 * 5


# -- published values ------------------------------------------------------------------------------------------------
def on_paper(figure: PrintedFlops, parameters: dict[str, Any] | None = None) -> Work:
    entry = MODELS.get(figure.model)
    layout = entry.shape(replace(entry.presets["paper"], steps=figure.steps), 1)
    return work(METHODS.get(figure.method).build(parameters or {}), layout)


BASELINES = [figure for figure in published() if figure.method == "full"]


@pytest.mark.parametrize("figure", BASELINES, ids=lambda figure: f"{figure.model}-{figure.steps}")
def test_the_published_baseline_follows(figure: PrintedFlops) -> None:
    """LazyMAR's values include the image decoder and small operations, so they are a little higher."""
    assert -0.07 < figure.off(on_paper(figure).total) < 0


@pytest.mark.parametrize("figure", [f for f in published() if f.method == "lazymar" and f.steps == 64], ids=lambda figure: figure.model)
def test_the_published_saving_follows_only_with_the_head(figure: PrintedFlops) -> None:
    """The paper does not speak of a cache in the head; its values at 64 steps cannot be had without."""
    assert -0.07 < figure.off(on_paper(figure).total) < 0
    assert figure.off(on_paper(figure, {"head_cache": False}).total) > 0.25


def test_a_figure_is_a_share_off() -> None:
    assert PrintedFlops("mar-b", 64, "full", "2.00").off(TERA) == -0.5


# -- the formula itself -----------------------------------------------------------------------------------------------
def test_an_image_costs_what_its_passes_cost() -> None:
    """Beside them the head embeds its timesteps once: two layers for each."""
    layout: MaskedLayout = MAR(CONFIG).layout([0], SAMPLING)
    passes, steps = by_pass(Full(), layout), masked_steps(layout, layout.steps)
    assert len(passes) == len(steps) == 5
    assert sum(passes) == work(Full(), layout).total - 2 * 9 * (256 * 24 + 24 * 24)
    apart = [b - a for a, b in zip(passes, by_pass(FewerSteps(5), layout), strict=True)]
    assert apart == [0] * 5
    assert by_pass(LazyMAR(**{**PRUNING, "head_cache": False}), layout)[:2] == passes[:2], "full passes"


class Idle(Full):
    """Claims that the decoder computes nothing."""

    def computes(self, site: Any, step: Any, load: Load) -> Load:
        return load._replace(tokens=0, mlp=0) if site.stack == "decoder" else load


def test_what_a_method_does_not_compute_is_not_counted() -> None:
    layout: MaskedLayout = MAR(CONFIG).layout([0], SAMPLING)
    total, idle = work(Full(), layout), work(Idle(), layout)
    assert (idle.encoder, idle.head) == (total.encoder, total.head)
    visible = sum(layout.buffer + step.first for step in masked_steps(layout, layout.steps))
    assert idle.decoder == 2 * 2 * visible * layout.dim**2, "what is left is the projection of the encoder's output"
    assert share(Idle(), layout) < share(Full(), layout) == 1
