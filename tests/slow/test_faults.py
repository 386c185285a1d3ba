"""Real runs, ended at moments nobody chose: whatever was complete is kept, and the same command finishes the plan."""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

import pytest

from cachemark.result import Status
from cachemark.store.db import Store
from measure import examples, stages
from measure.stages import Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
KILLS = 10
BUDGETS = '"1/2", "3/4", "1"'


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A plan of many short cases, so that a kill may fall between any two steps."""
    made = stages.stage(tmp_path / "stage", '"streaming", "window", "random", "linear"')
    made.plan.write_text(made.plan.read_text().replace('"1/2"', BUDGETS))
    return made


def time_of(stage: Stage) -> tuple[float, int]:
    """Seconds that a whole run takes here, and its number of cases."""
    began = time.monotonic()
    _, err = stage.start().communicate(timeout=900)
    return time.monotonic() - began, sum(line.startswith("[") for line in err.splitlines())


def kept(stage: Stage) -> set[str]:
    """Labels of all that is stored and complete, over all runs."""
    if not stage.store.exists():
        return set()
    return {label for run in range(1, len(stage.states()) + 1) for label, o in stage.outcomes(run).items() if o.ok}


def test_a_run_killed_again_and_again_loses_nothing_and_ends(stage: Stage) -> None:
    """The moments are drawn from the time that a whole run takes here, so that they fall everywhere in it."""
    moments = random.Random(0)
    whole = stages.stage(stage.folder.parent / "measure")
    whole.plan.write_text(stage.plan.read_text())
    seconds, cases = time_of(whole)
    assert cases > 10

    before: set[str] = set()
    for _ in range(KILLS):
        process = stage.start()
        try:
            process.communicate(timeout=moments.uniform(0.1, 1.1) * seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        if stage.store.exists() and stage.store.stat().st_size:
            assert stage.whole()
            assert before <= kept(stage)
            before = kept(stage)

    result = stage.run()
    assert result.exit_code == 0, result.output
    assert f"{len(before)} skipped" in result.stdout
    assert len(stage.outcomes()) == cases
    assert all(o.ok for o in stage.outcomes().values())
    assert stage.states()[-1] == "finished"
    with Store.open(stage.store, create=False, read_only=True) as store:
        assert all(store.artifact(file) for outcome in stage.outcomes().values() for file in outcome.artifacts.values())


def test_a_hanging_method_is_ended_by_the_clock(tmp_path: Path) -> None:
    """The same as in tests/measure, where the clock is not waited for."""
    made = stages.stage(tmp_path / "stage", '"hangs", "calm-1"', examples.MODEL + examples.FAULTS, timeout=30.0)
    made.plan.write_text(made.plan.read_text().replace("timeout = 30.0", 'timeout = 30.0\ntrial = "case"'))
    made.plugin.write_text(made.plugin.read_text().split('@faulty("raises")')[0] + HANGS)
    assert made.run().exit_code == 0
    outcomes = made.outcomes()
    assert outcomes["hangs 1/2"].status is Status.TIMEOUT
    assert "No outcome within 30 s" in outcomes["hangs 1/2"].log
    assert outcomes["calm-1 1/2"].ok


HANGS = '''
@faulty("hangs")
def _():
    time.sleep(10_000)


faulty("calm-1")(lambda: None)
'''


def test_two_runs_into_one_store_at_once(stage: Stage) -> None:
    """Both finish; each finds in the store what the other has put there or measures it itself."""
    processes = [stage.start() for _ in range(2)]
    for process in processes:
        out, err = process.communicate(timeout=900)
        assert process.returncode == 0, err
        assert "0 not ok" in out
    assert stage.whole()
    assert sorted(stage.states()) == ["finished", "finished"]
    one, two = stage.outcomes(1), stage.outcomes(2)
    assert {label: o.output_hash for label, o in one.items()} == {label: o.output_hash for label, o in two.items()}


def test_the_embedded_model_runs_as_a_plan_says(tmp_path: Path) -> None:
    """The smallest real thing: one method on the model that comes with the package."""
    plan = tmp_path / "small.toml"
    plan.write_text('name = "small"\n[timing]\nwarmup = 1\nrepeats = 3\n[fidelity]\nsamples = 2\n'
                    '[[cells]]\nmodel = "tiny-llamagen"\nmethods = ["window"]\nbatch = 2\n')  # fmt: skip
    store = tmp_path / "small.sqlite"
    result = stages.call("run", plan, "--store", store, "--threads", 1, "--report", tmp_path / "small.html")
    assert result.exit_code == 0, result.output
    with Store.open(store, create=False, read_only=True) as held:
        outcomes = {o.case.label: o for o in held.outcomes(1)}
    assert list(outcomes) == ["full", "full (floor)", "full (numerics)", "window 1/2"]
    assert all(len(o.samples["legend"]) == 2 for o in outcomes.values())
    assert outcomes["window 1/2"].samples["kv_allocated"][0] < 0.6 * outcomes["full"].samples["kv_allocated"][0]
    assert outcomes["full"].samples["psnr"] == [60.0, 60.0]
