"""The quality pass of a case, and metrics of plug-ins, of which a fault costs the case nothing else."""

import hashlib
import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load

from cachemark.cache.arena import Memory
from cachemark.core import seeds, units
from cachemark.core.outside_metrics import KEY
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import QUALITY_PASS
from cachemark.methods.full import Full
from cachemark.metrics.base import ImageBatch, known
from cachemark.metrics.compute import presets
from cachemark.metrics.compute.distribution import distribution
from cachemark.metrics.compute.image_features import ImageFeatures
from cachemark.metrics.compute.quality_intervals import difference, intervals
from cachemark.plans.metrics import defined
from cachemark.plans.planned import Prepared
from cachemark.plugins import loading as plugins
from cachemark.trial.child import quality
from cachemark.trial.child.bench import Bench
from cachemark.trial.child.plugin_metrics import PluginMetrics
from support import examples, measuring
from support.examples import SAMPLES
from support.measuring import Measured, fill, run_case, see_side
from trial.test_measure import recorded

IMAGES, PART, BATCH = 24, 10, 4
QUALITY = f'[quality]\nseeds = "s256"\nsamples = {IMAGES}\nbatch = {BATCH}\npreset = "eyes"\n'
FIGURES = {f"{base}_eyes_{IMAGES}" for base in ("fid", "kid", "isc", "precision", "recall")}


@pytest.fixture(scope="module")
def preset(folder: Path) -> presets.Preset:
    (folder / "eyes.py").write_text(examples.EYES)
    return runpy.run_path(str(folder / "eyes.py"))["seen"]()


@pytest.fixture(autouse=True)
def _preset(dot: Path, preset: presets.Preset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "PART", PART)
    monkeypatch.setattr(presets, "preset", lambda name, **_: preset)
    monkeypatch.setattr(presets, "identity_of", lambda name, *_: preset.identity)


def planned(folder: Path, table: str = QUALITY, **more: Any) -> list[Prepared]:
    return measuring.planned(folder, '"streaming"', **{"top": table, **more})


def of_role(cases: list[Prepared], role: str) -> Prepared:
    return next(p for p in cases if p.case.role == role)


def baseline(folder: Path, **more: Any) -> Prepared:
    return replace(of_role(planned(folder), "baseline"), **more)


def pass_of(case: Prepared, bench: Bench | None = None) -> Outcome:
    return run_case(case, bench or Bench.load(case))[0]


def test_sides_and_the_full_cache_made_once_are_compared_with_real_images(folder: Path, preset: presets.Preset) -> None:
    cases = planned(folder)
    for p in cases:
        assert (QUALITY_PASS in p.case.evaluation) == (p.case.role in ("candidate", "baseline")), p.case.label
    evaluation = of_role(cases, "candidate").case.evaluation
    assert evaluation[QUALITY_PASS] == {"seeds": "s256", "samples": IMAGES, "batch": BATCH, **preset.identity}
    cases = [replace(p, case=replace(p.case, repeats=3, warmup=1)) for p in planned(folder)]
    bench, counter = recorded(cases[:1])
    for role, times in (("baseline", None), ("other_seeds", 1), ("other_batch", 2)):  # its own images, and along the full cache's tokens
        counter.calls.clear()
        pass_of(of_role(cases, role), bench)
        assert times is None or len(counter.seeds) == times * cases[0].case.samples
    assert len(bench.references) == 1


def test_figures_are_those_of_all_images_at_once(folder: Path, preset: presets.Preset) -> None:
    cases = planned(folder)
    bench = Bench.load(cases[0])
    full, side = (pass_of(of_role(cases, role), bench) for role in ("baseline", "candidate"))
    whole = seeds.subset("s256", 10).first(IMAGES)
    tokens = bench.loaded.generator.generate(torch.tensor(whole.labels), whole.seeds, Full(), full.case.sampling, Memory())
    seen = ImageFeatures.of(bench.loaded.decode(tokens), preset.extractor)
    whole_set = intervals(seen, preset.reference, **preset.options)
    expected = {units.quality_name(name, preset.name, IMAGES): ends for name, ends in whole_set.items()}
    assert expected.keys() == FIGURES
    assert {name: full.samples[name] for name in FIGURES} == {name: [ends.value] for name, ends in expected.items()}
    assert full.facts.intervals == {name: known(ends.low, ends.high) for name, ends in expected.items()}
    assert full.facts.bias == {"fid_eyes_24": expected["fid_eyes_24"].bias}
    right = seen.logits.argmax(1) == torch.tensor(whole.labels)
    assert full.samples["class_accuracy"] == right.double().tolist()
    assert full.facts.to_full is None
    assert side.samples["fid_eyes_24"] != full.samples["fid_eyes_24"]
    (change,) = side.facts.to_full.values()
    assert change[0] == pytest.approx(side.samples["fid_eyes_24"][0] - full.samples["fid_eyes_24"][0])
    assert change[1] <= change[0] <= change[2]
    assert difference(seen, seen, preset.reference).value == 0


