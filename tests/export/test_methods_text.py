"""The paragraph about the set-up: nothing that changes the figures is missing from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import pytest
import report_sample as sample
from test_frames import other

from cachemark.analysis.report_view import build
from cachemark.core.result import Outcome
from cachemark.core.spec import OWN, Case, Sampling
from cachemark.export.methods_text import methods_text


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


def test_batches_of_what_is_timed_compared_and_evaluated_are_all_named() -> None:
    quality = {"preset": "scene", "seeds": "s2k", "samples": 2000, "batch": 50}
    said = with_case(evaluation={"batch": 8, "quality": quality})
    assert ("in batches of 16 where they were timed, of 8 where they were compared with the full cache's and of 50 where they were "
            "evaluated, computed") in said
    assert "Quality was evaluated with quality preset scene" in said
    lacking = with_case(evaluation={"batch": 8, "quality": {**quality, "missing": "needs weights"}})
    assert "in batches of 16 where they were timed and of 8 where they were compared with the full cache's, computed" in lacking
    assert "in batches of 16, computed" in with_case()
    assert "in batches as large as fit, searched from 16, computed" in with_case(evaluation={"max_batch": {"limit": 0}})


@pytest.mark.parametrize(("batch", "half"), [(8, 4), (1, 2)])
def test_the_numerics_row_has_half_the_batch_that_is_compared_and_its_own_number_of_images(batch: int, half: int) -> None:
    evaluation = {"batch": batch, "reference_samples": 24}
    held = [sample.full(), sample.arm("linear", "1/4"), replace(sample.numerics(), case=sample.case(role="numerics"))]
    said = text([replace(o, case=replace(o.case, evaluation=evaluation)) for o in held])
    assert f"the full cache at the same seeds in batches of {half} (numerics: 24 images, float32)" in said


def test_passes_are_those_of_a_family_that_has_them() -> None:
    """Where 0 is the model's own number of them, other families have none."""
    assert "steps" not in with_case()
    masked = [replace(o, facts={**o.facts, "paradigm": "masked"}) for o in (sample.full(), sample.arm("linear", "1/4"))]
    assert "steps 0 (the model's own number), diffusion steps 0 (the model's own number)" in text(masked)


def test_a_speed_up_beside_the_full_cache_is_said_to_be_timed_in_turns() -> None:
    arm = sample.arm("linear", "1/4")
    beside = replace(arm, facts={**arm.facts, "full_beside": [2.0] * 5})
    assert "the median of the full cache, timed in turns with the method, over that of the method" in text([sample.full(), beside])
    assert "the median of the full cache over that of the method" in text([sample.full(), arm])


def test_the_batches_that_a_decoder_is_timed_in_are_counted() -> None:
    arm = sample.arm("linear", "1/4")
    case = replace(arm.case, decoder={"name": "jacobi", "window": 8})
    more = replace(arm, case=case, samples={**arm.samples, "latency": [1.0] * 16})
    said = text([sample.full(), arm, more])
    assert "in 5 generations of a batch, under a decoder in up to 16, each of another batch as far as there are, after 2" in said
    assert "under a decoder" not in text([sample.full(), arm])
