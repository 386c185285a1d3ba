"""Import of files of benchmark programs: values, names, times, and what is refused."""

import json
import math
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from cachemark.core.errors import BadResults, NothingMeasured
from cachemark.core.formatting import duration
from cachemark.gate import baselines
from cachemark.store.db import Store
from cachemark.store.ingest import ingest
from cachemark.workflows.check import judge, nights_before
from cachemark.workflows.db import ingest_files

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
    folder = tmp_path_factory.mktemp("bench")
    (folder / "test_it.py").write_text(BENCH)
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # no worker of the run that we are in
    subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--benchmark-json", "out.json", "test_it.py"],
                   cwd=folder, check=True, capture_output=True, env=alone)
    return (folder / "out.json").read_text()


@pytest.fixture
def written(text: str) -> dict[str, Any]:
    return dict(json.loads(text))


def test_a_file_becomes_a_run_with_every_raw_value_and_what_is_none_is_refused(written: dict[str, Any], store: Store) -> None:
    ingested = ingest(store, json.dumps(written), "out.json")
    assert (ingested.cases, ingested.skipped, ingested.repeated) == (2, (), False)
    run, (first, second) = store.run(ingested.run), store.outcomes(ingested.run)
    assert (run.plan, run.state) == ("pytest-benchmark", "finished")
    assert run.environment.facts["python"] == written["machine_info"]["python_version"]
    assert (list(first.samples["latency"]), len(first.raw("latency"))) == (written["benchmarks"][0]["stats"]["data"], 4)
    assert (first.case.model, first.case.conditions, first.case.parameters) == ("pytest-benchmark", "sums", {})
    assert ingested.left_out == ("parameters n (the names have their ids)",)
    assert (second.case.method, first.facts.extra_info) == ("test_it.py::test_sum[2]", {"note": "<b>"})
    del written["benchmarks"][0]["stats"]["data"]
    ingested = ingest(store, json.dumps(written), "out.json")
    assert (ingested.cases, len(ingested.skipped)) == (1, 1)
    del written["benchmarks"][1]["stats"]["data"]
    with pytest.raises(NothingMeasured, match="no raw values"):
        ingest(store, json.dumps(written), "out.json")
    assert len(store.runs()) == 2, "a file without values adds no run"
    deep = '{"machine_info": {}, "benchmarks": [], "a": ' + '{"a": ' * 100 + "1" + "}" * 101
    for other in ("", "[]", "{}", deep, '{"a": {}}', '{"a": {"latency": 3}}', '{"benchmarks": []}',
                  '{"benchmarks": {}, "machine_info": {}}', "[" * 100_000, "nul\x00"):
        with pytest.raises(BadResults, match=r"out\.json"):
            ingest(store, other, "out.json")


def test_the_same_file_twice_is_one_run_and_older_releases_name_their_processor(written: dict[str, Any], store: Store) -> None:
    first, again = (ingest(store, json.dumps(written), "out.json") for _ in range(2))
    assert (again.repeated, again.run) == (True, first.run)
    for item in written["benchmarks"]:
        item["stats"]["data"] = [2 * value for value in item["stats"]["data"]][:3]
        item["stats"]["rounds"] = 3
    second = ingest(store, json.dumps(written), "later.json")
    assert second.run != first.run
    assert [o.case.key for o in store.outcomes(first.run)] == [o.case.key for o in store.outcomes(second.run)]
    for machine in ({"cpu": {"brand": "Example CPU", "count": 8}}, {"cpu": {"brand_raw": "Example CPU", "count": 8}},
                    {"processor": "Example CPU, 8 threads", "cpu": None}):
        run = ingest(store, json.dumps({**written, "machine_info": machine, "version": "3.2.3"}), "a.json").run
        assert store.run(run).environment.machine_class == "example-cpu-8-threads"


