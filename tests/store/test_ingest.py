"""Import of pytest-benchmark files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from cachemark.core.errors import BadResults, NothingMeasured
from cachemark.gate import baselines
from cachemark.store.db import Store
from cachemark.store.ingest import ingest
from cachemark.workflows.check import judge

BENCH = """
import pytest

@pytest.mark.parametrize("n", [1, 2])
def test_sum(benchmark, n):
    benchmark.group = "sums"
    benchmark.extra_info["note"] = "<b>"
    benchmark.pedantic(sum, args=([n] * 10,), rounds=4)
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a file that pytest-benchmark wrote."""
    folder = tmp_path_factory.mktemp("bench")
    (folder / "test_it.py").write_text(BENCH)
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # no worker of the run that we are in
    subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--benchmark-json", "out.json", "test_it.py"],
                   cwd=folder, check=True, capture_output=True, env=alone)
    return (folder / "out.json").read_text()


@pytest.fixture
def written(text: str) -> dict[str, Any]:
    return dict(json.loads(text))


def test_a_file_becomes_a_run_with_every_raw_value(written: dict[str, Any], store: Store) -> None:
    ingested = ingest(store, json.dumps(written), "out.json")
    assert (ingested.cases, ingested.skipped, ingested.repeated) == (2, (), False)
    run, (first, second) = store.run(ingested.run), store.outcomes(ingested.run)
    assert (run.plan, run.state) == ("pytest-benchmark", "finished")
    assert run.environment.facts["python"] == written["machine_info"]["python_version"]
    assert list(first.samples["latency"]) == written["benchmarks"][0]["stats"]["data"]
    assert len(first.samples["latency"]) == 4
    assert (first.case.model, first.case.conditions, first.case.parameters) == ("pytest-benchmark", "sums", {"n": 1})
    assert second.case.method == "test_it.py::test_sum[2]"
    assert first.facts.extra_info == {"note": "<b>"}
    del written["benchmarks"][0]["stats"]["data"]
    ingested = ingest(store, json.dumps(written), "out.json")
    assert (ingested.cases, len(ingested.skipped)) == (1, 1)
    del written["benchmarks"][1]["stats"]["data"]
    with pytest.raises(NothingMeasured, match="no raw values"):
        ingest(store, json.dumps(written), "out.json")
    assert len(store.runs()) == 2, "a file without values adds no run"


def test_the_same_file_twice_is_one_run_and_another_day_is_the_same_case(written: dict[str, Any], store: Store) -> None:
    first, again = (ingest(store, json.dumps(written), "out.json") for _ in range(2))
    assert again.repeated
    assert again.run == first.run
    for item in written["benchmarks"]:
        item["stats"]["data"] = [2 * value for value in item["stats"]["data"]][:3]
        item["stats"]["rounds"] = 3
    second = ingest(store, json.dumps(written), "later.json")
    assert second.run != first.run
    assert [o.case.key for o in store.outcomes(first.run)] == [o.case.key for o in store.outcomes(second.run)]


@pytest.mark.parametrize(("error", "state"), [(KeyboardInterrupt(), "interrupted"), (OSError(28, "No space left on device"), "failed")])
def test_an_interrupted_import_is_repeated(
    error: BaseException, state: str, written: dict[str, Any], store: Store, monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Store, "save", Mock(side_effect=error))
        with pytest.raises(type(error)):
            ingest(store, json.dumps(written), "out.json")
    assert [run.state for run in store.runs()] == [state]
    again = ingest(store, json.dumps(written), "out.json")
    assert (again.repeated, again.cases) == (False, len(written["benchmarks"]))
    assert len(store.outcomes(again.run)) == again.cases


OTHERS = ("", "[]", "{}", '{"benchmarks": []}', '{"benchmarks": {}, "machine_info": {}}', "[" * 100_000, "nul\x00")


@pytest.mark.parametrize("other", OTHERS, ids=lambda t: ascii(t[:12]))
def test_what_is_no_such_file_is_refused(other: str, store: Store) -> None:
    with pytest.raises(BadResults, match=r"out\.json"):
        ingest(store, other, "out.json")


@pytest.mark.parametrize("broken", [{"fullname": None, "stats": None}, {"stats": {"data": [1.0]}}, 3,
                                    {"fullname": "a", "stats": {"data": ["x"]}}, {"fullname": "a", "stats": {"data": []}},
                                    {"fullname": "a", "stats": {"data": [1e999]}}, {"fullname": "a", "stats": {"data": [10**400]}},
                                    {"fullname": "a", "stats": {"data": [1.0]}, "params": 3}])
def test_a_broken_benchmark_is_named_by_its_place(broken: Any, written: dict[str, Any], store: Store) -> None:
    spoilt = {**written, "benchmarks": [written["benchmarks"][0], broken]}
    with pytest.raises(BadResults, match="benchmark 2"):
        ingest(store, json.dumps(spoilt), "out.json")
    assert store.runs() == []


@pytest.mark.parametrize(("factor", "verdict", "code"), [(1.0, "equivalent", 0), (1.3, "regressed", 1), (0.7, "improved", 0)])
def test_a_micro_benchmark_is_judged_by_its_own_seconds(
    factor: float, verdict: str, code: int, written: dict[str, Any], store: Store, tmp_path: Path,
) -> None:
    """It has no full cache to be compared with, so its median is compared directly, with the fixed threshold."""
    ingest(store, json.dumps(written), "a.json")
    accepted = baselines.save(store, None, tmp_path, reason="the tests")
    for item in written["benchmarks"]:
        item["stats"]["data"] = [factor * value for value in item["stats"]["data"]]
    ingest(store, json.dumps(written | {"datetime": "2026-11-27T00:00:00"}), "b.json")
    comparison = judge(store, store.run(), accepted).comparison
    assert comparison is not None
    assert ({row.verdict for row in comparison.rows}, comparison.exit_code) == ({verdict}, code)
    assert all(row.absolute for row in comparison.rows)
