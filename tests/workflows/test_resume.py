"""Stored cases are not measured again, and an interrupted run keeps complete cases."""

import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachemark.core.errors import StoreUnavailable
from cachemark.core.facts import Facts, TakenOver
from cachemark.core.result import JUDGING, Outcome, Status
from cachemark.core.spec import MAX_BATCH
from cachemark.core.units import metric
from cachemark.machine.environment import environment
from cachemark.plans import schema as plans
from cachemark.plans.expand import expand
from cachemark.plans.planned import Planned, Prepared
from cachemark.plans.price import batches
from cachemark.store.db import Store
from cachemark.trial.executors.local import Local
from cachemark.trial.supervisor import Finished
from cachemark.workflows.run import PlanRunner, _with_earlier
from cachemark.workflows.session import Machine
from cachemark.workflows.time_left import TimeLeft
from support import examples, fork_server, stages, stub
from support.stages import LABELS, Stage, data, good

DONE = "done: same case, code, metric definitions and numerics"


def explained(stage: Stage, *more: str) -> dict[str, tuple[str, str]]:
    return {row["label"]: (row["action"], row["reason"]) for row in data(stage.call("explain", "--json", *more))}


MORE = """
from dataclasses import dataclass
from typing import ClassVar
import cachemark as cm
from cachemark.methods.registry import METHODS

Calm = METHODS.get("calm")


@cm.method("tranquil")
@dataclass
class Tranquil(Calm):
    name: ClassVar[str] = "tranquil"
"""


def with_more(stage: Stage, text: str = MORE) -> tuple[str, str]:
    """Options that load a second plug-in, whose edits affect only its own methods."""
    file = stage.folder / "more.py"
    file.write_text(text)
    return "--plugin", str(file)


def edit(file: Path, old: str, new: str) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def test_nothing_is_measured_twice_and_no_process_started(stage: Stage, no_child: None) -> None:
    """Each case of the first run had a process to itself, since the model is a plug-in's."""
    with Store.open(stage.store, create=False, read_only=True) as store:
        assert list(store.trials(1).values()) == [f"{number + 1} of run 1" for number in range(len(LABELS))]
    before = stage.store.read_bytes()
    assert explained(stage) == dict.fromkeys(LABELS, ("skip", DONE))
    assert explained(stage, "--fresh") == dict.fromkeys(LABELS, ("run", "--fresh"))
    assert (stage.store.read_bytes(), stage.states()) == (before, ["finished"]), "explain changes nothing"
    result = stage.run()
    assert good(result).startswith("Run 2: 0 measured, 0 failed, 5 skipped.\n")
    assert (result.stderr, stage.states()) == ("5 cases: 5 already measured, 0 to run.\n", ["finished", "finished"])
    assert stage.outcomes(2) == stage.outcomes(1)


