"""The quality pass from the command line: shares, resumption, anchors, and images for other programs."""

import json
import shutil
from pathlib import Path

import pytest

from cachemark.core.facts import Reused
from cachemark.core.result import Outcome
from cachemark.metrics.compute import presets
from cachemark.store.db import Store
from cachemark.trial.child import quality
from support import examples
from support.stages import call

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


def prepare(folder: Path) -> Path:
    """A plug-in with the model and its eyes, its weights, and a plan."""
    (folder / "dot.py").write_text(examples.MODEL + examples.EYES + SEES)
    examples.weights(folder / "dot.safetensors")
    table = f'[quality]\nseeds = "s256"\nsamples = {IMAGES}\nbatch = 4\npreset = "eyes"\n\n'
    text = examples.plan_text('"streaming"', weights=folder / "dot.safetensors").replace("[[cells]]", f"{table}[[cells]]", 1)
    (folder / "plan.toml").write_text(text)
    return folder


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plan and its first run. Not to be changed."""
    folder = prepare(tmp_path_factory.mktemp("measured"))
    with pytest.MonkeyPatch.context() as patch:
        put_back(patch)
        run(folder)
    return folder


def put_back(patch: pytest.MonkeyPatch) -> None:
    """Restore at the end what the plug-in changes."""
    for module, name in ((quality, "PART"), (presets, "preset"), (presets, "identity_of")):
        patch.setattr(module, name, getattr(module, name))


@pytest.fixture
def measured(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the plan and its first run."""
    folder = shutil.copytree(original, tmp_path / "copy")
    (folder / "plan.toml").write_text((folder / "plan.toml").read_text().replace(str(original), str(folder)))
    monkeypatch.chdir(folder)
    put_back(monkeypatch)
    return folder


def run(folder: Path, *more: object, command: str = "run") -> str:
    result = call(command, folder / "plan.toml", "--plugin", folder / "dot.py", "--store", folder / "s.sqlite", "--threads", 1, *more)
    assert result.exit_code == 0, result.output
    return result.output


def outcomes(folder: Path) -> dict[str, Outcome]:
    with Store.open(folder / "s.sqlite", create=False, read_only=True) as store:
        return {outcome.case.label: outcome for outcome in store.outcomes(store.run().id)}


def parts(folder: Path) -> list[Path]:
    return sorted((folder / "s.sqlite.artifacts" / "parts").glob("*/*"))


def times(folder: Path) -> dict[Path, int]:
    """When each stored part of a quality pass was written."""
    return {path: path.stat().st_mtime_ns for path in parts(folder)}


def touched(folder: Path, change: str) -> None:
    """Edit the plug-in, so that its cases must be measured again."""
    file = folder / "dot.py"
    docstring = '    """A window under another name."""\n'
    file.write_text(file.read_text().replace(docstring, f"{docstring}{change}\n"))


def test_quality_is_reused_where_tokens_did_not_change(measured: Path) -> None:
    first = outcomes(measured)
    made = times(measured)
    touched(measured, "    # a comment is other code")
    assert "5 measured, 0 failed, 0 skipped" in run(measured), "the model is code of the plug-in too"
    again = outcomes(measured)["calm 1/2"]
    assert again.result_key != first["calm 1/2"].result_key
    assert again.facts.reused == Reused(metrics=again.facts.quality_metrics, source=first["calm 1/2"].result_key)
    assert NAME in again.facts.reused.metrics
    assert {**again.samples, "latency": 0}.keys() == first["calm 1/2"].samples.keys()
    for name in again.facts.reused.metrics:
        assert again.samples[name] == first["calm 1/2"].samples[name]
    assert again.facts.to_full == first["calm 1/2"].facts.to_full
    now = times(measured)
    assert made.items() <= now.items()
    assert set(now.values()) == set(made.values()), "no image was made"


