"""The largest batch under a real limit, found by real trials that run out of memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cachemark.core.errors import Infrastructure
from cachemark.core.result import Outcome, Status
from cachemark.plans import schema as plans
from cachemark.plans.expand import expand
from cachemark.plugins import loading as plugins
from cachemark.store.db import Store
from cachemark.trial.executors.local import Executor, Local
from cachemark.trial.executors.ray import Ray, cluster
from cachemark.workflows import max_batch
from cachemark.workflows.run import PlanRunner
from cachemark.workflows.session import Machine
from support import examples, stages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
MOST, CAP = 16, 300 << 20

GORGES = '''

@cm.method("gorges")
@dataclass
class Gorges(Calm):
    """A window that takes 16 MiB for every row."""

    name: ClassVar[str] = "gorges"

    def begin(self, layout, sites, memory):
        memory.zeros("more", (layout.rows, 4 << 20), torch.float32)
        super().begin(layout, sites, memory)
'''


def test_a_cap_imitates_a_smaller_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guidance makes two rows of an image, so the greedy method takes 32 MiB for each, and the full cache next to nothing."""
    stage = stages.stage(tmp_path / "stage", '"gorges"', examples.MODEL + GORGES)
    stage.plan.write_text(stage.plan.read_text().replace(str(stage.weights), ""))
    with stages.forgetting(), Store.open(stage.store) as store:
        plugins.load(stage.plugin)
        monkeypatch.setattr(max_batch, "MOST", MOST)
        machine, files = Machine("cpu", 1, memory_cap=CAP), (str(stage.plugin),)
        plan = plans.load(str(stage.plan))
        cases = [max_batch.searched(planned, CAP) for planned in expand(plan)]
        summary, again = (PlanRunner(plan, store, Local(), machine, files, cases=cases).measure() for _ in range(2))
        result = {o.case.method: o for o in summary.ran}
    full, greedy = result["full"], result["gorges"]
    assert full.samples["max_batch"] == [MOST]
    assert examples.BATCH <= greedy.samples["max_batch"][0] <= CAP / (32 << 20)
    assert {status for batch, status in greedy.facts.tried if batch > greedy.samples["max_batch"][0]} == {str(Status.OOM)}
    assert len(greedy.samples["throughput"]) == len(greedy.samples["throughput_max"]) == examples.REPEATS
    assert greedy.facts.memory_cap == CAP
    assert (again.reused, again.ran) == (2, [])


# -- a real Ray on this machine: two workers run the plan to the same tokens and the same outcomes --
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'cachemark[ray]'")


DIES = '''

@cm.method("dies")
@dataclass
class Dies(Calm):
    name: ClassVar[str] = "dies"

    def begin(self, layout, sites, memory):
        os.kill(os.getpid(), 9)
'''


@pytest.fixture(scope="module")
def workers() -> Iterator[Ray]:
    """A cluster of this machine alone, with room for two trials at once."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        yield Ray(ray)
    finally:
        ray.shutdown()


@pytest.fixture
def stage(tmp_path: Path) -> stages.Stage:
    made = stages.stage(tmp_path / "stage", '"streaming", "dies", "calm"', examples.MODEL + DIES)
    made.plan.write_text(made.plan.read_text().replace("timeout = 60.0", 'timeout = 60.0\ntrial = "case"'))
    return made


def outcomes(stage: stages.Stage, store: Path, executor: Executor) -> dict[str, Outcome]:
    with stages.forgetting(), Store.open(store) as opened:
        plugins.load(stage.plugin)
        summary = PlanRunner(plans.load(str(stage.plan)), opened, executor, Machine("cpu", 1), (str(stage.plugin),)).measure()
        return {o.case.label: o for o in opened.outcomes(summary.run_id)}


def test_two_workers_find_what_one_machine_finds(stage: stages.Stage, workers: Ray) -> None:
    here = outcomes(stage, stage.folder / "local.sqlite", Local())
    there = outcomes(stage, stage.folder / "ray.sqlite", workers)
    assert set(here) == set(there) == {"full", "full (other seeds)", "full (other batch)", "streaming 1/2", "dies 1/2", "calm 1/2"}
    assert {label: o.status for label, o in here.items()} == {label: o.status for label, o in there.items()}
    assert there["dies 1/2"].status is Status.ERROR
    for label, outcome in here.items():
        assert outcome.output_hash == there[label].output_hash, "the same tokens"
        assert set(outcome.samples) == set(there[label].samples)
        assert outcome.result_key == there[label].result_key, "one is the other's, to any later run"
        assert there[label].facts.node if outcome.ok else True
    with Store.open(stage.folder / "ray.sqlite", create=False, read_only=True) as store:
        assert all(store.artifacts.read(f) for o in there.values() for f in o.artifacts.values())


def test_no_cluster_is_the_machines_fault() -> None:
    if ray.is_initialized():
        ray.shutdown()
    with pytest.raises(Infrastructure, match="No Ray cluster answers"), cluster("127.0.0.1:1", "cpu"):
        pass
