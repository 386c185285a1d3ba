"""Definitions of plug-in metrics: a case carries them, and a reader needs nothing else."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cachemark.analysis.report_row import rows_of
from cachemark.core import units
from cachemark.core.errors import UnknownName
from cachemark.core.outside_metrics import KEY, fault_of, full_name, know
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Case, Sampling

STATED = {"title": "Contrast", "unit": "", "better": "lower", "kind": "quality", "per": "image",
          "meaning": "How grey an image is.", "within": [0.0, None],
          "deterministic": True, "code": "0123456789ab"}  # fmt: skip
NAME = full_name("contrast", STATED)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """As in a process that has met none."""
    known_before = dict(units.OUTSIDE)
    units.OUTSIDE.clear()
    yield
    units.OUTSIDE.clear()
    units.OUTSIDE.update(known_before)


def case(evaluation: dict[str, Any]) -> Case:
    return Case("m", "random", (4, 4), "10 classes", Sampling(), "window", evaluation=evaluation)


def test_a_reader_knows_the_metric_from_the_case() -> None:
    kept = json.dumps(Outcome(case({KEY: {NAME: STATED}}), Status.OK, {NAME: [1.0, 2.0, 4.0]}).to_json())
    units.OUTSIDE.clear()
    with pytest.raises(UnknownName):
        units.metric(NAME)
    outcome = Outcome.from_json(json.loads(kept))
    known = units.metric(NAME)
    assert (known.better, known.kind, known.within, known.deterministic) == ("lower", "quality", (0.0, float("inf")), True)
    assert known.loss(then=1.0, now=2.0) == 1.0
    full = replace(outcome, case=replace(outcome.case, method="full", role="baseline"), samples={NAME: [1.0, 1.0, 1.0]})
    (row,) = rows_of([outcome], full)
    assert row.quality[NAME].value == pytest.approx(7 / 3)
    assert row.to_full[NAME].value == pytest.approx(4 / 3)


def test_an_edited_metric_has_another_name() -> None:
    for changes in ({"code": "ba9876543210"}, {"better": "higher"}, {"within": [0.0, 1.0]}, {"meaning": "Another."}):
        assert full_name("contrast", {**STATED, **changes}) != NAME


def test_a_definition_that_does_not_match_its_name_is_ignored() -> None:
    know({KEY: {NAME: {**STATED, "better": "higher"}}})
    assert not units.OUTSIDE


@pytest.mark.parametrize(("name", "changes", "fault"), [
    ("Contrast", {}, "small letters"), ("color_consistency", {}, "of cachemark itself"), ("fid_mine", {}, "of cachemark itself"),
    ("contrast", {"kind": "speed"}, "kind"), ("contrast", {"better": "more"}, "better"),
    ("contrast", {"better": ""}, "has better = '', not 'lower' or 'higher'; where neither is better, measure the distance"),
    ("contrast", {"title": "<b>"}, "title"),
    ("contrast", {"title": ""}, "title"), ("contrast", {"meaning": ""}, "docstring"), ("contrast", {"within": [1, 0]}, "within"),
    ("contrast", {"within": [0, float("nan")]}, "within"), ("contrast", {"within": [-1.7e308, 1.7e308]}, "within"),
])  # fmt: skip
def test_what_is_no_definition_is_told(name: str, changes: dict[str, Any], fault: str) -> None:
    assert fault_of("contrast", STATED) == ""
    assert fault in fault_of(name, {**STATED, **changes})


def test_ends_that_are_far_apart_are_a_range_as_long_as_differences_are_finite() -> None:
    wide = {**STATED, "within": [-4e307, 4e307]}
    name = full_name("contrast", wide)
    know({KEY: {name: wide}})
    assert all(map(math.isfinite, units.OUTSIDE[name].apart))


def test_seconds_of_an_image_are_no_wall_time() -> None:
    """Else pairs would be judged by medians over processes, where a value of images has one for each seed."""
    slow = {**STATED, "unit": "s"}
    name = full_name("contrast", slow)
    know({KEY: {name: slow}})
    assert not units.metric(name).timed
    assert {of.name for of in units.METRICS.values() if of.timed} >= {"latency", "capture_seconds", "throughput"}
