"""Workers end before the error that ends their run is reported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachemark.core.errors import StoreUnavailable
from cachemark.store.db import Store
from cachemark.trial.supervisor import Finished
from cachemark.workflows.run import PlanRunner
from support import stub


class Workers(stub.Stub):
    """Executor that records when its workers have ended."""

    ended = False

    def run(self, *arguments: Any, **options: Any) -> Iterator[Finished]:
        try:
            yield from super().run(*arguments, **options)
        finally:
            self.ended = True


def test_a_store_that_fails_ends_the_workers_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would wait forever for a worker that is still there when it ends itself."""
    def full(*_: Any, **__: Any) -> int:
        raise StoreUnavailable("The disk is full.", remedy="Free some space.")

    workers = Workers()
    monkeypatch.setattr(Store, "save", full)
    with Store.open(tmp_path / "results.sqlite") as store, pytest.raises(StoreUnavailable) as error:
        PlanRunner(stub.tiny_plan(), store, workers).measure()
    assert workers.ended, f"while {error.value!r} still holds the frames of the run"
