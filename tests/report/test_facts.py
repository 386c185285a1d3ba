"""Values of an outcome beside its samples: types, keys of other versions, and what a new one costs."""

from __future__ import annotations

import json
from dataclasses import make_dataclass, replace
from typing import Any

import pytest
import report_sample as sample

from cachemark.analysis import columns
from cachemark.analysis.report_view import build
from cachemark.core.facts import Facts, LiveBytes, Reused
from cachemark.core.stored_table import BadField, stored
from cachemark.export.frames import frame
from cachemark.report.page.render import render

STORED: dict[str, Any] = {
    "kernel": "sdpa", "footnotes": [], "live_bytes": {"tokens": [1], "live": [8.5], "later": 1}, "full_beside": [1, 2.5],
    "slope": {"slope": 1e-9, "intercept": 0.1, "r2": 1, "bytes_per_s": None, "lines": 3}, "intervals": {"fid": [None, 2.0]},
    "reused": {"metrics": ["fid"], "from": "cafe"}, "limit": {"least": 1.0}, "of_a_later_version": {"a": [1]},
}


def test_keys_of_other_versions_are_kept_and_the_json_is_the_same() -> None:
    facts = Facts.from_json(json.loads(json.dumps(STORED)))
    assert facts.to_json() == STORED
    assert (facts.kv_by_step, facts.reused) == (LiveBytes([1], [8.5], unknown={"later": 1}), Reused(["fid"], "cafe"))
    assert (facts.limit, facts.unknown.keys()) == (None, {"limit", "of_a_later_version"}), "a limit of another version is no limit"
    assert Facts.from_json({"kernel": None}) == Facts()


@pytest.mark.parametrize(("key", "value", "problem"), [
    ("kernel", 3, "kernel is 3, not a text"), ("other_load", "high", "other_load is 'high', not a number"),
    ("other_load", True, "not a number"), ("other_load", float("nan"), "not a number"), ("threads", 1.5, "not an integer"),
    ("full_beside", {"a": 1}, "not a list"), ("full_beside", [1, "a"], "full_beside.1 is 'a'"), ("pair", 5, "pair is 5, not a table"),
    ("slope", {**STORED["slope"], "r2": []}, "slope.r2 is [], not a number"), ("intervals", {"fid": [[]]}, "intervals.fid.0"),
])
def test_a_wrong_type_is_named_with_its_key(key: str, value: Any, problem: str) -> None:
    with pytest.raises(BadField) as raised:
        Facts.from_json({key: value})
    assert problem in str(raised.value)


def test_a_report_column_of_a_new_value_is_an_edit_of_two_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field in ``core/facts.py``, and the line that fills it where it is measured."""
    column = stored("tokens that were watched", "tokens", column="Watched tokens")
    wider = make_dataclass("wider", [("watched", int | None, column)], bases=(Facts,), frozen=True)
    monkeypatch.setattr(columns, "Facts", wider)
    outcomes = [replace(o, facts=wider.from_json({**o.facts.to_json(), "watched": 7})) for o in sample.outcomes()]
    page = render(build(sample.RUN, outcomes))
    assert 'data-k="watched"' in page
    assert "7 tokens" in page
    assert "watched" in frame(outcomes).metric.tolist()
