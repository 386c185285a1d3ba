"""Which earlier outcome of a case may lend its quality."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachemark.core.result import Outcome, Status
from cachemark.machine.environment import environment
from cachemark.plans.expand import expand
from cachemark.store.db import Store
from cachemark.workflows import run as session
from cachemark.workflows.explain import Decision
from support import stub

NAME = "fid_eyes_24"


@pytest.fixture
def decision() -> Decision:
    """A side with a quality pass."""
    planned = next(p for p in expand(stub.tiny_plan()) if p.case.role == "candidate")
    evaluation = {"quality": {"preset": "eyes", "samples": 24, "batch": 4, "seeds": "s256"}}
    return Decision(replace(planned, case=replace(planned.case, evaluation=evaluation)), "key", {"numerics": "n", "metrics": "m"}, False)


def measured(decision: Decision, **changes: Any) -> Outcome:
    facts = {"result_parts": dict(decision.parts), "quality_metrics": [NAME], "images_hash": "i"}
    samples = {"psnr": [30.0], NAME: [9.0]}
    return Outcome(decision.planned.case, Status.OK, samples, result_key="before", output_hash="o", facts=facts | changes)


@pytest.mark.parametrize("status", [Status.OOM, Status.TIMEOUT])
def test_a_failure_since_takes_nothing_away(decision: Decision, status: Status, tmp_path: Path) -> None:
    failed = Outcome(decision.planned.case, status, log="not this time", result_key="since")
    with Store.open(tmp_path / "s.sqlite") as store:
        run = store.begin_run("p", {}, environment("cpu", 1), {})
        store.save(run, failed)
        assert session._with_earlier(decision, store).planned.reusable is None, "nothing but a failure"
        store.save(run, measured(decision))
        store.save(run, failed)
        held = session._with_earlier(decision, store).planned.reusable
    assert held is not None
    assert (held.source, held.quality) == ("before", {NAME: [9.0]})


@pytest.mark.parametrize("changes", [
    {"result_parts": {"numerics": "other", "metrics": "m"}}, {"result_parts": {"numerics": "n", "metrics": "other"}},
    {"quality_metrics": []},
])  # fmt: skip
def test_the_newest_success_alone_counts(decision: Decision, changes: dict[str, Any], tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.sqlite") as store:
        run = store.begin_run("p", {}, environment("cpu", 1), {})
        store.save(run, measured(decision))
        store.save(run, measured(decision, **changes))
        assert session._with_earlier(decision, store).planned.reusable is None
