"""Energy and cost from the command to every format, with real trials on a card of the stand-in for NVML."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cachemark.core.result import Outcome
from cachemark.core.units import COST, JOULES, TIME, WATTS
from cachemark.export.documents import markdown
from cachemark.export.frames import case_frame
from cachemark.export.tables import tables
from cachemark.machine import energy, gpu
from cachemark.machine.monitor import Watch
from cachemark.trial.executors.local import Local, Place
from cachemark.workflows.results import Run
from cachemark.workflows.session import Machine
from support import stages
from support.fake_nvml import Card, FakeNvml

WATT, PRICE = 250.0, 2.49


@contextmanager
def on_card(card: Card) -> Iterator[None]:
    """Trials run on the CPU and are watched on this card, whose sensors are never late."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(energy, "SENSOR_PERIOD", 0.0)

        @contextmanager
        def places(_: Machine) -> Iterator[Local]:
            with Watch(gpu.gpus(FakeNvml(card))[0]) as watch:
                yield Local([Place((), watch)])

        patch.setattr(Machine, "places", places)
        yield


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> stages.Stage:
    """A run without a price, and one with a price that reuses its results."""
    made = stages.stage(tmp_path_factory.mktemp("energy") / "stage")
    with on_card(Card("GPU-aaaa", milliwatts=1000 * WATT, steady=True)):
        for more in ((), ("--price", f"{PRICE}/h")):
            stages.good(made.run(*more))
    return made


def timed(outcomes: dict[str, Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes.values() if TIME in outcome.samples]


def test_a_run_on_a_card_has_energy_costs_and_both_in_every_format(stage: stages.Stage) -> None:
    outcomes = timed(stage.outcomes())
    assert len(outcomes) > 1
    for outcome in outcomes:
        assert outcome.facts.energy.source == "energy counter"
        assert len(outcome.samples[JOULES]) == len(outcome.samples[WATTS]) == len(outcome.samples[TIME])
        assert outcome.median(WATTS) == pytest.approx(WATT, rel=0.05)
        for joules, seconds in zip(outcome.samples[JOULES], outcome.samples[TIME], strict=True):
            assert joules * outcome.case.batch == pytest.approx(WATT * seconds, rel=0.25)
    assert not any(COST in outcome.samples for outcome in stage.outcomes(1).values())
    for outcome in timed(stage.outcomes(2)):
        assert outcome.samples[COST] == pytest.approx([1000 * PRICE * s / 3600 / outcome.case.batch for s in outcome.samples[TIME]])
    run = Run(stage.store)
    assert {JOULES: "J", WATTS: "W", COST: ""}.items() <= case_frame(stage.store).attrs["units"].items()
    text, page = markdown(tables(run.view)), run.report(stage.folder / "report.html").path.read_text()
    for name, title in ((JOULES, "Per image"), (WATTS, "Mean power"), (COST, "Cost of 1,000 images")):
        assert (title in text, f'data-k="{name}"' in page) == (True, True), name


def test_a_wrong_power_leaves_the_other_values(tmp_path: Path) -> None:
    made = stages.stage(tmp_path / "stage")
    with on_card(Card("GPU-aaaa", milliwatts=math.nan)):
        stages.good(made.run("--price", "2.49/h", "--report", str(tmp_path / "report.html")))
    for outcome in timed(made.outcomes()):
        assert (outcome.ok, {TIME, COST, JOULES, WATTS} & outcome.samples.keys()) == (True, {TIME, COST})
        assert "a power of nan" in outcome.facts.energy.absent
    assert "a power of nan" in (tmp_path / "report.html").read_text()
    assert made.whole()