@pytest.mark.parametrize(("error", "state"), [(KeyboardInterrupt(), "interrupted"), (OSError(28, "No space left on device"), "failed")])
def test_an_interrupted_import_is_repeated(error: Any, state: str, written: Any, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Store, "save", Mock(side_effect=error))
        with pytest.raises(type(error)):
            ingest(store, json.dumps(written), "out.json")
    assert [run.state for run in store.runs()] == [state]
    again = ingest(store, json.dumps(written), "out.json")
    assert (again.repeated, again.cases) == (False, len(written["benchmarks"]))
    assert len(store.outcomes(again.run)) == again.cases


@pytest.mark.parametrize("broken", [
    {"fullname": None, "stats": None}, {"stats": {"data": [1.0]}}, 3, {"fullname": "a", "stats": {"data": [1.0]}, "params": 3},
    *({"fullname": "a", "stats": {"data": data}} for data in (["x"], [], [1e999], [10**400], [1e308, 1e308], [0.0, 1.0], [True]))])
def test_a_broken_benchmark_is_named_by_its_place(broken: Any, written: dict[str, Any], store: Store) -> None:
    spoilt = {**written, "benchmarks": [written["benchmarks"][0], broken]}
    with pytest.raises(BadResults, match="benchmark 2"):
        ingest(store, json.dumps(spoilt), "out.json")
    assert store.runs() == []


def test_odd_facts_of_a_machine_are_no_error(written: dict[str, Any], store: Store) -> None:
    machine = {**written["machine_info"], "cpu": {"brand_raw": "half \ud800"}, "python_version": math.nan}
    ingest(store, json.dumps({**written, "machine_info": machine}), "out.json")
    assert "python" not in store.run().environment.facts
    assert len(store.outcomes(1)) == 2


@pytest.mark.parametrize(("factor", "verdict", "code"), [(1.0, "equivalent", 0), (1.3, "regressed", 1), (0.7, "improved", 0)])
def test_a_micro_benchmark_is_judged(factor: float, verdict: str, code: int, written: dict[str, Any], store: Store, tmp_path: Path) -> None:
    """It has no full cache to be compared with, so its median is compared directly, with the fixed threshold."""
    ingest(store, json.dumps(written), "a.json")
    accepted = baselines.save(store, None, tmp_path, reason="the tests")
    for item in written["benchmarks"]:
        item["stats"]["data"] = [factor * value for value in item["stats"]["data"]]
    ingest(store, json.dumps(written | {"datetime": "2126-11-27T00:00:00"}), "b.json")
    comparison = judge(store, store.run(), accepted).comparison
    assert ({row.verdict for row in comparison.rows}, comparison.exit_code) == ({verdict}, code)
    assert all(row.absolute for row in comparison.rows)


def test_what_changes_every_night_ends_no_comparison(written: dict[str, Any], store: Store, tmp_path: Path) -> None:
    """Addresses, temporary folders, times and UUIDs in names and parameters, kernels, patch releases, and the name of the host."""
    def night(number: int) -> dict[str, Any]:
        benches = [{**written["benchmarks"][0], "params": {"codec": f"UNSERIALIZABLE[<Codec object at 0x7f0{number}>]", "now": number},
                    "fullname": name, "stats": {**written["benchmarks"][0]["stats"], "data": [0.01, 0.0101]}}
                   for name in ("a.py::test_id[zlib]", f"a.py::test_repr[<Codec object at 0x7f{number}c>]",
                                f"a.py::test_file[/tmp/pytest-of-root{number}/pytest-{number}/x]",
                                f"a.py::test_now[2026-01-0{number} 03:00:00.{number}]",
                                f"a.py::test_uuid[{number}b0c4d2a-5f6e-4a3b-8c9d-0123456789ab]")]
        changed = {"release": f"6.8.0-10{number}", "python_version": f"3.12.{number}", "node": f"runner-{number}"}
        machine = {**written["machine_info"], **changed}
        return {**written, "machine_info": machine, "benchmarks": benches, "datetime": f"2026-01-0{number}T03:00:00"}

    first = ingest(store, json.dumps(night(1)), "a.json")
    accepted = baselines.save(store, None, tmp_path, reason="the tests")
    ingest(store, json.dumps(night(2)), "b.json")
    comparison = judge(store, store.run(), accepted).comparison
    assert ({row.verdict for row in comparison.rows}, len(comparison.rows), comparison.exit_code) == ({"equivalent"}, 5, 0)
    assert [line.split(" ")[0] for line in first.left_out] == ["parameters", "what", "what", "what", "what"]
    other = night(3)
    other["machine_info"]["python_version"] = "3.13.0"
    ingest(store, json.dumps(other), "c.json")
    assert judge(store, store.run(), accepted).exit_code != 0, "another minor release"


