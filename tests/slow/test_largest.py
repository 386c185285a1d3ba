"""The largest batch under a real limit, found by real trials that run out of memory."""

from pathlib import Path

import pytest

from cachemark.core.result import Status
from cachemark.plans import schema as plans
from cachemark.plans.expand import expand
from cachemark.plugins import loading as plugins
from cachemark.store.db import Store
from cachemark.trial.executors.local import Local
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
        machine, files, plan = Machine("cpu", 1, memory_cap=CAP), (str(stage.plugin),), plans.load(str(stage.plan))
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
