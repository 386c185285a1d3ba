"""Parameters of all methods: what a budget becomes, and which values are refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from cachemark.cache.layout import Layout
from cachemark.cache.masked_layout import MaskedLayout
from cachemark.contract.method import Method
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
from cachemark.roofline.masked_flops import share

LAYOUT = layout_of((2, 2), lines=8, line=8)
SCALES = next_scale.layout_of()
INFINITY = MODELS.get("infinity-2b").shape(MODELS.get("infinity-2b").presets["paper"], 1)
CLASSES: list[type[Method]] = [METHODS.get(name) for name in METHODS]
PUBLISHED = {"calibration": "infinity-2b"}


def masked(batch: int = 3, **sampling: Any) -> MaskedLayout:
    """MAR-B in 64 steps."""
    return mar.SIZES["B"].layout(range(batch), Sampling(**{"cfg_scale": 3.0, "steps": 64, **sampling}))


MASKED = masked()


def named(cls: type[Method]) -> str:
    return cls.name


@pytest.mark.parametrize("cls", CLASSES, ids=named)
def test_a_method_names_its_source(cls: type[Method]) -> None:
    assert METHODS.get(cls.name) is cls
    assert cls.source
    assert cls.__doc__
    assert cls.evict_after in ("", "token", "line", "scale", "step")


# -- budgets ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("budget", [Fraction(1), Fraction(1, 2), Fraction(3, 8)])
@pytest.mark.parametrize("cls", [cls for cls in CLASSES if issubclass(cls, Evicting)], ids=named)
def test_parameters_of_a_budget_are_accepted(cls: type[Method], budget: Fraction) -> None:
    parameters = cls.parameters_for(budget, LAYOUT)
    method = cls.build({**calibration(cls, LAYOUT), **parameters})
    method.resolve(LAYOUT)
    assert parameters["B"] == 64 * budget
    assert {**method.parameters(), **parameters} == method.parameters()


@pytest.mark.parametrize(("name", "parameter", "unit", "most", "budgets"), [
    ("lazymar", "scale", 0.01, 20, ("2/5", "1/3")), ("random_tokens", "scale", 0.01, 20, ("3/4", "4/5")),
    ("marche", "active", 1, 320, ("4/5", "9/10")), ("gtr", "steps", 1, 64, ("3/4", "1/2", "1/3")),
    ("fewer_steps", "steps", 1, 64, ("1", "1/2", "1/3")), ("recap", "full_steps", 2, 64, ("1", "9/10", "3/4")),
    ("halton", "steps", 1, 64, ("1", "1/2", "1/3")),
])  # fmt: skip
def test_a_budget_of_a_masked_model_is_a_fraction_of_the_flops(
    name: str, parameter: str, unit: float, most: float, budgets: tuple[str, ...],
) -> None:
    cls, shape = METHODS.get(name), masked(1)
    for budget in map(Fraction, budgets):
        fitted = cls().fit(budget, shape)[parameter]
        assert share(cls(**{parameter: fitted}), shape) <= budget
        assert fitted == most or share(cls(**{parameter: fitted + unit}), shape) > budget


@pytest.mark.parametrize(("name", "layout", "parameters", "budget", "words"), [
    ("full", LAYOUT, {}, "1/4", "cannot meet a budget of 1/4"),
    ("heatkv", SCALES, {}, "1/10", r"a budget of 0.1 is below the sinks: every head keeps the 14 of 55 tokens .*at least 0.2545"),
    ("hack", SCALES, {}, "1/20", "a budget of 0.05 leaves structural heads less than the 5 of the sinks, the first 2 scales"),
    ("hackpp", SCALES, {}, "1/100", "a budget of 0.01 is less than one entry of 55 for each head"),
    ("scalekv", INFINITY, PUBLISHED, "1/500", "a budget of 0.002 is 12 entries per layer; 16 always stay. Use at least 0.0025"),
    ("lazymar", MASKED, {}, "1/10", r"it computes at least 0\.\d+ of the FLOPs of an image, more than 1/10\. Raise"),
    ("random_tokens", MASKED, {}, "1/10", r"it computes at least 0\.\d+ of the FLOPs of an image, more than 1/10\. Raise"),
    ("marche", MASKED, {}, "1/2", r"it computes at least 0\.\d+ of the FLOPs"),
    ("recap", MASKED, {}, "1/2", r"it computes at least 0\.\d+ of the FLOPs of an image, more than 1/2\."),
    ("gtr", MASKED, {}, "1/100", r"it computes at least 0\.\d+ of the FLOPs of an image, more than 1/100\."),
    ("fewer_steps", MASKED, {}, "1/5", r"it computes at least 0\.\d+ of the FLOPs"),
    ("halton", MASKED, {}, "1/5", r"it computes at least 0\.\d+ of the FLOPs of an image, more than 1/5\."),
])  # fmt: skip
def test_a_budget_that_cannot_be_met_is_refused(name: str, layout: Layout, parameters: dict[str, Any], budget: str, words: str) -> None:
    cls = METHODS.get(name)
    with pytest.raises(BadBudget, match=f"{name}: .*{words}"):
        cls.build({**calibration(cls, layout), **parameters}).fit(Fraction(budget), layout)


# -- single values ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "parameters", "error", "words"), [
    ("h2o", {}, BadParameter, "B = 0 is out of range"),
    ("streaming", {"B": 4}, BadBudget, r"4 sinks .*fit in B = 4.*0 … 3"),
    ("streaming", {"B": 9, "sinks": -1}, BadBudget, "-1 sinks"),
    ("window", {"B": 1, "keep_condition": False}, BadBudget, "a condition of 2 entries does not fit in B = 1"),
    ("full", {"store_last": True}, BadParameter, "next-scale"),
    ("linear", {"B": 20}, BadBudget, "B must be a multiple of 8"),
    ("linear", {"B": 16, "recent_lines": 0}, BadBudget, "recent_lines at least 1"),
    ("linear", {"B": 16, "anchor": -1}, BadBudget, "anchor at least 0"),
    ("linear", {"B": 24, "anchor": 9}, BadBudget, "leaves no line to evict besides anchor = 9 and 1 recent lines"),
    ("linear", {"B": 24, "score": "interline"}, BadParameter, "score = 'interline' is unknown.*inter-line, accumulated"),
    ("linear", {"B": 32, "line_end": "pinned"}, BadParameter, "line_end = 'pinned': the lines of this model have no end-of-line token"),
    ("linear", {"B": 32, "line_end": "sink"}, BadParameter, "line_end = 'sink' is unknown"),
    ("rkv", {"B": 20}, BadBudget, "B = 20 with alpha = 8 does not fit lines of 8.*multiple of 8"),
    ("rkv", {"B": 16, "alpha": 9}, BadBudget, "does not fit lines of 8"),
    ("rkv", {"B": 16, "alpha": 0}, BadParameter, "alpha is at least 1"),
    ("rkv", {"B": 16, "mix_lambda": 1.5}, BadParameter, r"mix_lambda = 1.5.*in \[0, 1\]"),
    ("rkv", {"B": 16, "mix_lambda": float("nan")}, BadParameter, "mix_lambda = nan"),
    ("ssd_heads", {"B": 12, "near": 9}, BadParameter, "near = 9 is out of range. Use 1 … 8 lines"),
    ("ssd_heads", {"B": 12, "tau": 1.5}, BadParameter, "tau = 1.5 is out of range"),
    ("ssd_heads", {"B": 12, "tau": float("nan")}, BadParameter, "tau = nan is out of range"),
    ("ssd_heads", {"B": 12, "buffer": "lines"}, BadParameter, "buffer = 'lines' is unknown. Known: token, line"),
    ("ssd_heads", {"B": 14, "buffer": "line"}, BadBudget, "B = 14 does not fit lines of 8.*at least 16"),
    ("ssd_heads", {"B": 8, "buffer": "line"}, BadBudget, "B = 8 does not fit lines of 8"),
    ("ssd_heads", {"B": 12, "recent": -1}, BadBudget, "recent = -1 does not fit B = 12.*1 … 12"),
    ("ssd_heads", {"B": 16, "recent": 9, "buffer": "line"}, BadBudget, "recent = 9 does not fit B = 16: 8 entries stay after an eviction"),
    ("scale_groups", {"remove": "fine"}, BadParameter, "Known: condensed, intermediate, local"),
    ("scale_groups", {"local": -1}, BadParameter, "local = -1 is out of range"),
    ("ams_kv", {}, BadParameter, "no inter-scale similarity found for these weights.*demanding.*cachemark calibrate ams_kv"),
    ("ams_kv", {"decide": "never"}, BadParameter, "Known: profile, online"),
    ("ams_kv", {"allocation": "similar"}, BadParameter, "Known: similarity, uniform"),
    ("ams_kv", {"condensed": 6}, BadParameter, "condensed = 6 .*0 … 5 scales"),
    ("ams_kv", {"demanding": [3]}, BadParameter, "Use a list of layers in 0 … 2"),
    ("ams_kv", {"demanding": "1"}, BadParameter, "Use a list of layers in 0 … 2"),
    ("ams_kv", {"demanding": [], "c_max": 20, "c_min": 30}, BadParameter, "less than c_min"),
    ("ams_kv", {"demanding": [], "c_min": 5}, BadBudget, "c_min = 5 does not exceed the 5 tokens"),
    ("ams_kv", {"demanding": [1], "entries": 13}, BadBudget, "do not exceed the condensed scales"),
    ("hack", {"contextual": 1.0}, BadParameter, "contextual = 1.0 is out of range"),
    ("hack", {"contrast": 0.0}, BadParameter, "contrast = 0.0 is out of range"),
    ("hack", {"queries": 0}, BadParameter, "queries = 0 is out of range"),
    ("hack", {"mean": 92}, BadParameter, "mean = 92 .*1 … 91 tokens"),
    ("hack", {"mean": 2}, BadBudget, "mean = 2 leaves structural heads 3 entries, less than the 5 of the sinks"),
    ("hack", {"calibration": "", "mean": 30}, BadParameter, "no calibration found for these weights"),
    ("hackpp", {"contextual": 0.0}, BadParameter, "contextual = 0.0 is out of range"),
    ("hackpp", {"pool": 4}, BadParameter, "pool = 4 .*odd"),
    ("hackpp", {"exponent": -1.0}, BadParameter, "exponent = -1.0 is out of range"),
    ("hackpp", {"exponent": float("nan")}, BadParameter, "exponent = nan"),
    ("hackpp", {"attention_budget": 92}, BadParameter, "attention_budget = 92 .*1 … 91 tokens"),
    ("heatkv", {"calibration": "", "limit": 200}, BadParameter, "no calibration found .*cachemark calibrate heatkv MODEL"),
    ("heatkv", {"calibration": "infinity-2a", "limit": 200}, UnknownName, "Did you mean 'infinity-2b'"),
    ("heatkv", {"sink": 6}, BadParameter, "sink = 6 .*1 … 5 scales"),
    ("heatkv", {"counts": "dead"}, BadParameter, "counts = 'dead' is unknown. Known: allocated, live"),
    ("heatkv", {"limit": 10}, BadBudget, "limit = 10 is below the sinks, 168 entries"),
    ("scalekv", {"calibration": ""}, BadParameter, "no calibration found for these weights"),
    ("scalekv", {"score": "paper"}, BadParameter, "score = 'paper' is unknown"),
    ("scalekv", {"drafters": 3}, BadParameter, "drafters = 3 .*1 … 2 layers"),
    ("scalekv", {"mean": 15}, BadBudget, "mean = 15 is less than its window"),
    ("fewer_steps", {"steps": 0}, BadParameter, "steps = 0 is out of range. Use 1 … 64, the requested steps, or a budget"),
    ("lazymar", {"select": "least"}, BadParameter, "select = 'least' is unknown.* similarity"),
    ("lazymar", {"forced": "never"}, BadParameter, "forced = 'never' is unknown.* zero, always"),
    ("lazymar", {"schedule": "absolute"}, BadParameter, "schedule = 'absolute' is unknown.* auto, published, scaled"),
    ("lazymar", {"start": 0}, BadParameter, "start = 0 is out of range.* at least 1"),
    ("lazymar", {"layer": 12}, BadParameter, "layer = 12 .*decoder block in 0 … 11"),
    ("lazymar", {"table": [0.5, 2]}, BadParameter, r"table = \[0.5, 2\] is out of range"),
    ("lazymar", {"table": "0.5"}, BadParameter, "table = '0.5' is out of range"),
    ("lazymar", {"table": []}, BadParameter, "table = .*a list with a number in"),
    ("lazymar", {"table": [0.5] * 20}, BadParameter, "pass 20 of 64 reads entry 20 of a table of 20.*'scaled'"),
    ("lazymar", {"count": 5}, BadBudget, r"count = 5 is less than the \d+ tokens that pass \d+ must compute"),
    ("marche", {"active": 0}, BadParameter, "active = 0 is out of range"),
    ("marche", {"select_layer": 0}, BadParameter, "select_layer = 0 .*decoder block in 1 … 12"),
    ("marche", {"refresh": "most"}, BadParameter, "refresh = 'most' is unknown.*high, low, random, blind"),
    ("marche", {"refresh_layers": [13]}, BadParameter, r"refresh_layers = \[13\] .*a list of blocks in 1 … 12"),
    ("marche", {"refresh_layers": [True]}, BadParameter, "refresh_layers = .* is out of range"),
    ("marche", {"refresh_layers": "3"}, BadParameter, "refresh_layers = .* is out of range"),
    ("recap", {"full_steps": 65}, BadParameter, r"full_steps = 65 is out of range\. Use 0 … 64, or -1 for half of the steps\."),
    ("recap", {"full_steps": -2}, BadParameter, r"full_steps = -2 is out of range\."),
    ("recap", {"partial_steps": -1}, BadParameter, r"partial_steps = -1 is out of range\. Use 0 or more partial steps per group\."),
    ("recap", {"head_fraction": 0.0}, BadParameter, r"head_fraction = 0\.0 is out of range\. Use a number in \(0, 1\]\."),
    ("recap", {"head_fraction": float("nan")}, BadParameter, "head_fraction = nan is out of range"),
    ("recap", {"order": "random"}, BadParameter, "order = 'random' is unknown. Known: raster, sample"),
    ("gtr", {"steps": 65}, BadParameter, "steps = 65 is out of range. Use 3 … 64 in 3 stages"),
    ("gtr", {"stages": 9}, BadParameter, "stages = 9 is out of range. Use 1 … 6 for 16×16 positions"),
    ("gtr", {"split": [24, 6, 2], "steps": 16}, BadParameter, r"split = 24 6 2 is a schedule of 32 steps .*; there are 16 in 3\."),
    ("gtr", {"split": [24, 6]}, BadParameter, r"split = 24 6 is a schedule of 30 steps in 2 stages; there are 30 in 3\."),
    ("gtr", {"split": [0, 30, 2]}, BadParameter, r"split = 0 30 2 for stages of 64 64 128 tokens\."),
    ("gtr", {"split": "many"}, BadParameter, "split = 'many' .*a list"),
    ("gtr", {"most": 1.5}, BadParameter, r"most = 1\.5 is out of range\."),
    ("gtr", {"most": 0.1}, BadParameter, r"least = 0\.2 .*\(0, 0\.1\], the value of most"),
    ("gtr", {"detail": 1.0}, BadParameter, r"detail = 1\.0 is out of range\."),
    ("gtr", {"rate": "evn"}, BadParameter, "evn.*even"),
    ("halton", {"steps": 65}, BadParameter, r"steps = 65 is out of range\. Use 1 … 64, the requested steps, or a budget such as 1/2\."),
    ("halton", {"steps": -1}, BadParameter, r"steps = -1 is out of range\."),
    ("halton", {"rate": "cos"}, BadParameter, r"rate = 'cos' is unknown\. Known: cosine, arccos\."),
    ("halton", {"order": "random"}, BadParameter, r"order = 'random' is unknown\. Known: halton, sample\."),
    ("halton", {"order": "sample", "roll": True}, BadParameter, r"roll = True has no effect .* order = 'halton' or roll = False\."),
])  # fmt: skip
def test_a_wrong_parameter_is_refused(name: str, parameters: dict[str, Any], error: type[CachemarkError], words: str) -> None:
    layouts = {"next-token": LAYOUT, "next-scale": SCALES, "masked": MASKED}
    refuse(name, layouts[METHODS.get(name).paradigms[0]], parameters, error, words)


def refuse(name: str, layout: Layout, parameters: dict[str, Any], error: type[CachemarkError], words: str) -> None:
    cls = METHODS.get(name)
    with pytest.raises(error, match=f"(?s){name}.*{words}"):
        cls.build({**calibration(cls, layout), **parameters}).resolve(layout)


@pytest.mark.parametrize(("name", "parameters"), [
    ("streaming", {"B": 5}), ("streaming", {"B": 1, "sinks": 0}), ("window", {"B": 2, "keep_condition": False}), ("window", {"B": 1}),
    ("linear", {"B": 16}), ("linear", {"B": 24, "anchor": 8}), ("linear", {"B": 32, "recent_lines": 3}), ("rkv", {"B": 16}),
    ("rkv", {"B": 16, "mix_lambda": 0}), ("rkv", {"B": 32, "alpha": 24}),
])  # fmt: skip
def test_what_just_fits_is_accepted(name: str, parameters: dict[str, Any]) -> None:
    METHODS.get(name).build(parameters).resolve(LAYOUT)


def test_what_depends_on_more_than_the_layout_is_refused() -> None:
    """Line ends, guidance, the number of steps, and orders for one sink."""
    ends = replace(LAYOUT, line_ends=True)
    refuse("linear", ends, {"B": 24, "anchor": 3, "line_end": "pinned"}, BadBudget, "and 8 ends of lines")
    METHODS.get("linear")(B=24, anchor=3, line_end="excluded").resolve(ends)
    off = {"condition_cache": False, "head_cache": False}
    for parameter in off:
        refuse("lazymar", masked(cfg_scale=1.0), {**off, parameter: True}, BadParameter, f"{parameter} needs unconditional rows")
    METHODS.get("lazymar")(**off).resolve(masked(cfg_scale=1.0))
    refuse("lazymar", masked(steps=100), {"schedule": "published"}, BadParameter, "reads entry 64 of a table of 64")
    refuse("heatkv", INFINITY, {**PUBLISHED, "sink": 2}, BadParameter, "sink = 2; the orders of infinity-2b start after 3 scales")


# -- calibrations -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "layout", "changes", "words"), [
    ("ssd_heads", LAYOUT, {"layers": 3}, r"the calibration of random facts is of another model or resolution: layers 3, not \d"),
    ("ssd_heads", LAYOUT, {"lines": 24, "line": 24}, "lines 24, not 8; line 24, not 8"),
    ("ssd_heads", LAYOUT, {"recency": [[[0.5] * 8] * 4]}, r"has no recency of \d × \d × 8 finite numbers"),
    ("ssd_heads", LAYOUT, {"recency": [[["high"] * 8] * 4] * 2}, r"has no recency of \d × \d × 8 finite numbers"),
    ("hack", SCALES, {"scales": [1, 2, 3, 4, 5]}, "resolution: scales 1 2 3 4 5, not 1 2 3 4 5 6"),
    ("hackpp", SCALES, {"scales": [1, 2, 3, 4, 5]}, "resolution: scales 1 2 3 4 5, not 1 2 3 4 5 6"),
    ("scalekv", SCALES, {"layers": 40}, "layers 40, not 3"),
    ("heatkv", SCALES, {"layers": 40, "heads": 28}, "layers 40, not 3; heads 28, not 4"),
])  # fmt: skip
def test_a_calibration_of_another_model_or_shape_is_refused(name: str, layout: Layout, changes: dict[str, Any], words: str) -> None:
    cls = METHODS.get(name)
    facts = calibrations.named(name, calibration(cls, layout)["calibration"])[1]
    broken = calibrations.remember(name, {**facts, **changes})
    size = {"ssd_heads": {"B": 16}, "heatkv": {"limit": 200}}.get(name, {})
    refuse(name, layout, {**size, "calibration": broken}, BadCalibration, f"{words}.*cachemark calibrate {name} MODEL")


# -- kernels ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "parameters", "kernel"), [
    ("h2o", {}, "matmul-with-mass"), ("linear", {}, "sdpa"), ("linear", {"score": "accumulated"}, "matmul-with-mass"),
    ("rkv", {}, "sdpa"), ("streaming", {}, "sdpa"), ("full", {}, "sdpa"),
])  # fmt: skip
def test_the_kernel_depends_on_whether_masses_are_needed(name: str, parameters: dict[str, Any], kernel: str) -> None:
    """Speedups are only stated between equal kernels."""
    method = METHODS.get(name)(**parameters)
    assert (method.kernel, method.needs_mass) == (kernel, kernel != "sdpa")
