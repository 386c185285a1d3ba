"""Quality and energy from the command line to every format: shares, resumption, anchors, and a card of the stand-in for NVML."""

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cachemark.core.facts import Reused
from cachemark.core.result import Outcome
from cachemark.core.units import COST, JOULES, TIME, WATTS
from cachemark.export.documents import markdown
from cachemark.export.frames import case_frame
from cachemark.export.tables import tables
from cachemark.machine import energy, gpu
from cachemark.machine.monitor import Watch
from cachemark.metrics.compute import presets
from cachemark.trial.child import quality
from cachemark.trial.executors.local import Local, Place
from cachemark.workflows.results import Run
from cachemark.workflows.session import Machine
from support import examples, fork_server, stages
from support.fake_nvml import Card, FakeNvml
from support.stages import Stage, good

from .test_resume import edit

IMAGES = 24
NAME = f"fid_eyes_{IMAGES}"
SEES = '''
from cachemark.metrics.compute import presets; from cachemark.trial.child import quality


def set_up():
    quality.PART = 10
    presets.preset = lambda name, **_: seen()
    presets.identity_of = lambda name, *_: seen().identity
'''
ANCHOR = f'[anchor]\nmetric = "fid_eyes_{IMAGES}"\nexpected = EXPECTED\ntolerance = 0.001\nsource = "the tests"\n\n'


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A plan whose plug-in is the model with its eyes, and its first run. Not to be changed."""
    made = stages.stage(tmp_path_factory.mktemp("original") / "stage", samples=2, plugin=examples.MODEL + examples.EYES + SEES)
    edit(made.plan, "[[cells]]", f'[quality]\nseeds = "s256"\nsamples = {IMAGES}\nbatch = 4\npreset = "eyes"\n\n[[cells]]')
    with pytest.MonkeyPatch.context() as patch:
        put_back(patch)
        good(made.run())
    return made


def put_back(patch: pytest.MonkeyPatch) -> None:
    for module, name in ((quality, "PART"), (presets, "preset"), (presets, "identity_of")):
        patch.setattr(module, name, getattr(module, name))


@pytest.fixture
def measured(original: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.chdir(tmp_path)
    put_back(monkeypatch)
    return original.copy(tmp_path / "copy")


def parts(stage: Stage, label: str = "") -> Path:
    return Path(f"{stage.store}.artifacts", "parts", stage.outcomes()[label].result_key if label else "")


def times(stage: Stage) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in parts(stage).glob("*/*")}


def test_quality_is_reused_where_tokens_did_not_change(measured: Stage) -> None:
    first, made = measured.outcomes(), times(measured)
    edit(measured.plugin, "under another name.", "under another name, and so other code.")
    assert "5 measured, 0 failed, 0 skipped" in good(measured.run()), "the model is code of the plug-in too"
    again, calm = measured.outcomes()["calm 1/2"], first["calm 1/2"]
    assert again.result_key != calm.result_key
    assert again.facts.reused == Reused(metrics=again.facts.quality_metrics, source=calm.result_key)
    assert NAME in again.facts.reused.metrics
    assert (again.samples.keys(), again.facts.to_full) == (calm.samples.keys(), calm.facts.to_full)
    assert {name: again.samples[name] for name in again.facts.reused.metrics}.items() <= calm.samples.items()
    now = times(measured)
    assert made.items() <= now.items()
    assert set(now.values()) == set(made.values()), "no image was made"


def test_more_quality_images_take_over_complete_parts(measured: Stage) -> None:
    """Two parts of ten; the third had four images and is made anew."""
    made = {path.stat().st_ino for path in times(measured)}
    edit(measured.plan, f"samples = {IMAGES}", "samples = 30")
    good(measured.run())
    for label in ("full", "streaming 1/2", "calm 1/2"):
        assert [path.stat().st_ino in made for path in sorted(parts(measured, label).iterdir())] == [True, True, False]
        assert "fid_eyes_30" in measured.outcomes()[label].samples


@pytest.mark.parametrize("kept", [True, False])
def test_a_new_candidate_is_compared_with_the_images_of_a_stored_full_cache(kept: bool, measured: Stage) -> None:
    """Only if these features were not pruned."""
    if not kept:
        shutil.rmtree(parts(measured, "full"))
    edit(measured.plan, '["streaming"]', '["streaming", "window"]')
    assert "1 measured, 0 failed, 5 skipped" in good(measured.run())
    new = measured.outcomes()["window 1/2"]
    assert (NAME in new.samples, NAME in (new.facts.to_full or {})) == (True, kept)


@pytest.mark.slow
def test_a_night_measures_times_anew_and_carries_quality(measured: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "enabled", True)
    made = times(measured)
    assert "5 measured" in good(measured.run("--fresh", "--reuse-quality"))
    by_label = measured.outcomes()
    assert {label for label, o in by_label.items() if o.facts.reused is not None} == {"full", "streaming 1/2", "calm 1/2"}
    assert times(measured) == made
    for path in made:
        path.unlink()
    good(measured.run("--fresh", "--reuse-quality"))
    assert {label for label, o in measured.outcomes().items() if o.facts.reused is not None} == {"streaming 1/2", "calm 1/2"}, (
        "the full cache's features are gone, and candidates of other code would be compared with them")


def test_the_report_warns_until_an_anchor_is_reached(measured: Stage) -> None:
    value = measured.outcomes()["full"].samples[NAME][0]
    plan = measured.plan.read_text()
    for expected, state in ((value + 1, "failed"), (value, "passed")):
        measured.plan.write_text(plan.replace("[[cells]]", ANCHOR.replace("EXPECTED", repr(expected)) + "[[cells]]"))
        page = measured.folder / f"{state}.html"
        assert f"Anchor of dot: {state}." in measured.run("--report", page).output
        assert ("dot is not anchored" in page.read_text()) == (state == "failed")


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
def priced(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A run without a price, and one with a price that reuses its results."""
    made = stages.stage(tmp_path_factory.mktemp("energy") / "stage")
    edit(made.plan, str(made.weights), "")  # random ones: timed and not judged
    with on_card(Card("GPU-aaaa", milliwatts=1000 * WATT, steady=True)):
        for more in ((), ("--price", f"{PRICE}/h")):
            good(made.run(*more))
    return made


