"""The quality pass from the command line: shares, resumption, anchors, and images for other programs."""

import shutil
from pathlib import Path

import pytest

from cachemark.core.facts import Reused
from cachemark.metrics.compute import presets
from cachemark.trial.child import quality
from support import examples, fork_server, stages
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
    made = stages.stage(tmp_path_factory.mktemp("original") / "stage", plugin=examples.MODEL + examples.EYES + SEES)
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
