"""Decoders as an axis of a plan: what cases it means, how they are named, and what is refused with the reason."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from cachemark.core.errors import BadParameter, BadPlan, CachemarkError, UnknownName
from cachemark.core.spec import Sampling
from cachemark.machine.environment import environment
from cachemark.methods.full import Full
from cachemark.methods.linear import Linear
from cachemark.models.registry import MODELS
from cachemark.plans.decoding import refused_decoder
from cachemark.plans.expand import expand
from cachemark.plans.planned import Planned
from cachemark.plans.reuse import result_parts
from cachemark.plans.schema import Plan, load
from cachemark.trial.child.bench import decoder_factory

JACOBI = {"name": "jacobi", "window": 8}


def zipar(window: int) -> dict[str, Any]:
    return {"name": "zipar", "window": window}


def planned(decoders: list[Any], model: str = "tiny-llamagen", methods: tuple[str, ...] = ("h2o",), **more: Any) -> list[Planned]:
    device = more.pop("device", "cpu")
    block = {"model": model, "methods": list(methods), "decoders": decoders, "batch": 2, **more}
    return expand(Plan.model_validate({"name": "p", "fidelity": {"samples": 2}, "cells": [block]}), device)


def candidates(*block: Any, **more: Any) -> dict[str, Planned]:
    return {p.case.label: p for p in planned(*block, **more) if p.case.role == "candidate"}


def test_a_decoder_crosses_methods_and_codecs() -> None:
    by_label = candidates(["sequential", JACOBI], codecs=["native", "int8"])
    assert set(by_label) == {"h2o 1/2", "full int8", "h2o 1/2 int8", "full + jacobi 8", "h2o 1/2 + jacobi 8", "full int8 + jacobi 8",
                          "h2o 1/2 int8 + jacobi 8"}  # fmt: skip
    jacobi_case = by_label["full + jacobi 8"].case
    assert jacobi_case.decoder == {"name": "jacobi", "window": 8, "proposals": "newest", "look_ahead": False}
    assert jacobi_case.named == "full + jacobi 8"
    assert {p.case.cell for p in by_label.values()} == {jacobi_case.cell}, "all are compared with one full cache"
    assert not by_label["full + jacobi 8"].unsupported_reason
    counted = {label for label, p in by_label.items() if "decoder" in result_parts(p.case, environment("cpu", 1))}
    assert counted == {label for label in by_label if "jacobi" in label}, "code of decoders counts only where one runs"


def test_any_parameter_of_a_decoder_makes_another_case_and_sequential_cases_keep_their_keys() -> None:
    assert {p.case.key for p in planned(["sequential"])} < {p.case.key for p in planned(["sequential", JACOBI])}
    tables = [JACOBI, {**JACOBI, "window": 9}, {**JACOBI, "proposals": "left", "variant": "left"}, {**JACOBI, "look_ahead": True}]
    cases = [p.case for p in candidates(tables, methods=("full",)).values()]
    assert len({case.key for case in cases}) == len(cases) == 4
    assert [case.label for case in cases] == ["full + jacobi 8", "full + jacobi 9", "full + jacobi: left", "full + jacobi 8 ahead"]
    for case, parameters in ((cases[2], {"window": 8, "proposals": "left", "look_ahead": False}),
                             (cases[3], {"window": 8, "proposals": "newest", "look_ahead": True})):
        decoder = decoder_factory(case)
        assert decoder is not None
        assert decoder().parameters() == parameters
        assert decoder() is not decoder()
    (same,) = candidates([{**JACOBI, "look_ahead": False}], methods=("full",)).values()
    assert same.case.key == cases[0].key


def test_a_method_beyond_whose_horizon_nothing_may_be_fed_is_refused() -> None:
    shy: Any = type("Shy", (Linear,), {"horizon": lambda self, first: Linear.horizon(self, first)})
    layout = MODELS.get("tiny-llamagen").shape(Sampling(), 2)
    parameters = Linear.parameters_for(Fraction(1, 2), layout)
    case = next(p.case for p in planned([{**JACOBI, "look_ahead": True}], methods=("linear",)) if p.case.method == "linear")
    assert "look_ahead of jacobi has no effect" in refused_decoder(case, shy, parameters, layout)
    assert not refused_decoder(case, Linear, parameters, layout)
    assert not refused_decoder(case, Full, {}, layout), "it stops at no line"
    assert not refused_decoder(replace(case, decoder=JACOBI), shy, parameters, layout)


@pytest.mark.parametrize(("decoder", "given", "reason"), [
    (JACOBI, {}, "h2o states no horizon, so it runs one token per pass, and jacobi cannot draft ahead"),
    (JACOBI, {"model": "tiny-var", "methods": ("streaming",)}, "a next-scale model generates many anyway"),
    (JACOBI, {"model": "tiny-mar", "methods": ("lazymar",), "budgets": ["3/4"]}, "a masked model generates many anyway"),
    (JACOBI, {"codecs": ["kivi4"]}, "kivi4 gives keys a range by groups of tokens"),
    (JACOBI, {"engine": "reference"}, "the reference engine runs the full cache"),
    (zipar(8), {"model": "glm-image"}, "the first 8 lines are a preview, whose tokens are not below each other."),
    (zipar(17), {}, "window = 17 is wider than a line of 16 tokens. Use 2 … 16."),
    (zipar(8), {"model": "tiny-var", "methods": ("streaming",)}, "a next-scale model generates many anyway"),
])  # fmt: skip
def test_what_cannot_run_is_refused_with_the_reason(decoder: dict[str, Any], given: dict[str, Any], reason: str) -> None:
    by_label = candidates([decoder], **given)
    full, method = (next(p for label, p in by_label.items() if label.startswith("full") is of_full) for of_full in (True, False))
    assert reason in (method if decoder is JACOBI else full).unsupported_reason
    assert bool(full.unsupported_reason) == bool(given or decoder is not JACOBI), "beside the full cache of a next-token model it runs"


def test_a_front_runs_beside_the_full_cache_alone_and_a_decoder_on_the_graph_engine() -> None:
    by_label = candidates([zipar(16)], methods=("linear", "streaming"), codecs=["native", "int8"])
    runs = {label for label, each in by_label.items() if "zipar" in label and not each.unsupported_reason}
    assert runs == {"full + zipar 16", "full int8 + zipar 16"}
    assert by_label["linear 1/2 + zipar 16"].unsupported_reason == (
        "zipar feeds tokens of incomplete lines, and linear does not run on them. Use the method full.")
    by_label = candidates(["sequential", JACOBI], device="cuda", engine="auto", methods=("streaming", "linear"))
    assert {by_label[label].case.engine for label in ("streaming 1/2", "full + jacobi 8", "linear 1/2 + jacobi 8")} == {"graph"}
    assert not by_label["linear 1/2 + jacobi 8"].unsupported_reason


MISTAKES: dict[type[CachemarkError], list[tuple[list[Any], str]]] = {
    UnknownName: [(["jacoby"], "jacobi"), ([{"name": "jacobi", "widow": 3}], "window"), ([{"name": "zipar", "look_ahead": True}], "zipar"),
                  ([{"name": "sjd", "coupling": "gumbel"}], "sjd"), ([{"name": "scd", "reuse": 0.5}], "scd"),
                  ([{"name": "sequential", "window": 2}], "sequential")],
    BadParameter: [([{"name": name, parameter: value}], parameter) for name, parameter, value in (
        ("jacobi", "window", 0), ("jacobi", "window", "wide"), ("jacobi", "look_ahead", "far"), ("jacobi", "proposals", "right"),
        ("zipar", "window", 1), ("scd", "coupling", "maximum"), ("sjd", "group", 7), ("sjd", "group", -2), ("sjd", "reuse", -0.5),
        ("sjd", "branches", 3),
    )],
    BadPlan: [([JACOBI, {**JACOBI, "proposals": "left"}], "variant")],
}  # fmt: skip


@pytest.mark.parametrize("error", MISTAKES)
def test_mistakes_are_named(error: type[CachemarkError], tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    for decoders, words in MISTAKES[error]:
        tables = ", ".join(json.dumps(value) if isinstance(value, str) else "{ " + ", ".join(
            f"{key} = {json.dumps(item)}" for key, item in value.items()) + " }" for value in decoders)
        file.write_text(f'name = "p"\n[[cells]]\nmodel = "tiny-llamagen"\nmethods = ["full"]\ndecoders = [{tables}]\n')
        with pytest.raises(error, match=r"plan\.toml") as raised:
            expand(load(str(file)))
        assert words in str(raised.value)
        assert raised.value.remedy