def test_explain_names_what_changed(stage: Stage, no_child: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(explained(stage, "--store", f"{stage.store}-none").values()) == {("run", "nothing is stored yet")}
    assert not Path(f"{stage.store}-none").exists()
    assert set(explained(stage, "--threads", "3").values()) == {("run", "changed since: numerics (threads 1 → 3)")}
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    own = data(stages.call("explain", stage.plan, "--plugin", stage.plugin, "--store", stage.store, "--json"))
    assert {row["reason"] for row in own} == {"changed since: numerics (threads 1 → 3)"}
    assert Machine().threads == 3, "as on the command line"
    edit(stage.plan, 'name = "dots"', 'name = "others"')
    assert set(explained(stage).values()) == {("skip", DONE)}, "a plan's name changes no number"
    edit(stage.plan, '"streaming"', '{ name = "streaming", sinks = 2 }')
    reasons = explained(stage)
    assert {reasons[label] for label in LABELS if label != "streaming 1/2"} == {("skip", DONE)}
    assert " ".join(reasons["streaming 1/2"]).startswith("run no such case; the nearest stored one differs in parameters")
    edit(stage.plugin, "7.5 - 1", "7.5 - 1.0")
    assert {reasons for label, reasons in explained(stage).items() if label != "streaming 1/2"} == {
        ("run", "changed since: models"), ("run", "changed since: method, models")}


def test_changed_code_is_measured_again_and_nothing_else(stage: Stage) -> None:
    for number, text in ((2, MORE), (3, MORE + "# edited\n")):
        more = with_more(stage, text)
        reasons = explained(stage, *more)
        assert reasons["tranquil 1/2"][1].startswith("no such case" if number == 2 else "changed since: method")
        assert {reasons[label] for label in LABELS} == {("skip", DONE)}
        assert good(stage.run(*more)).startswith(f"Run {number}: 1 measured, 0 failed, 5 skipped.\n")
        assert list(stage.outcomes(number)) == [*LABELS, "tranquil 1/2"]
        with Store.open(stage.store, read_only=True, create=False) as store:
            assert store.reused(number) == {stage.outcomes(number)[label].case.key for label in LABELS}


@pytest.mark.parametrize(("sent", "code", "said"), [
    (signal.SIGINT, 130, "\nInterrupted."), pytest.param(signal.SIGTERM, 143, "\nEnded by SIGTERM.", marks=pytest.mark.slow)])
def test_an_ended_run_goes_on(sent: signal.Signals, code: int, said: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended during its last case; ``tests/slow/test_faults.py`` kills runs."""
    monkeypatch.setattr(fork_server, "enabled", True)
    more = with_more(stage, MORE + "import os\n" + examples.WAITS)
    edit(stage.plan, '"streaming"', '"streaming", "calm", "tranquil", "waits"')
    hold, reached = (Path(f"{more[1]}.{name}") for name in ("hold", "reached"))
    hold.touch()
    process = stage.start(*more)
    stages.until(reached.exists, "the case that waits")
    process.send_signal(sent)
    out, err = process.communicate(timeout=stages.PATIENCE)
    assert (process.returncode, out) == (code, "")
    assert err.startswith("7 cases: 5 already measured, 2 to run.\n[1/2] dot tranquil 1/2: ok")
    assert err.endswith(f"{said} Completed work is stored; run the same command to resume.\n")
    child = int(reached.read_text())
    stages.until(lambda: stages.ended(child), "the end of the child")
    assert stage.whole()
    assert (list(stage.outcomes(2)), explained(stage, *more)["waits 1/2"][0]) == ([*LABELS, "tranquil 1/2"], "run")
    hold.unlink()
    assert good(stage.run(*more)).startswith("Run 3: 1 measured, 0 failed, 6 skipped.\n")
    assert stage.states() == ["finished", "interrupted", "finished"]
    assert list(stage.outcomes(3)) == [*LABELS, "tranquil 1/2", "waits 1/2"]


def test_more_samples_take_over_those_that_are_stored(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results equal those of a run that generates all samples; generations of two samples each are counted."""
    counts = Counter[str]()
    advanced = PlanRunner._advanced

    def counted(runner: PlanRunner, planned: Planned, images: int) -> None:
        counts[planned.case.label] += images
        advanced(runner, planned, images)

    monkeypatch.setattr(PlanRunner, "_advanced", counted)
    edit(stage.plan, f"samples = {examples.SAMPLES}", "samples = 6")
    edit(stage.plan, '["streaming"]', '["calm"]')
    shown = f"{examples.SAMPLES} of its 6 samples are stored; the others are generated and the case is timed again"
    assert set(explained(stage).values()) == {("run", shown)}
    stage.run()
    few, grown, grown_counts = stage.outcomes(1), stage.outcomes(2), dict(counts)
    counts.clear()
    stage.run("--fresh")
    for label, fresh in stage.outcomes(3).items():
        of = grown[label]
        assert (of.output_hash, of.facts.images_hash) == (fresh.output_hash, fresh.facts.images_hash)
        assert of.facts.taken_over == TakenOver(samples=examples.SAMPLES, source=few[label].result_key)
        assert fresh.facts.taken_over is None
        assert {name: of.samples[name] for name in of.samples if metric(name).kind in JUDGING} == {
            name: fresh.samples[name] for name in fresh.samples if metric(name).kind in JUDGING}
    saved = {label: counts[label] - grown_counts[label] for label in counts}
    times = {"full": 2, "full (other seeds)": 2, "full (other batch)": 3, "calm 1/2": 3}  # its own, the full, along its tokens
    assert saved == {label: examples.SAMPLES * number for label, number in times.items()}


@pytest.mark.parametrize(("trial", "groups"), [("model", [["full", "window 1/2", "streaming 1/2"], ["full", "window 1/2"]]),
                                               ("case", [["full"], ["window 1/2"], ["streaming 1/2"], ["full"], ["window 1/2"]])])
def test_cases_share_a_process_by_model(trial: str, groups: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = stub.answering(monkeypatch, lambda planned, _: Outcome(planned.case, Status.ERROR, log="not run"))
    cells = [{"model": "llamagen-b", "methods": ["window", "streaming"]}, {"model": "llamagen-l", "methods": ["window"]}]
    with Store.open(tmp_path / "s.sqlite") as store:
        PlanRunner(plans.Plan.model_validate({"name": "p", "cells": cells, "trial": trial}), store, Local()).measure()
    assert [labels for _, labels in asked] == groups


def test_a_store_that_fails_ends_the_workers_at_once_and_the_run_as_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would wait forever for a worker that is still there when it ends itself."""
    save, ended = Store.save, list[bool]()

    class Workers(stub.Stub):
        def run(self, *arguments: Any, **options: Any) -> Iterator[Finished]:
            try:
                yield from super().run(*arguments, **options)
            finally:
                ended.append(True)

    def broken(store: Store, run_id: int, outcome: Outcome, *given: Any, **named: Any) -> int:
        if outcome.case.method != "full":
            raise StoreUnavailable("The disk is full.", remedy="Free some space.")
        return save(store, run_id, outcome, *given, **named)

    monkeypatch.setattr(Store, "save", broken)
    with Store.open(tmp_path / "results.sqlite") as store:
        with pytest.raises(StoreUnavailable) as error:
            PlanRunner(stub.tiny_plan(), store, Workers()).measure()
        assert ended, f"while {error.value!r} still holds the frames of the run"
        assert (store.run().state, {o.case.method for o in store.outcomes(1)}) == ("failed", {"full"})


@pytest.fixture(scope="module")
def cases() -> list[Planned]:
    return expand(stub.tiny_plan())


def images(planned: Planned) -> float:
    return sum(size * times for size, times in batches(planned, forced=1.0))


def test_the_time_left_is_of_stored_seconds_or_the_pace_of_the_model_and_counts_batches(cases: list[Planned]) -> None:
    now = 1000.0
    first, other = cases[0], next(each for each in cases if each.case.model != cases[0].case.model)
    left = TimeLeft([first, other, cases[1], cases[-1]], clock=lambda: now)
    assert left.seconds() is None
    for case, pace, expected in ((first, 2.0, 2.0 * sum(map(images, (other, cases[1], cases[-1])))),
                                 (other, 3.0, 2.0 * images(cases[1]) + 3.0 * images(cases[-1]))):
        left.started(case)
        now += images(case) * pace
        left.ended(Outcome(case.case, Status.OK, {"latency": [1.0]}, "random weights"))
        assert left.seconds() == pytest.approx(expected)
    left = TimeLeft(cases, lambda key: 10.0, lambda: 1000.0)
    for running, expected in ((0, 10.0 * len(cases)), (2, 10.0 * len(cases) / 2)):
        for case in cases[:running]:
            left.started(case)
        assert left.seconds() == expected
    searched = replace(cases[0], case=replace(cases[0].case, evaluation={MAX_BATCH: {"limit": 0}}))
    assert TimeLeft([searched], lambda key: 10.0).seconds() is None
    now, first = 1000.0, cases[0]
    left = TimeLeft([first], clock=lambda: now)
    left.started(first)
    now += 1.0
    left.advanced(first, first.case.batch)
    estimate = left.seconds()
    assert estimate == pytest.approx(images(first) / first.case.batch - 1)
    now += 0.9
    assert left.seconds() == pytest.approx(estimate - 0.9), "a long batch does not make the estimate grow"
    assert 0 < left.fraction(first.case.key) < 1
    left.started(first)
    assert left.fraction(first.case.key) == 0.0, "measured again"


NAME = "fid_eyes_24"
PARTS = {"numerics": "n", "metrics": "m"}


@pytest.mark.parametrize(("stored", "reused"), [
    ([Status.OOM], False), ([{}, Status.OOM], True), ([{}, Status.TIMEOUT], True),
    ([{}, {"result_parts": {**PARTS, "numerics": "other"}}], False), ([{}, {"result_parts": {**PARTS, "metrics": "other"}}], False),
    ([{}, {"quality_metrics": []}], False), ([{"images_hash": None}], False)])
def test_the_newest_success_alone_counts(stored: list[Status | dict[str, Any]], reused: bool, cases: list[Planned], tmp_path: Path) -> None:
    """``stored``: failures, and successes with other facts."""
    first = next(each for each in cases if each.case.role == "candidate")
    evaluation = {"quality": {"preset": "eyes", "samples": 24, "batch": 4, "seeds": "s256"}}
    planned = Prepared.of(first, case=replace(first.case, evaluation=evaluation), result_parts=PARTS)
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
        same, other_tokens, other_images = (earlier.matches(*hashes, {"psnr": [30.0]}) for hashes in (("o", "i"), ("p", "i"), ("o", "j")))
        assert (same, other_tokens, other_images) == (True, False, False)
