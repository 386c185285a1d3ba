"""Parameters: what a budget becomes, and what a wrong value is told."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from cachemark.contract.method import Method
from cachemark.core.errors import BadBudget, BadParameter
from cachemark.kit.common import calibration
from cachemark.kit.driver import layout_of
from cachemark.methods.base.evicting import Evicting
from cachemark.methods.registry import METHODS

LAYOUT = layout_of((2, 2), lines=8, line=8)
CLASSES: list[type[Method]] = [METHODS.get(name) for name in METHODS]
EVICTING = [cls for cls in CLASSES if issubclass(cls, Evicting)]


def name_of(cls: type[Method]) -> str:
    return cls.name


@pytest.mark.parametrize("cls", CLASSES, ids=name_of)
def test_a_method_says_who_it_is(cls: type[Method]) -> None:
    assert METHODS.get(cls.name) is cls
    assert cls.source
    assert cls.__doc__
    assert cls.evict_after in ("", "token", "line", "scale", "step")


@pytest.mark.parametrize("budget", [Fraction(1), Fraction(1, 2), Fraction(3, 8)])
@pytest.mark.parametrize("cls", EVICTING, ids=name_of)
def test_parameters_of_a_budget_are_accepted(cls: type[Method], budget: Fraction) -> None:
    parameters = cls.parameters_for(budget, LAYOUT)
    method = cls.build({**calibration(cls, LAYOUT), **parameters})
    method.resolve(LAYOUT)
    assert parameters["B"] == 64 * budget
    assert {**method.parameters(), **parameters} == method.parameters()


def test_the_full_cache_cannot_meet_less_than_everything() -> None:
    """Else a plan could print a full run as one at a quarter."""
    full = METHODS.get("full")
    assert full.parameters_for(Fraction(1), LAYOUT) == {}
    with pytest.raises(BadBudget, match=r"cannot meet a budget of 1/4"):
        full.parameters_for(Fraction(1, 4), LAYOUT)


@pytest.mark.parametrize(("name", "parameters", "error", "words"), [
    ("h2o", {}, BadParameter, "B = 0 is out of range"),
    ("random", {"B": -3}, BadParameter, "B = -3 is out of range"),
    ("streaming", {"B": 4}, BadBudget, r"4 sinks .*room in B = 4.*0 … 3"),
    ("streaming", {"B": 9, "sinks": -1}, BadBudget, "-1 sinks"),
    ("window", {"B": 1, "keep_condition": False}, BadBudget, "a condition of 2 entries does not fit in B = 1"),
    ("linear", {"B": 20}, BadBudget, "B must be a multiple of 8"),
    ("linear", {"B": 16, "recent_lines": 0}, BadBudget, "recent_lines at least 1"),
    ("linear", {"B": 16, "anchor": -1}, BadBudget, "anchor at least 0"),
    ("linear", {"B": 24, "anchor": 9}, BadBudget, "leaves no line to evict besides anchor = 9 and 1 recent lines"),
    ("linear", {"B": 24, "recent_lines": 3}, BadBudget, "leaves no line to evict"),
    ("linear", {"B": 8}, BadBudget, "leaves no line to evict"),
    ("linear", {"B": 24, "score": "interline"}, BadParameter, "score = 'interline' is unknown.*inter-line, accumulated"),
    ("rkv", {"B": 20}, BadBudget, "B = 20 with alpha = 8 does not fit lines of 8.*multiple of 8"),
    ("rkv", {"B": 8}, BadBudget, "does not fit lines of 8"),
    ("rkv", {"B": 16, "alpha": 9}, BadBudget, "does not fit lines of 8"),
    ("rkv", {"B": 16, "alpha": 0}, BadParameter, "alpha is at least 1"),
    ("rkv", {"B": 16, "mix_lambda": 1.5}, BadParameter, r"mix_lambda = 1.5.*in \[0, 1\]"),
    ("rkv", {"B": 16, "mix_lambda": float("nan")}, BadParameter, "mix_lambda = nan"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(name: str, parameters: dict[str, Any], error: type[Exception], words: str) -> None:
    method = METHODS.get(name).build(parameters)
    with pytest.raises(error, match=f"{name}: .*{words}"):
        method.resolve(LAYOUT)


@pytest.mark.parametrize(("name", "parameters"), [
    ("streaming", {"B": 5}), ("streaming", {"B": 1, "sinks": 0}), ("window", {"B": 2, "keep_condition": False}), ("window", {"B": 1}),
    ("linear", {"B": 16}), ("linear", {"B": 24, "anchor": 8}), ("linear", {"B": 32, "recent_lines": 3}), ("rkv", {"B": 16}),
    ("rkv", {"B": 16, "mix_lambda": 0}), ("rkv", {"B": 32, "alpha": 24}),
])  # fmt: skip
def test_what_just_fits_is_accepted(name: str, parameters: dict[str, Any]) -> None:
    METHODS.get(name).build(parameters).resolve(LAYOUT)


@pytest.mark.parametrize(("name", "massive"), [("h2o", True), ("linear", False), ("rkv", False), ("streaming", False), ("full", False)])
def test_the_kernel_says_who_needs_the_mass(name: str, massive: bool) -> None:
    """Speedups are only stated between equal kernels."""
    cls = METHODS.get(name)
    assert cls().needs_mass is massive
    assert cls().kernel == ("matmul-with-mass" if massive else "sdpa")


def test_the_ablation_of_linear_needs_the_mass() -> None:
    assert METHODS.get("linear")(score="accumulated").kernel == "matmul-with-mass"