def test_shares_together_make_every_part_once_and_one_that_cannot_be_read_is_made_again(folder: Path, tmp_path: Path) -> None:
    case = baseline(folder, feature_cache=tmp_path / "shelf")
    made: list[int] = []
    for index in range(2):
        bench, counter = recorded([case])
        outcome, artifacts = fill(case, bench, (index, 2))
        assert (outcome.status, artifacts) == (Status.NOT_REACHED, {})
        assert f"Share {index + 1} of 2" in outcome.log
        made += counter.seeds
    assert sorted(made) == list(range(IMAGES))
    figures = []
    for made_again in (set(), {*range(PART, 2 * PART)}):
        if made_again:
            (tmp_path / "shelf" / "00001.safetensors").write_bytes(b"\x00" * 40)
        bench, counter = recorded([case])
        figures.append(pass_of(case, bench).samples["fid_eyes_24"])
        assert {*counter.seeds} - {*range(examples.SAMPLES)} == made_again
    assert figures[0] == figures[1]


def test_whatever_is_judged_has_the_hash_of_its_images(folder: Path) -> None:
    cases = [p for p in planned(folder, "") if p.case.role in ("baseline", "other_seeds", "candidate")]
    bench = Bench.load(cases[0])
    by_role = {p.case.role: run_case(p, bench) for p in cases}
    for role, (outcome, files) in by_role.items():
        pictures = bench.loaded.decode(load(files["tokens.safetensors"])["tokens"].long())
        levels = ((pictures.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        assert outcome.facts.images_hash == hashlib.sha256(levels.numpy().tobytes()).hexdigest(), role
    assert len({outcome.facts.images_hash for outcome, _ in by_role.values()}) == 3
    side = of_role(cases, "candidate")
    assert see_side(side, Bench.load(side))[0].facts.images_hash == by_role["candidate"][0].facts.images_hash


def test_an_image_that_is_not_finite_ends_the_case(folder: Path) -> None:
    case = baseline(folder)
    bench = Bench.load(case)
    decode = bench.loaded.decode

    def spoilt(tokens: torch.Tensor) -> torch.Tensor:
        images = decode(tokens).clone()
        if len(tokens) == BATCH:  # not the fidelity pass, whose batch is another
            images[0, 0, 0, 0] = torch.nan
        return images

    bench.loaded = replace(bench.loaded, decode=spoilt)
    for outcome in (pass_of(case, bench), fill(case, bench, (0, 2))[0]):
        assert (outcome.status, outcome.samples) == (Status.NAN_OUTPUT, {})


def test_what_is_missing_is_said_and_nothing_is_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "identity_of", lambda name, *_: {"preset": "adm", "missing": "not measured: needs eyes"})
    case = baseline(folder)
    bench, counter = recorded([case])
    outcome = pass_of(case, bench)
    assert (outcome.ok, set(outcome.samples) & FIGURES) == (True, set())
    assert outcome.case.evaluation[QUALITY_PASS]["missing"] == "not measured: needs eyes"
    assert set(counter.seeds) == set(range(examples.SAMPLES))
    assert not case.case.measures(QUALITY_PASS)


def test_the_images_of_a_pass_are_written_as_a_sample_batch(folder: Path, tmp_path: Path) -> None:
    """All of them, though features are cached; they have the features of the pass, and a failure leaves no file."""
    file = tmp_path / "out" / "samples.npz"
    case = baseline(folder, feature_cache=tmp_path / "shelf", sample_batch=("mine", str(file)))
    bench = Bench.load(case)
    for _ in range(2):
        outcome = pass_of(case, bench)
        with np.load(file) as written:
            images, manifest = torch.from_numpy(written["arr_0"]).permute(0, 3, 1, 2), json.loads(written["manifest.json"])
            assert written["arr_1"].tolist() == manifest["labels"]
        file.unlink()
    assert (len(images), manifest["plan"], manifest["seeds"]) == (IMAGES, "mine", list(range(IMAGES)))
    assert manifest["case"] == outcome.case.to_json()
    eyes = bench.preset(case.case)
    seen = distribution(eyes.extract(images), eyes.reference, **eyes.options)
    assert seen["fid"] == pytest.approx(outcome.samples[f"fid_eyes_{IMAGES}"][0], rel=1e-3)
    bench.loaded = replace(bench.loaded, decode=lambda tokens: torch.full((len(tokens), 3, 16, 16), torch.nan))
    assert pass_of(case, bench).status == Status.NAN_OUTPUT
    assert not list(file.parent.iterdir())


METRICS = '''
from cachemark.core import registry
from cachemark.metrics.base import ImageMetric


def answers(name, measure, **attributes):
    body = {"__doc__": "What a test asks.", "name": name, "measure": lambda self, batch: measure(batch), "__module__": __name__}
    registry.metrics.add(name)(type(name, (ImageMetric,), {**body, **attributes}))


def grey(batch):
    return batch.images.mean((1, 2, 3))


answers("grey", grey, within=(-1, 1))
answers("raises", lambda batch: batch.images.no_such_thing)
answers("exits", lambda shown: exit(5))
answers("nan", lambda shown: grey(shown) / 0 * 0)
answers("matrix", lambda batch: batch.images)
answers("number", lambda shown: 0.5)
answers("far", lambda shown: grey(shown) + 5, within=(-1, 1))
'''


@pytest.fixture(autouse=True, scope="module")
def file(dot: Path) -> Path:
    path = dot / "judges_of_images.py"
    path.write_text(METRICS)
    plugins.load(path)
    return path


@pytest.fixture(scope="module")
def measured(folder: Path, file: Path) -> Measured:
    """The outcome and artifacts of a case with a metric that gives values and one that raises."""
    candidate = of_role(planned(folder, 'metrics = ["grey", "raises"]'), "candidate")
    return run_case(candidate, Bench.load(candidate, plug_ins=(str(file),)))


def full_name(outcome: Outcome, name: str) -> str:
    (only,) = (full for full in outcome.case.evaluation[KEY] if full.startswith(f"{name}_"))
    return only


def test_a_metric_has_a_value_per_seed_and_a_fault_or_an_edit_costs_itself_alone(measured: Measured, file: Path, tmp_path: Path) -> None:
    """A token of the small model is a square of its own grey."""
    outcome, files = measured
    expected = (load(files["tokens.safetensors"])["tokens"].double() / 7.5 - 1).mean(1).tolist()
    assert outcome.samples[full_name(outcome, "grey")] == pytest.approx(expected, abs=1e-6)
    assert units.metric(full_name(outcome, "grey")).within == (-1, 1)
    name, line = full_name(outcome, "raises"), METRICS[: METRICS.index("no_such_thing")].count("\n") + 1
    assert {"latency", "kv_allocated", "psnr", full_name(outcome, "grey")} <= set(outcome.samples)
    assert (outcome.ok, name in outcome.samples, outcome.facts.metric_faults[name].fault) == (True, False, "raised")
    (note,) = [note for note in outcome.facts.footnotes if name in note]
    assert f"{file}:{line}: AttributeError" in note
    (tmp_path / "edited.py").write_text(METRICS + "\n")
    edited = PluginMetrics(outcome.case, [str(tmp_path / "edited.py")])
    assert edited.images(shown(), 2, lambda images: None) == {}
    assert edited.faults[full_name(outcome, "grey")].fault == "changed"


def shown() -> ImageBatch:
    images = torch.rand(SAMPLES, 3, 8, 8)
    tokens = torch.arange(SAMPLES * 2).view(SAMPLES, 2)
    return ImageBatch(images, images, tokens, torch.zeros(SAMPLES, 2), list(range(SAMPLES)), [5, 6, 7, 8])


@pytest.mark.parametrize(("name", "fault"), [("raises", "raised"), ("exits", "raised"), ("nan", "not finite"), ("matrix", "wrong shape"),
                                             ("number", "wrong shape"), ("far", "out of its range"), ("grey", "")])
def test_what_is_no_value_is_a_kind_of_fault(name: str, fault: str, file: Path, measured: Measured) -> None:
    definition = defined(name)
    plugin_metrics = PluginMetrics(replace(measured[0].case, evaluation={KEY: definition}), [str(file)])
    samples, faults = plugin_metrics.images(shown(), SAMPLES, lambda images: None), plugin_metrics.faults
    (full,) = definition
    assert len(samples.get(full, ())) == (0 if fault else SAMPLES)
    assert {name: reason.fault for name, reason in faults.items()} == ({full: fault} if fault else {})