def timed(outcomes: dict[str, Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes.values() if TIME in outcome.samples]


def test_a_run_on_a_card_has_energy_costs_and_both_in_every_format(priced: Stage) -> None:
    outcomes = timed(priced.outcomes())
    assert len(outcomes) > 1
    for outcome in outcomes:
        assert outcome.facts.energy.source == "energy counter"
        assert len(outcome.samples[JOULES]) == len(outcome.samples[WATTS]) == len(outcome.samples[TIME])
        assert outcome.median(WATTS) == pytest.approx(WATT, rel=0.05)
        for joules, seconds in zip(outcome.samples[JOULES], outcome.samples[TIME], strict=True):
            assert joules * outcome.case.batch == pytest.approx(WATT * seconds, rel=0.25)
    assert not any(COST in outcome.samples for outcome in priced.outcomes(1).values())
    for outcome in timed(priced.outcomes(2)):
        assert outcome.samples[COST] == pytest.approx([1000 * PRICE * s / 3600 / outcome.case.batch for s in outcome.samples[TIME]])
    run = Run(priced.store)
    assert {JOULES: "J", WATTS: "W", COST: ""}.items() <= case_frame(priced.store).attrs["units"].items()
    text, page = markdown(tables(run.view)), run.report(priced.folder / "report.html").path.read_text()
    for name, title in ((JOULES, "Per image"), (WATTS, "Mean power"), (COST, "Cost of 1,000 images")):
        assert (title in text, f'data-k="{name}"' in page) == (True, True), name


def test_a_wrong_power_leaves_the_other_values(tmp_path: Path) -> None:
    made = stages.stage(tmp_path / "stage")
    edit(made.plan, str(made.weights), "")
    with on_card(Card("GPU-aaaa", milliwatts=math.nan)):
        good(made.run("--price", "2.49/h", "--report", str(tmp_path / "report.html")))
    for outcome in timed(made.outcomes()):
        assert (outcome.ok, {TIME, COST, JOULES, WATTS} & outcome.samples.keys()) == (True, {TIME, COST})
        assert "a power of nan" in outcome.facts.energy.absent
    assert "a power of nan" in (tmp_path / "report.html").read_text()
    assert made.whole()
