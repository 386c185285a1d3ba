"""The paragraph about the set-up: nothing that changes the figures is missing from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import pytest
import report_sample as sample
from test_frames import other

from cachemark.core.result import Outcome
from cachemark.core.spec import OWN, Case, Sampling
from cachemark.export.methods_text import methods_text
from cachemark.report.view.report_view import build


def text(outcomes: Sequence[Outcome]) -> str:
    return methods_text(build(sample.RUN, outcomes))


def with_case(**changes: object) -> str:
    """The text of a run all of whose cases have these settings."""
    held = (sample.full(), sample.arm("linear", "1/4"))
    return text([replace(o, case=replace(o.case, **changes)) for o in held])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [f.name for f in fields(Case) if f.name not in (*OWN, "sampling")])
def test_every_shared_setting_is_said(name: str) -> None:
    assert with_case(**{name: other(getattr(sample.case(), name))}) != with_case()


@pytest.mark.parametrize("name", [f.name for f in fields(Sampling)])
def test_every_sampling_parameter_is_said_with_its_value(name: str) -> None:
    value = {"cfg_schedule": "odd"}.get(name, 3.25 if name in ("cfg_scale", "temperature", "top_p") else 325)
    said = with_case(sampling=replace(sample.case().sampling, **{name: value}))
    assert f"{name.replace('cfg', 'CFG').replace('_', ' ')} {value}" in said


@pytest.mark.parametrize(
    ("name", "value"), [("method", "h2o"), ("variant", "odd"), ("knobs", {"sinks": 7}), ("budget", "1/3"), ("codec", "int8")])
def test_every_setting_of_a_method_is_said(name: str, value: object) -> None:
    arm = sample.arm("linear", "1/4")
    plain = text([sample.full(), arm])
    assert text([sample.full(), replace(arm, case=replace(arm.case, **{name: value}))]) != plain  # type: ignore[arg-type]
    assert "linear (budget 1/4, storage codec native, sinks 1, recent 0.5, true share kept 0.25)" in plain


def test_machine_software_and_commit_are_said() -> None:
    said = text(sample.mixed())
    for part in ("python 3.12.4, torch 2.9.0, threads 8, fingerprint 5f1c0a7be2d94410", "cachemark 0.1.0", sample.RUN.code["commit"],
                 "with uncommitted changes", "plan demo", "cpu-example-8"):
        assert part in said, part
    assert said.endswith(".\n")
    assert "  " not in said
    assert "There are no results of h2o 1/4 (unsupported), rkv 1/4 (oom)." in said


def test_off_is_called_off() -> None:
    assert "top k 0 (off), top p 1.0 (off)" in with_case()
    assert "CFG interval -1 (every position is guided)" in with_case()


def test_random_weights_are_named() -> None:
    assert "Weights are random" in text(sample.random_weights())
    assert "Fidelity compares" not in text(sample.random_weights())


def test_there_is_a_paragraph_for_each_section() -> None:
    second = replace(sample.full(), case=sample.case(role="baseline", model="other"))
    assert len(text([sample.full(), second]).strip().split("\n\n")) == 2