def test_imports_are_in_the_order_of_their_measurements(written: dict[str, Any], store: Store) -> None:
    def imported(when: str) -> int:
        return ingest(store, json.dumps({**written, "datetime": when}), "a.json").run

    march, january, february = map(imported, ("2026-03-01T04:00:00+01:00", "2026-01-01T03:00:00", "2026-02-01T03:00:00+00:00"))
    assert [run.id for run in store.runs()] == [march, february, january]
    assert (store.run().id, store.run().started) == (march, "2026-03-01T03:00:00.000000+00:00")
    assert [run.id for run in nights_before(store, store.run(february))] == [february, january]
    assert 0 < duration(store.run().started, store.run().finished) < 60  # type: ignore[operator]
    impossible = imported("9999-12-31T23:59:59")
    assert datetime.fromisoformat(store.run(impossible).started) <= datetime.now(UTC), "a date after all benchmarks is none"


def of_program(name: str) -> Any:
    """A small file that the program wrote; Bencher's is the example of its page."""
    return json.loads(Path(__file__).with_name("data").joinpath(f"{name}.json").read_text())


GOOGLE, CODSPEED = of_program("google-benchmark"), of_program("codspeed")
GOOGLE_ROW = GOOGLE["benchmarks"][0]


@pytest.mark.parametrize(("name", "times", "skipped"), [
    ("google-benchmark", {"BM_f/8": [654e-6, 656e-6], "BM_g": [3e-3]}, ("BM_bad: no file",)),
    ("hyperfine", {"sleep 0.01": [0.0112, 0.0138], "make": [2.5]}, ()), ("codspeed", {"test_b.py::test_sum[1]": [105e-9]}, ()),
    ("bencher", {"parse": [88e-9], "make": [87.0]}, ("parse: measure throughput is not a time",))])
def test_other_programs_are_read(name: str, times: dict[str, list[float]], skipped: tuple[str, ...], tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"results_179589427933{number}.json").write_text(json.dumps(of_program(name)) + " " * number)
    store = tmp_path / "s.sqlite"
    both = ingest_files(sorted(tmp_path.glob("results_*")), store)
    assert [(done.run, done.cases, done.skipped) for _, done in both] == [(1, len(times), skipped), (2, len(times), skipped)]
    with Store.open(store) as opened:
        run, outcomes = opened.run(), opened.outcomes(2)
        assert (run.plan, run.started[:10]) == (name, "2026-11-28")
        assert {o.case.method: list(o.raw("latency")) for o in outcomes} == {key: pytest.approx(value) for key, value in times.items()}
        assert [o.case.key for o in outcomes] == [o.case.key for o in opened.outcomes(1)]
        comparison = judge(opened, run, baselines.save(opened, 1, tmp_path / "accepted", reason="the tests")).comparison
        assert comparison.exit_code == 0


@pytest.mark.parametrize(("content", "words"), [
    ({**GOOGLE, "benchmarks": [GOOGLE_ROW, GOOGLE_ROW]}, "several benchmarks are called 'BM_f/8'"),
    ({**GOOGLE, "benchmarks": [{**GOOGLE_ROW, "time_unit": "weeks"}]}, "weeks"), ({"results": [{"command": "x"}]}, "'median' is missing"),
    ({**CODSPEED, "benchmarks": [{"name": "a", "stats": {}}]}, "benchmark 1: 'median_ns' is missing"),
    ({"a": {"latency": {"value": "fast"}}}, "bencher"), ({"a": {"latency": {"value": -1.0}}}, "not a list of seconds")])
def test_broken_files_of_other_programs_are_named(content: dict[str, Any], words: str, store: Store) -> None:
    with pytest.raises(BadResults, match=words):
        ingest(store, json.dumps(content), "out.json")
