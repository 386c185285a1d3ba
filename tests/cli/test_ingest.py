"""``cachemark ingest``: output and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cachemark.core.errors import BadPlan
from cachemark.workflows.results import open_run
from support.stages import call

from .test_commands import good

FILE = {"machine_info": {"cpu": {"brand_raw": "Example CPU", "count": 8}}, "version": "5.2.3",
        "commit_info": {"id": "3f9a61c0", "dirty": False},
        "benchmarks": [{"fullname": "a.py::test_a", "stats": {"data": [0.1, 0.2]}}, {"fullname": "a.py::test_b", "stats": {}}]}


def test_a_file_is_read_into_a_new_store_once() -> None:
    Path("micro.json").write_text(json.dumps(FILE))
    result = call("ingest", "pytest-benchmark", "micro.json", "--store", "s.sqlite")
    assert good(result) == "micro.json is run 1, 1 case.\n"
    assert result.stderr.startswith("Skipped: a.py::test_b")
    assert "was imported before as run 1" in good(call("ingest", "pytest-benchmark", "micro.json", "--store", "s.sqlite"))
    assert "a.py::test_a" in good(call("show", "--store", "s.sqlite"))
    good(call("report", "page.html", "--store", "s.sqlite"))


def test_what_was_ingested_has_no_plan() -> None:
    Path("micro.json").write_text(json.dumps(FILE))
    good(call("ingest", "pytest-benchmark", "micro.json", "--store", "s.sqlite"))
    with pytest.raises(BadPlan, match=r"Run 1 \(pytest-benchmark\) is stored without a plan.*cachemark.plan"):
        _ = open_run("s.sqlite").plan


def test_another_file_is_refused_with_the_remedy() -> None:
    Path("other.json").write_text("{}")
    result = call("ingest", "pytest-benchmark", "other.json", "--store", "s.sqlite")
    assert result.exit_code == 2
    assert "pytest --benchmark-json" in result.stderr
    assert "bad-results" in result.stderr
    assert call("ingest", "pytest-benchmark", "missing.json").exit_code == 2
