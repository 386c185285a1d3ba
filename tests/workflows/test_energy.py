"""Energy and cost from the command to every format, with real trials on a card of the stand-in for NVML."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import Result

from cachemark.core.result import Outcome
from cachemark.core.units import COST, JOULES, TIME, WATTS
from cachemark.export.asv import _values
from cachemark.export.documents import markdown
from cachemark.export.frames import case_frame, frame
from cachemark.export.tables import tables
from cachemark.machine import energy, gpu
from cachemark.machine.monitor import Watch
from cachemark.trial.executors.local import Local, Place
from cachemark.workflows.results import Run
from cachemark.workflows.session import Machine
from support import stages
from support.fake_nvml import Card, FakeNvml
from support.stages import Stage

WATT, PRICE = 250.0, 2.49


@contextmanager
def on_card(card: Card) -> Iterator[pytest.MonkeyPatch]:
    """Trials run on the CPU and are watched on this card, whose sensors are never late."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(energy, "SENSOR_PERIOD", 0.0)

        @contextmanager
        def places(_: Machine) -> Iterator[Local]:
            with Watch(gpu.gpus(FakeNvml(card))[0]) as watch:
                yield Local([Place((), watch)])

        patch.setattr(Machine, "places", places)
        yield patch


def measured(stage: Stage, card: Card, *more: str) -> Result:
    with on_card(card):
        return stage.run(*more)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A run without a price, and one with a price that reuses its results."""
    made = stages.stage(tmp_path_factory.mktemp("energy") / "stage")
    card = Card("GPU-aaaa", milliwatts=1000 * WATT, steady=True)
    for more in ((), ("--price", f"{PRICE}/h")):
        result = measured(made, card, *more)
        assert result.exit_code == 0, result.output
    return made


def timed(outcomes: dict[str, Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes.values() if TIME in outcome.samples]


def test_every_timed_case_has_the_energy_of_its_latency(stage: Stage) -> None:
    outcomes = timed(stage.outcomes())
    assert len(outcomes) > 1
    for outcome in outcomes:
        assert outcome.facts.energy.source == "energy counter"
        assert len(outcome.samples[JOULES]) == len(outcome.samples[WATTS]) == len(outcome.samples[TIME])
        assert outcome.median(WATTS) == pytest.approx(WATT, rel=0.05)
        for joules, seconds in zip(outcome.samples[JOULES], outcome.samples[TIME], strict=True):
            assert joules * outcome.case.batch == pytest.approx(WATT * seconds, rel=0.25)


def test_a_run_with_a_price_has_costs_also_of_reused_results(stage: Stage) -> None:
    assert not any(COST in outcome.samples for outcome in stage.outcomes(1).values())
    for outcome in timed(stage.outcomes(2)):
        assert outcome.samples[COST] == pytest.approx([1000 * PRICE * s / 3600 / outcome.case.batch for s in outcome.samples[TIME]])


def test_columns_frames_and_asv_have_energy(stage: Stage) -> None:
    run = Run(stage.store)
    table = case_frame(stage.store)
    assert table.attrs["units"] | {JOULES: "J", WATTS: "W", COST: ""} == table.attrs["units"]
    assert set(frame(stage.store).query(f"metric == '{JOULES}'").kind) == {"energy"}
    text = markdown(tables(run.view))
    for title in ("Per image", "Mean power", "Cost of 1,000 images"):
        assert title in text
    page = run.report(stage.folder / "report.html").path.read_text()
    assert all(f'data-k="{name}"' in page for name in (JOULES, WATTS, COST))
    rows = [row for outcome in timed(stage.outcomes()) for row, *_ in _values(outcome, {})]
    assert {JOULES, WATTS, COST} <= {row.series.rpartition(".")[2] for row in rows}


def test_a_wrong_power_leaves_the_other_values(tmp_path: Path) -> None:
    reason = "a power of nan"
    made = stages.stage(tmp_path / "stage")
    result = measured(made, Card("GPU-aaaa", milliwatts=math.nan), "--price", "2.49/h", "--report", str(tmp_path / "report.html"))
    assert result.exit_code == 0, result.output
    for outcome in timed(made.outcomes()):
        assert outcome.ok
        assert {TIME, COST} <= outcome.samples.keys()
        assert not {JOULES, WATTS} & outcome.samples.keys()
        assert reason in outcome.facts.energy.absent
    assert reason in (tmp_path / "report.html").read_text()
    assert made.whole()
