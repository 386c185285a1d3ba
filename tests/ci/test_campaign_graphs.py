"""Every stage of a campaign with the CPU graph emulator in place of CUDA graphs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cachemark.cache.engines import EAGER, Graph
from cachemark.kit.capture import CpuGraphs
from cachemark.models.protocol import ModelEntry
from cachemark.models.registry import MODELS
from cachemark.plans import schema as plans
from cachemark.plans.expand import Planned, expand
from cachemark.plugins import loading as plugins
from cachemark.trial.child import bench as benches
from cachemark.trial.child.bench import Bench
from campaign import kernels, works
from campaign.folder import Folder
from campaign.rehearsal import SMALL, rehearsed
from campaign.works import HERE, Task, blocks
from support import examples
from support.measuring import run_case


@pytest.fixture(autouse=True)
def _taped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph engine on a CPU."""
    monkeypatch.setattr("cachemark.plans.expand.refused", lambda *_: "")
    monkeypatch.setattr(benches, "engine", lambda name, device: Graph(CpuGraphs()) if name == "graph" else EAGER)


@pytest.fixture
def models(tmp_path: Path) -> dict[str, str]:
    """Small models by family with random weights, so that no image is scored.

    The next-token model has 16 tokens, since the emulator is slow.
    """
    (tmp_path / "dot.py").write_text(examples.MODEL)
    plugins.load(tmp_path / "dot.py")
    for family in ("next-scale", "masked"):
        MODELS.add(f"small-{family}")(untrained(MODELS.get(SMALL[family]), f"small-{family}"))
    return {"next-token": "dot", "next-scale": "small-next-scale", "masked": "small-masked"}


def untrained(entry: ModelEntry, name: str) -> ModelEntry:
    """The model under another name, its weights called random."""
    weights = "random:0/random:0"
    return replace(entry, name=name, identity=lambda request: weights, load=lambda request: replace(entry.load(request), weights=weights))


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["first side", "every"])
def test_cases_of_a_stage_are_measured(every: bool, stage: int, models: dict[str, str]) -> None:
    """Stages 4 and 5 repeat the cases of the first stage at other budgets.

    `make test` measures the first candidate of the graph engine.
    """
    plan = blocks(rehearsed(plans.load(str(HERE / "campaign.toml")), engine="graph", models=models), stage)
    planned = [p for p in expand(plan.model_copy(update={"quality": None}), "cpu") if p.case.role in ("baseline", "candidate")]
    cases = list({(p.case.method, p.case.engine): p for p in planned}.values())  # budgets differ by a number
    assert len(cases) > 1
    if not every:
        cases = [next(p for p in cases if (p.case.engine, p.case.role) == ("graph", "candidate"))]
    bench = Bench.load(cases[0])
    for planned in cases:
        outcome, _ = run_case(planned, bench if planned.request == bench.request else Bench.load(planned))
        assert outcome.ok, (planned.case.label, outcome.log)
        if planned.case.engine == "graph":
            assert outcome.facts["graph"]["missed"] == 0


@pytest.mark.parametrize("model", ["llamagen-xl", *(pytest.param(name, marks=pytest.mark.slow) for name in ("var-d30", "mar-l"))])
def test_windows_of_a_generation_are_traced(
    model: str, models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(works, "rehearsed", partial(rehearsed, models=models))
    task = Task(Folder.open(tmp_path), tmp_path, 60, rehearse=True, engine="graph")
    observed: list[Planned] = []
    window = kernels.window
    monkeypatch.setattr(kernels, "window", lambda planned, *others: observed.append(planned) or window(planned, *others))
    for role in ("baseline", "candidate", "candidate"):  # the last is there already
        assert works.profiled({model: role})(task) == 0
    result: dict[str, Any] = task.folder.read(works.WINDOWS)
    assert len(result) == len(observed) == 2
    for trace in result.values():
        assert trace["case"].endswith("graph")
        assert 0 < trace["wall_us"] < trace["batch_us"]
        assert trace["busy_us"] > 0
        assert trace["rows"][0]["us"] >= trace["rows"][-1]["us"]


def test_tests_are_noted_as_they_end_and_not_run_again(
    pytester_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # which would take longer than the tests

    def run(seconds: float, code: str = "c0de") -> works.TestNotes:
        notes = works.TestNotes(Task(Folder.open(tmp_path / "out"), tmp_path, seconds), code)
        pytest.main(["-q", "-p", "no:cacheprovider", f"--rootdir={pytester_file.parent}", str(pytester_file)], plugins=[notes])
        return notes

    first = run(60)
    assert (dict(first.ends), first.stopped) == ({"passed": 4, "failed": 1}, False)
    assert [line.partition('"test": "')[2].partition('"')[0].partition("::")[2] for line in first.file.read_text().splitlines()][:2] == [
        "test_a[0]", "test_b"], "one of every kind first"
    assert dict(run(60).ends) == {"failed": 1}
    assert dict(run(60, "other").ends) == {"passed": 4, "failed": 1}
    late = run(-1, "late")
    assert (sum(late.ends.values()), late.stopped) == (1, True)


@pytest.fixture
def pytester_file(tmp_path: Path) -> Path:
    file = tmp_path / "inner" / "test_inner.py"
    file.parent.mkdir()
    file.write_text("import pytest\n\n@pytest.mark.parametrize('n', range(4))\ndef test_a(n): pass\n\ndef test_b(): assert False, 'why'\n")
    (file.parent / "pytest.ini").write_text("[pytest]\n")
    return file
