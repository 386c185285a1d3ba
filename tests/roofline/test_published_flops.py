"""FLOPs of next-scale generations against numbers that were computed independently, to the FLOP."""

import json
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest
import torch

from cachemark.cache.layout import Layout
from cachemark.contract.method import Method
from cachemark.core.errors import BadBudget
from cachemark.core.limits import gpu
from cachemark.core.spec import Sampling
from cachemark.methods.fastvar import FastVAR
from cachemark.methods.fewer_scales import FewerScales
from cachemark.methods.guidance_off import GuidanceOff
from cachemark.models import costs, infinity, var
from cachemark.models.registry import MODELS
from cachemark.roofline.bill import bill
from cachemark.roofline.flops_budget import budget_of, image_flops, share, work
from cachemark.roofline.scale_flops import by_pass

STORED = json.loads(Path(__file__).with_name("flops_budgets.json").read_text())
PUBLISHED, BUDGETS = STORED["models"], STORED["how a budget becomes a knob"]
SIZES = {
    "VAR-d30 256": var.SIZES["d30"], "VAR-d36 512": var.SIZES["d36-512"], "Infinity-2B 1024": infinity.SIZES["2B"],
    "Infinity-8B 1024": infinity.SIZES["8B"],
}
PARTS = {"linear": "matmul", "attention": "attention", "logits": "logits", "input": "input"}
TEXT = 32  # entries of a text
ALL = (0, 31)
METHODS: dict[str, dict[str, Callable[[], Method]]] = {  # one row of each kind of saving, per model
    "VAR-d30 256": {"skip last 2": partial(FewerScales, 2), "from 7": partial(GuidanceOff, 7), "off throughout": GuidanceOff,
                    "FastVAR .5 of 13, .75 of 16, layers 3-27": partial(FastVAR, (0.5, 0.75))},
    "Infinity-2B 1024": {"skip last 4": partial(FewerScales, 4), "from 9": partial(GuidanceOff, 9),
                         "FastVAR as published (.4 .5, 2 skipped; layers 3-27)": partial(FastVAR, (0.4, 0.5, 1, 1)),
                         "the same in all layers": partial(FastVAR, (0.4, 0.5, 1, 1), layers=ALL)},
}


def layout(name: str, batch: int = 1) -> Layout:
    """Return the layout of a guided generation in bf16."""
    config = SIZES[name]
    schedule = "linear" if isinstance(config, var.VARConfig) else "constant"
    text = {} if isinstance(config, var.VARConfig) else {"text": TEXT}
    return config.layout(range(batch), Sampling(cfg_scale=4.0, cfg_schedule=schedule), torch.bfloat16, **text)


@pytest.mark.parametrize("name", SIZES)
def test_the_full_cache_computes_the_published_flops(name: str) -> None:
    published = PUBLISHED[name]
    parts, scales = work(Method(), layout(name)), by_pass(Method(), layout(name))
    assert {part: parts[ours] for part, ours in PARTS.items()} == published["parts"]
    assert sum(parts.values()) == published["total"] == image_flops(Method(), layout(name, batch=3))
    assert [sum(scale.values()) for scale in scales] == [scale["flops"] for scale in published["per scale"]]
    assert [scale["attention"] for scale in scales] == [scale["attention"] for scale in published["per scale"]]


@pytest.mark.parametrize(("model", "name"), [(model, name) for model, methods in METHODS.items() for name in methods])
def test_a_method_computes_the_published_flops_and_has_the_published_bound(model: str, name: str) -> None:
    published, method, shape = PUBLISHED[model]["methods"][name], METHODS[model][name](), layout(model)
    assert image_flops(method, shape) == published["flops"]
    assert round(float(share(method, shape)), 5) == published["share"]
    assert len(by_pass(method, shape)) == published["passes"]
    assert round(1 / float(share(method, shape)), 3) == published["bound by FLOPs"]
    counts = MODELS.get("var-d30" if model.startswith("VAR") else "infinity-2b").parameter_counts()
    if model.startswith("Infinity"):
        counts = costs.infinity(infinity.SIZES["2B"], counts.image, TEXT)
    full, own = (bill(each, layout(model, 8), counts).without("once", "method", "decode").roofline_time(gpu("h100"))
                 for each in (Method(), method))
    assert round(full / own, 3) == published["H100 spec, batch 8"]


# -- from a budget to parameters --------------------------------------------------------------------------------------
BASES = {
    "FastVAR factor on published .4 .5 1 1, layers 3-27": FastVAR(),
    "FastVAR factor on .4 .5 .6 .75, layers 3-27": FastVAR(base=(0.4, 0.5, 0.6, 0.75)),
    "FastVAR factor on .5 .75, all layers": FastVAR(base=(0.5, 0.75), layers=ALL),
    "FastVAR factor on .3 .4 .5 .75, all layers": FastVAR(base=(0.3, 0.4, 0.5, 0.75), layers=ALL),
}


@pytest.mark.parametrize(("model", "table"), [(model, table) for model, tables in BUDGETS.items() for table in tables])
def test_a_budget_gives_the_published_parameters(model: str, table: str) -> None:
    shape = layout(model)
    for budget, published in BUDGETS[model][table].items():
        method = BASES.get(table) or (FewerScales() if table == "scales that run" else GuidanceOff())
        if published is None:  # even with all that it can leave out
            with pytest.raises(BadBudget):
                method.fit(Fraction(budget), shape)
            continue
        fitted = method.fit(Fraction(budget), shape)
        if isinstance(method, FastVAR):
            expected = [min(1.0, published["factor"] * base) for base in method.base]
            assert fitted["shares"] == pytest.approx([1.0 if 1.0 in expected[:i] else share for i, share in enumerate(expected)])
            assert round(float(share(FastVAR(**{**method.parameters(), **fitted}), shape)), 5) == published["share"]
        elif isinstance(method, FewerScales):
            assert len(shape.scales) - fitted["count"] == published["scales"]
        else:
            assert fitted == {"start": published["scale"]}
    assert budget_of(FastVAR((0.4, 0.5, 1, 1)), layout("Infinity-2B 1024")) == Fraction(2387, 10**4)
