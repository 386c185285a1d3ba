"""Which earlier outcome of a case may lend its quality: the newest success, if nothing that counts has changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachemark.core.facts import Facts
from cachemark.core.result import Outcome, Status
from cachemark.machine.environment import environment
from cachemark.plans.expand import Planned, expand
from cachemark.store.db import Store
from cachemark.workflows.run import _with_earlier
from support import stub

NAME = "fid_eyes_24"
PARTS = {"numerics": "n", "metrics": "m"}


@pytest.fixture(scope="module")
def planned() -> Planned:
    """A candidate with a quality pass."""
    first = next(p for p in expand(stub.tiny_plan()) if p.case.role == "candidate")
    evaluation = {"quality": {"preset": "eyes", "samples": 24, "batch": 4, "seeds": "s256"}}
    return replace(first, case=replace(first.case, evaluation=evaluation), result_parts=PARTS)


@pytest.mark.parametrize(("stored", "reused"), [
    ([Status.OOM], False), ([{}, Status.OOM], True), ([{}, Status.TIMEOUT], True),
    ([{}, {"result_parts": {**PARTS, "numerics": "other"}}], False), ([{}, {"result_parts": {**PARTS, "metrics": "other"}}], False),
    ([{}, {"quality_metrics": []}], False), ([{"images_hash": None}], False),
])  # fmt: skip
def test_the_newest_success_alone_counts(stored: list[Status | dict[str, Any]], reused: bool, planned: Planned, tmp_path: Path) -> None:
    """``stored``: failures, and successes with other facts."""
    with Store.open(tmp_path / "s.sqlite") as store:
        run = store.begin_run("p", {}, environment("cpu", 1), {})
        for number, each in enumerate(stored):
            if isinstance(each, Status):
                store.save(run, Outcome(planned.case, each, log="not this time", result_key="since"))
                continue
            facts = {"result_parts": PARTS, "quality_metrics": [NAME], "images_hash": "i", **each}
            facts = {name: fact for name, fact in facts.items() if fact is not None}
            store.save(run, Outcome(planned.case, Status.OK, {"psnr": [30.0], NAME: [9.0]}, result_key=f"before {number}",
                                    output_hash="o", facts=Facts.from_json(facts)))
        earlier = _with_earlier(planned, store).reusable
    assert (earlier is not None) == reused
    if earlier is not None:
        assert (earlier.source, earlier.quality) == ("before 0", {NAME: [9.0]})
