"""Methods that behave as badly as they can: each ends its own case with a typed outcome, and nothing else."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from cachemark.core.result import Outcome, Status
from cachemark.store.db import Store
from cachemark.trial import supervisor as isolate
from support import examples, stages

ORDER = ("calm-1", "raises", "calm-2", "exits", "calm-3", "dies", "crashes", "gorges", "chatters", "hangs", "calm-4")
TIMEOUT = 9.0


@pytest.fixture(scope="module")
def _impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The parent's time is up as soon as the method hangs, and never before, however slow the machine is."""
    asleep = tmp_path_factory.getbasetemp() / "asleep"

    class Lines(queue.Queue[Any]):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            stages.until(lambda: not self.empty() or asleep.exists(), "a word of the child")
            if self.empty():
                asleep.unlink()
                raise queue.Empty
            return super().get()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolate, "queue", SimpleNamespace(Queue=Lines, Empty=queue.Empty))
        patch.setenv("CACHEMARK_TEST_ASLEEP", str(asleep))
        yield


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, _impatient: None) -> tuple[Result, stages.Stage]:
    """One run of all of them, without weights, so that only what is timed is measured."""
    folder = tmp_path_factory.mktemp("faults")
    made = stages.stage(folder, ", ".join(f'"{name}"' for name in ORDER), examples.MODEL + examples.FAULTS, timeout=TIMEOUT)
    made.plan.write_text(made.plan.read_text().replace(str(made.weights), ""))
    (folder / "random.py").write_text("raise SystemExit('a file of the user took the place of a module')")
    before = Path.cwd()
    os.chdir(folder)
    try:
        return made.run("--json"), made
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def outcomes(ran: tuple[Result, stages.Stage]) -> dict[str, Outcome]:
    return {o.case.method: o for o in ran[1].outcomes().values()}


def test_every_case_has_an_outcome_and_the_run_is_whole(ran: tuple[Result, stages.Stage]) -> None:
    result, stage = ran
    assert result.exit_code == 0, result.output
    assert [o.case.method for o in stage.outcomes().values()] == ["full", *ORDER, "calm"]
    assert stage.states() == ["finished"]
    assert stage.whole()


@pytest.mark.parametrize("name", ["full", "calm-1", "calm-2", "calm-3", "calm-4", "chatters", "calm"])
def test_what_behaves_is_measured_whatever_happens_around_it(name: str, outcomes: dict[str, Outcome]) -> None:
    assert outcomes[name].ok, outcomes[name].log
    assert len(outcomes[name].samples["latency"]) == examples.REPEATS


@pytest.mark.parametrize(("name", "status", "words"), [
    ("raises", Status.ERROR, ("Traceback (most recent call last)", "RuntimeError: the method is wrong", "dot.py")),
    ("exits", Status.ERROR, ("The process ended with exit code 3.", "last words")),
    ("dies", Status.ERROR, ("The process ended by signal SIGKILL", "memory")),
    ("crashes", Status.ERROR, ("The process ended by signal SIGSEGV",)),
    ("gorges", Status.OOM, ("RuntimeError", "allocate")),
    ("hangs", Status.TIMEOUT, (f"No outcome within {TIMEOUT:g} s",)),
])  # fmt: skip
def test_each_fault_has_its_outcome(name: str, status: Status, words: tuple[str, ...], outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[name]
    assert outcome.status is status, outcome.log
    for text in words:
        assert text in outcome.log
    assert not outcome.samples


def test_each_case_of_a_plug_in_has_a_process_and_the_store_names_it(
    ran: tuple[Result, stages.Stage], outcomes: dict[str, Outcome],
) -> None:
    with Store.open(ran[1].store, create=False, read_only=True) as store:
        trial = store.trials(1)
    process = {o.case.key: o.facts["footnotes"][0] for name, o in outcomes.items() if name.startswith(("calm-", "chat"))}
    pairs = {(trial[key], number) for key, number in process.items()}
    assert len(pairs) == len({name for name, _ in pairs}) == len({number for _, number in pairs}) == 5


def test_what_a_hanging_method_has_started_ends_with_it(ran: tuple[Result, stages.Stage], outcomes: dict[str, Outcome]) -> None:
    assert outcomes["hangs"].status is Status.TIMEOUT
    sleeper = int(Path(f"{ran[1].plugin}.sleeper").read_text())
    stages.until(lambda: stages.ended(sleeper), "the end of what it started")
