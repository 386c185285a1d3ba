"""The outcome that was measured is kept, whatever its method raises while it is inspected."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachemark.core import plugins
from cachemark.core.result import INSPECTED, Outcome, Status
from cachemark.plans import schema
from cachemark.plans.expand import expand
from cachemark.trial.child.bench import Bench
from cachemark.trial.child.inspecting import inspected
from support import examples
from support.stages import forgetting

from .cheating import Cheat

DUMB = "class Dumb(Exception):\n    def __str__(self):\n        raise ValueError"
RAISED = {"SystemExit(0)": "SystemExit", "KeyboardInterrupt": "KeyboardInterrupt", "Dumb": "Dumb", "MemoryError": ""}


def outcome_of(raised: str, folder: Path, where: Path) -> Outcome:
    """The outcome, inspected, of a method that raises when it begins."""
    body = f"def begin(self, layout, sites, memory):\n    raise {raised}"
    with forgetting():
        plugins.load(folder / "dot.py")
        plugins.load(Cheat(DUMB, body, "").write(where, "cheat"))
        (where / "plan.toml").write_text(examples.plan_text('"cheat"', weights=folder / "dot.safetensors"))
        planned = expand(schema.load(str(where / "plan.toml")))
        arm = next(one for one in planned if one.case.method == "cheat")
        measured = Outcome(arm.case, Status.OK, {"latency": [1.0]}, judgement="none was asked for", facts={"limit": 1})
        return inspected(arm, Bench.load(planned[0]), measured)


@pytest.mark.parametrize(("raised", "said"), RAISED.items())
def test_what_was_measured_is_kept(raised: str, said: str, folder: Path, tmp_path: Path) -> None:
    outcome = outcome_of(raised, folder, tmp_path)
    assert outcome.ok
    assert outcome.samples == {"latency": [1.0]}
    assert outcome.facts["limit"] == 1
    assert [said in flag for flag in outcome.flags] == [True] * bool(said)
    assert ("left_out" in outcome.facts[INSPECTED]) == (not said)