def test_more_quality_images_take_over_complete_parts(measured: Path) -> None:
    """Two parts of ten; the third had four images and is made anew."""
    made = {path.stat().st_ino: path.name for path in parts(measured)}
    plan = measured / "plan.toml"
    plan.write_text(plan.read_text().replace(f"samples = {IMAGES}", "samples = 30"))
    run(measured)
    for label in ("full", "streaming 1/2", "calm 1/2"):
        folder = measured / "s.sqlite.artifacts" / "parts" / outcomes(measured)[label].result_key
        assert [path.stat().st_ino in made for path in sorted(folder.iterdir())] == [True, True, False]
        assert "fid_eyes_30" in outcomes(measured)[label].samples


@pytest.mark.parametrize("kept", [True, False])
def test_a_new_candidate_is_compared_with_the_images_of_a_stored_full_cache(kept: bool, measured: Path) -> None:
    """Only if these features were not pruned."""
    full = measured / "s.sqlite.artifacts" / "parts" / outcomes(measured)["full"].result_key
    if not kept:
        shutil.rmtree(full)
    plan = measured / "plan.toml"
    plan.write_text(plan.read_text().replace('["streaming"]', '["streaming", "window"]'))
    assert "1 measured, 0 failed, 5 skipped" in run(measured)
    new = outcomes(measured)["window 1/2"]
    assert (NAME in new.samples, NAME in (new.facts.to_full or {})) == (True, kept)


def test_other_tokens_have_their_own_quality(measured: Path) -> None:
    first = outcomes(measured)["calm 1/2"]
    touched(measured, "\n    def begin(self, layout, sites, memory):\n        self.B //= 2\n        super().begin(layout, sites, memory)\n")
    run(measured)
    again = outcomes(measured)["calm 1/2"]
    assert again.output_hash != first.output_hash
    assert again.facts.reused is None
    assert again.samples[NAME] != first.samples[NAME]


@pytest.mark.slow
def test_a_night_measures_times_anew_and_carries_quality(measured: Path) -> None:
    made = times(measured)
    assert "5 measured" in run(measured, "--fresh", "--reuse-quality")
    by_label = outcomes(measured)
    assert {label for label, o in by_label.items() if o.facts.reused is not None} == {"full", "streaming 1/2", "calm 1/2"}
    assert times(measured) == made
    for path in made:
        path.unlink()
    run(measured, "--fresh", "--reuse-quality")
    assert {label for label, o in outcomes(measured).items() if o.facts.reused is not None} == {"streaming 1/2", "calm 1/2"}, (
        "the full cache's features are gone, and candidates of other code would be compared with them")


@pytest.mark.slow
def test_another_image_decoder_has_its_own_quality(measured: Path) -> None:
    """The full cache is compared with itself, so only its images differ."""
    first = outcomes(measured)["full"]
    file = measured / "dot.py"
    file.write_text(file.read_text().replace("tokens.float() / 7.5 - 1", "tokens.float() / 9 - 1"))
    asked = [row["action"] for row in json.loads(run(measured, "--json", command="explain"))]
    assert asked == ["run"] * 5, "the model is code of the plug-in too"
    run(measured, "--reuse-quality", "--fresh")
    again = outcomes(measured)["full"]
    assert again.output_hash == first.output_hash
    assert again.samples["psnr"] == first.samples["psnr"]
    assert again.facts.images_hash != first.facts.images_hash
    assert again.facts.reused is None
    assert again.samples[NAME] != first.samples[NAME]


def test_the_report_warns_until_an_anchor_is_reached(measured: Path) -> None:
    value = outcomes(measured)["full"].samples[NAME][0]
    plan = (measured / "plan.toml").read_text()
    for expected, state in ((value + 1, "failed"), (value, "passed")):
        (measured / "plan.toml").write_text(plan.replace("[[cells]]", ANCHOR.replace("EXPECTED", repr(expected)) + "[[cells]]"))
        page = measured / f"{state}.html"
        assert f"Anchor of dot: {state}." in run(measured, "--report", page)
        assert ("dot is not anchored" in page.read_text()) == (state == "failed")
