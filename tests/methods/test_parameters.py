"""Parameters of all methods: what a budget becomes, and which values are refused."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from cachemark.cache.layout import Layout
from cachemark.cache.masked_layout import MaskedLayout
from cachemark.core.errors import BadBudget, BadCalibration, BadParameter, CachemarkError, UnknownName
from cachemark.core.spec import Sampling
from cachemark.kit import next_scale
from cachemark.kit.common import calibration
from cachemark.kit.driver import layout_of
from cachemark.methods.base import calibrations
from cachemark.methods.base.evicting import Evicting
from cachemark.methods.registry import METHODS
from cachemark.models import mar
from cachemark.models.registry import MODELS
from cachemark.roofline.flops_budget import share

LAYOUT = layout_of((2, 2), lines=8, line=8)
SCALES = next_scale.layout_of()
INFINITY = MODELS.get("infinity-2b").shape(MODELS.get("infinity-2b").presets["paper"], 1)
PUBLISHED = {"calibration": "infinity-2b"}


def masked(batch: int = 3, **sampling: Any) -> MaskedLayout:
    return mar.SIZES["B"].layout(range(batch), Sampling(**{"cfg_scale": 3.0, "steps": 64, **sampling}))


MASKED = masked()


@pytest.mark.parametrize("budget", [Fraction(1), Fraction(1, 2), Fraction(3, 8)])
def test_parameters_of_a_budget_are_accepted(budget: Fraction) -> None:
    for cls in (cls for cls in map(METHODS.get, METHODS) if issubclass(cls, Evicting)):
        parameters = cls.parameters_for(budget, LAYOUT)
        method = cls.build({**calibration(cls, LAYOUT), **parameters})
        method.resolve(LAYOUT)
        assert parameters["B"] == 64 * budget
        assert {**method.parameters(), **parameters} == method.parameters()


@pytest.mark.parametrize(("name", "parameter", "unit", "most", "budgets"), [
    ("lazymar", "scale", 0.01, 20, ("2/5", "1/3")), ("random_tokens", "scale", 0.01, 20, ("3/4", "4/5")),
    ("marche", "active", 1, 320, ("4/5", "9/10")), ("gtr", "steps", 1, 64, ("3/4", "1/2", "1/3")),
    ("disa", "steps", 1, 64, ("3/4", "1/2", "1/3")), ("fewer_steps", "steps", 1, 64, ("1", "1/2", "1/3")),
    ("recap", "full_steps", 2, 64, ("1", "9/10", "3/4")), ("halton", "steps", 1, 64, ("1", "1/2", "1/3"))])  # fmt: skip
def test_a_budget_of_a_masked_model_is_a_fraction_of_the_flops(
    name: str, parameter: str, unit: float, most: float, budgets: tuple[str, ...]) -> None:
    cls, shape = METHODS.get(name), masked(1)
    for budget in map(Fraction, budgets):
        fitted = cls().fit(budget, shape)[parameter]
        assert share(cls(**{parameter: fitted}), shape) <= budget
        assert fitted == most or share(cls(**{parameter: fitted + unit}), shape) > budget


def test_a_budget_that_cannot_be_met_is_refused() -> None:
    for name, layout, budget in (
        ("full", LAYOUT, "1/4"), ("heatkv", SCALES, "1/10"), ("hack", SCALES, "1/20"), ("hackpp", SCALES, "1/100"),
        ("lazymar", MASKED, "1/10"), ("random_tokens", MASKED, "1/10"), ("marche", MASKED, "1/2"), ("recap", MASKED, "1/2"),
        ("gtr", MASKED, "1/100"), ("fewer_steps", MASKED, "1/5"), ("halton", MASKED, "1/5")):
        cls = METHODS.get(name)
        with pytest.raises(BadBudget, match=name) as raised:
            cls.build(calibration(cls, layout)).fit(Fraction(budget), layout)
        assert raised.value.remedy
    with pytest.raises(BadBudget, match=r"0\.0025"):
        METHODS.get("scalekv").build(PUBLISHED).fit(Fraction(1, 500), INFINITY)


NAN = float("nan")
WRONG: dict[tuple[str, type[CachemarkError]], list[dict[str, Any]]] = {  # by method and error: values out of range
    ("h2o", BadParameter): [{}], ("full", BadParameter): [{"store_last": True}],
    ("streaming", BadBudget): [{"B": 4}, {"B": 9, "sinks": -1}], ("window", BadBudget): [{"B": 1, "keep_condition": False}],
    ("linear", BadBudget): [{"B": 20}, {"B": 16, "recent_lines": 0}, {"B": 16, "anchor": -1}, {"B": 24, "anchor": 9}],
    ("linear", BadParameter): [{"B": 24, "score": "interline"}, {"B": 32, "line_end": "pinned"}, {"B": 32, "line_end": "sink"}],
    ("rkv", BadBudget): [{"B": 20}, {"B": 16, "alpha": 9}], ("headkv", BadBudget): [{"B": 24, "window": 3}],
    ("rkv", BadParameter): [{"B": 16, "alpha": 0}, {"B": 16, "mix_lambda": 1.5}, {"B": 16, "mix_lambda": NAN}],
    ("headkv", BadParameter): [{"B": 24, "tau": 1.5}, {"B": 24, "share": 2.0}, {"B": 24, "score": "soft"}, {"B": 24, "start": 25}],
    ("ssd_heads", BadParameter): [{"B": 12, "near": 9}, {"B": 12, "tau": 1.5}, {"B": 12, "tau": NAN}, {"B": 12, "buffer": "lines"}],
    ("ssd_heads", BadBudget): [{"B": 14, "buffer": "line"}, {"B": 8, "buffer": "line"}, {"B": 12, "recent": -1},
        {"B": 16, "recent": 9, "buffer": "line"}],
    ("scale_groups", BadParameter): [{"remove": "fine"}, {"local": -1}],
    ("ams_kv", BadParameter): [{}, {"decide": "never"}, {"allocation": "similar"}, {"condensed": 6}, {"demanding": [3]},
        {"demanding": "1"}, {"demanding": [], "c_max": 20, "c_min": 30}],
    ("ams_kv", BadBudget): [{"demanding": [], "c_min": 5}, {"demanding": [1], "entries": 13}], ("hack", BadBudget): [{"mean": 2}],
    ("hack", BadParameter): [{"contextual": 1.0}, {"contrast": 0.0}, {"queries": 0}, {"mean": 92}, {"calibration": "", "mean": 30}],
    ("hackpp", BadParameter): [{"contextual": 0.0}, {"pool": 4}, {"exponent": -1.0}, {"exponent": NAN}, {"attention_budget": 92}],
    ("heatkv", BadParameter): [{"calibration": "", "limit": 200}, {"sink": 6}, {"counts": "dead"}],
    ("heatkv", UnknownName): [{"calibration": "infinity-2a", "limit": 200}], ("heatkv", BadBudget): [{"limit": 10}],
    ("scalekv", BadParameter): [{"calibration": ""}, {"score": "paper"}, {"drafters": 3}], ("scalekv", BadBudget): [{"mean": 15}],
    ("disa", BadParameter): [{"most": 0.05, "least": 0.5}, {"most": 1.5}, {"least": 0.0}, {"annealing": "off"},
        {"start": "950"}, {"steps": 65}],
    ("fewer_steps", BadParameter): [{"steps": 0}, *({"steps": 64, "head_annealing": "linear", **wrong} for wrong in (
        {"head_most": 1.5}, {"head_least": 0.0}, {"head_start": "950"}, {"head_most": 0.05, "head_least": 0.5}))],
    ("lazymar", BadParameter): [{"select": "least"}, {"forced": "never"}, {"schedule": "absolute"}, {"start": 0}, {"layer": 12},
        {"table": [0.5, 2]}, {"table": "0.5"}, {"table": []}, {"table": [0.5] * 20}],
    ("lazymar", BadBudget): [{"count": 5}],
    ("marche", BadParameter): [{"active": 0}, {"select_layer": 0}, {"refresh": "most"}, {"refresh_layers": [13]},
        {"refresh_layers": [True]}, {"refresh_layers": "3"}],
    ("recap", BadParameter): [{"full_steps": 65}, {"full_steps": -2}, {"partial_steps": -1}, {"head_fraction": 0.0},
        {"head_fraction": NAN}, {"order": "random"}],
    ("gtr", BadParameter): [{"steps": 65}, {"stages": 9}, {"split": [24, 6, 2], "steps": 16}, {"split": [24, 6]}, {"split": [0, 30, 2]},
        {"split": "many"}, {"most": 1.5}, {"most": 0.1}, {"detail": 1.0}, {"rate": "evn"}],
    ("halton", BadParameter): [{"steps": 65}, {"steps": -1}, {"rate": "cos"}, {"order": "random"}, {"order": "sample", "roll": True}],
    ("fewer_scales", BadParameter): [{"count": 6}, {"count": -1}], ("guidance_off", BadParameter): [{"start": 7}, {"start": -1}],
    ("fastvar", BadParameter): [*({"shares": shares, "layers": (0, 1)} for shares in (
        [0.5, 0], [1.5], [-0.1], [NAN], ["0.5"], [0.5] * 6, 0.5, [1, 0.5])), {"shares": [0.5], "layers": (5, 9)},
        {"shares": [0.5], "layers": (2, 1)}, {"shares": [0.5], "layers": 3}, {"shares": [0.5, 0.5], "layers": (0, 1), "cached": 4},
        {"shares": [0.5], "layers": (0, 1), "score": "mean"}, {"shares": [0.5], "layers": (0, 1), "fill": "nearest"}],
}  # fmt: skip


@pytest.mark.parametrize(("name", "error"), WRONG)
def test_a_wrong_parameter_is_refused(name: str, error: type[CachemarkError]) -> None:
    layouts = {"next-token": LAYOUT, "next-scale": SCALES, "masked": MASKED}
    for parameters in WRONG[name, error]:
        refuse(name, layouts[METHODS.get(name).paradigms[0]], parameters, error)


def refuse(name: str, layout: Layout, parameters: dict[str, Any], error: type[CachemarkError]) -> None:
    """Assert that the error names the method and a parameter, and what to do."""
    cls = METHODS.get(name)
    with pytest.raises(error) as raised:
        cls.build({**calibration(cls, layout), **parameters}).resolve(layout)
    assert name in raised.value.message
    assert not parameters or any(parameter in str(raised.value) for parameter in parameters)
    assert raised.value.remedy


def test_what_just_fits_is_accepted() -> None:
    for name, parameters in (
        ("streaming", {"B": 5}), ("streaming", {"B": 1, "sinks": 0}), ("window", {"B": 2, "keep_condition": False}), ("window", {"B": 1}),
        ("linear", {"B": 16}), ("linear", {"B": 24, "anchor": 8}), ("linear", {"B": 32, "recent_lines": 3}), ("rkv", {"B": 16}),
        ("rkv", {"B": 16, "mix_lambda": 0}), ("rkv", {"B": 32, "alpha": 24})):  # fmt: skip
        METHODS.get(name).build(parameters).resolve(LAYOUT)


def test_what_depends_on_more_than_the_layout_is_refused() -> None:
    """Line ends, guidance, the number of steps, and orders for one sink."""
    ends = replace(LAYOUT, line_ends=True)
    refuse("linear", ends, {"B": 24, "anchor": 3, "line_end": "pinned"}, BadBudget)
    METHODS.get("linear")(B=24, anchor=3, line_end="excluded").resolve(ends)
    off = {"condition_cache": False, "head_cache": False}
    for parameter in off:
        refuse("lazymar", masked(cfg_scale=1.0), {**off, parameter: True}, BadParameter)
    METHODS.get("lazymar")(**off).resolve(masked(cfg_scale=1.0))
    refuse("lazymar", masked(steps=100), {"schedule": "published"}, BadParameter)
    refuse("heatkv", INFINITY, {**PUBLISHED, "sink": 2}, BadParameter)


def test_a_calibration_of_another_model_or_shape_is_refused() -> None:
    for name, layout, changes in (
        ("ssd_heads", LAYOUT, {"layers": 3}), ("ssd_heads", LAYOUT, {"lines": 24, "line": 24}), ("scalekv", SCALES, {"layers": 40}),
        ("ssd_heads", LAYOUT, {"recency": [[[0.5] * 8] * 4]}), ("ssd_heads", LAYOUT, {"recency": [[["high"] * 8] * 4] * 2}),
        ("hack", SCALES, {"scales": [1, 2, 3, 4, 5]}), ("hackpp", SCALES, {"scales": [1, 2, 3, 4, 5]}),
        ("heatkv", SCALES, {"layers": 40, "heads": 28})):
        cls = METHODS.get(name)
        facts = calibrations.named(name, calibration(cls, layout)["calibration"])[1]
        size = {"ssd_heads": {"B": 16}, "heatkv": {"limit": 200}}.get(name, {})
        with pytest.raises(BadCalibration, match=next(iter(changes))) as raised:
            cls.build({**size, "calibration": calibrations.remember(name, {**facts, **changes})}).resolve(layout)
        assert f"cachemark calibrate {name} MODEL" in raised.value.remedy


def test_the_kernel_depends_on_whether_masses_are_needed() -> None:
    """Speedups are only stated between equal kernels."""
    for name, more, kernel in (("h2o", {}, "matmul-with-mass"), ("linear", {"score": "accumulated"}, "matmul-with-mass"),
                               *((name, {}, "sdpa") for name in ("linear", "rkv", "streaming", "full"))):
        method = METHODS.get(name)(**more)
        assert (method.kernel, method.needs_mass) == (kernel, kernel != "sdpa")
